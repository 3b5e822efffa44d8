"""Schedules and bubbles of pipelines: by formulas, of simulated jobs, and of recorded timelines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from answered_jobs import answer_to, job_at, summaries_at
from augment import AugmentedTrace, read
from augment.core import Window
from augment.job.parallel.schedules import Passes, bubble, parted, played, recognised
from augment.job.ranks import ActionKind, RankSummary, summary_of
from metamorphic import load, save
from simulator import JobOptions, simulate
from simulator.orders import chunks_of, ideal_bubble, order_of

pytestmark = pytest.mark.slow

EVIDENCE = Path(__file__).parents[3] / "shared" / "evidence" / "pipeline"
EXAMPLES = Path(__file__).parents[2] / "examples" / "traces"
#: of the backward of a simulated layer: its products for weights
WEIGHT_SHARE = 0.396
PARTS = ("theory_ns", "imbalance_ns", "late_send_ns", "host_ns", "rest_ns")


def passes(text: str) -> Passes:
    """``F0 B0`` is a forward and a backward; ``F1.0`` a forward of chunk 1."""
    output = [(ActionKind("FBIWO".index(word[0])), *map(int, word[1:].split("."))) for word in text.split()]
    rows = [(kind, *([-1] if len(rest) == 1 else []), *rest) for kind, *rest in output]
    return Passes(*np.array(rows, np.int64).T)


def one_f_one_b(stages: int, many: int) -> list[Passes]:
    out = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, many)
        words = [f"F{batch}" for batch in range(ahead)]
        for batch in range(ahead, many):
            words += [f"F{batch}", f"B{batch - ahead}"]
        out.append(passes(" ".join(words + [f"B{batch}" for batch in range(many - ahead, many)])))
    return out


def gpipe(stages: int, many: int) -> list[Passes]:
    text = " ".join([f"F{batch}" for batch in range(many)] + [f"B{batch}" for batch in range(many)])
    return [passes(text)] * stages


def interleaved(stages: int, chunks: int, many: int) -> list[Passes]:
    """As Megatron's schedule: microbatches in groups of as many as there are stages."""
    total, group = many * chunks, stages * chunks
    chunk = [place % group // stages for place in range(total)]
    batch = [place // group * stages + place % stages for place in range(total)]
    forward = [f"F{part}.{number}" for part, number in zip(chunk, batch, strict=True)]
    backward = [f"B{chunks - 1 - part}.{number}" for part, number in zip(chunk, batch, strict=True)]
    out = []
    for stage in range(stages):
        ahead = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)
        words = forward[:ahead]
        for place in range(total - ahead):
            words += [forward[ahead + place], backward[place]]
        out.append(passes(" ".join(words + backward[total - ahead :])))
    return out


def zb1p(stages: int, many: int) -> list[Passes]:
    """ZB-H1: the halves for weights fill what 1F1B leaves empty at the end."""
    out = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, many)
        words, weights = [f"F{batch}" for batch in range(ahead)], 0
        for batch in range(many):
            words += [f"F{batch + ahead}"] if batch + ahead < many else []
            words.append(f"I{batch}")
            if batch >= stage:
                words.append(f"W{weights}")
                weights += 1
        out.append(passes(" ".join(words + [f"W{batch}" for batch in range(weights, many)])))
    return out


@pytest.mark.parametrize(("stages", "name"), [
    (one_f_one_b(4, 8), "1F1B"),
    (one_f_one_b(4, 2), "1F1B"),
    (one_f_one_b(2, 1), "GPipe or 1F1B"),
    (gpipe(4, 8), "GPipe"),
    (interleaved(4, 2, 8), "interleaved 1F1B"),
    (zb1p(4, 8), "ZB1P"),
    ([passes("F0 F1 B0 B1"), passes("F0 B0")], "unknown"),
    ([passes("O0.0 O3.0"), passes("O1.0 O2.0")], "DualPipeV"),
    ([passes("O0.0 O1.1"), passes("O1.1 O0.0")], "DualPipe"),
    ([passes("O0 O1"), passes("O0 O1")], "unknown"),
    ([passes("O0.0 O1.0"), passes("O2.0 O3.0")], "unknown"),
])  # fmt: skip
def test_schedules_are_recognised(stages: Sequence[Passes], name: str) -> None:
    assert recognised([stages]) == name


@pytest.mark.parametrize(("stages", "many"), [(2, 2), (4, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("chunks", [1, 2])
def test_played_schedules_have_the_bubbles_of_theory(stages: int, many: int, chunks: int) -> None:
    forward, backward = 3.0, 5.0
    orders = {"1F1B": one_f_one_b, "GPipe": gpipe} if chunks == 1 else {"interleaved 1F1B": interleaved}
    for name, order in orders.items():
        made = order(stages, many) if chunks == 1 else interleaved(stages, chunks, many)
        value = {ActionKind.FORWARD: forward / chunks, ActionKind.BACKWARD: backward / chunks}
        length = played(made, [value] * stages)
        whole = {ActionKind.FORWARD: forward, ActionKind.BACKWARD: backward}
        expected = bubble(name, stages, chunks, whole)
        assert expected is not None
        assert length - many * (forward + backward) == pytest.approx(expected)


def test_zero_bubbles_play_as_in_theory() -> None:
    times = {ActionKind.FORWARD: 1.0, ActionKind.INPUT: 1.0, ActionKind.WEIGHT: 1.0}
    length = played(zb1p(4, 8), [times] * 4)
    assert length == 8 * 3 + 3 * (1 + 2 - 2)  # (p-1)(F+B-2W), a third of 1F1B


def test_an_order_that_waits_for_itself_is_not_played() -> None:
    assert played([passes("F0 B0"), passes("B0 F0")], [{}, {}]) is None


def job(folder: Path, **options: Any) -> list[RankSummary]:
    chosen = JobOptions(**{"ranks": 4, "pp": 4, "microbatches": 8, "layers": 4, "steps": 2} | options)
    return summaries_at([path for path, _ in simulate(chosen, folder)])


def rows(summaries: list[RankSummary]) -> Any:
    outcome = answer_to(summaries).outcomes["pipeline"]
    for row in outcome.rows:
        assert sum(getattr(row, name) or 0 for name in PARTS) == row.bubble_ns == row.window_ns - row.work_ns
    return sorted(outcome.rows, key=lambda row: (row.pipeline, row.stage))


@pytest.mark.parametrize("labels", ["none", "torch", "megatron"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_bubbles_of_equal_stages_are_those_of_theory(tmp_path: Path, schedule: str, labels: str) -> None:
    result = rows(job(tmp_path, schedule=schedule, stage_labels=labels, stacks=labels == "megatron", jitter=0.01))
    assert [row.stage for row in result] == [row.rank for row in result] == [0, 1, 2, 3]
    for row in result:
        assert row.schedule == {"1f1b": "1F1B", "gpipe": "GPipe"}[schedule]
        assert row.known_by == ("phases" if labels == "none" else "labels")
        assert (row.stage_count, row.microbatch_count, row.chunk_count, row.step_count) == (4, 8, 1, 2)
        assert row.theory_ratio == pytest.approx(3 / 11)
        assert abs(row.rest_ns) < 0.03 * row.window_ns  # messages take their time
    assert result[-1].bubble_ratio == pytest.approx(3 / 11, abs=0.02)  # the last has the loss, too: it is the slowest


ORDERS = {"interleaved": "interleaved 1F1B", "zb1p": "ZB1P", "zbv": "ZBV"}
ORDERS |= {"dualpipe": "DualPipe", "dualpipev": "DualPipeV"}
KINDS = {kind: ActionKind("FBIWO".index(kind)) for kind in "FBIWO"}


@pytest.mark.parametrize(("stages", "many"), [(2, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("schedule", ORDERS)
def test_simulated_orders_play_as_in_theory(schedule: str, stages: int, many: int) -> None:
    """The orders that the simulator follows are complete, recognised, and have the bubbles of the papers."""
    made = []
    for stage in range(stages):
        actions = order_of(schedule, stage, stages, many)
        each = [(action.kind, action.part, action.batch) for whole in actions for action in whole.passes()]
        assert len(set(each)) == len(each)
        forwards = {action[1:] for action in each if action[0] == "F"}
        assert len(forwards) == many * (1 if schedule == "dualpipe" else chunks_of(schedule))
        assert sorted(action[1:] for action in each if action[0] in "BI") == sorted(forwards)
        assert {action[1:] for action in each if action[0] == "I"} == {a[1:] for a in each if a[0] == "W"}
        made.append(Passes(*np.array([(KINDS[kind], part, batch) for kind, part, batch, _ in actions], np.int64).T))
    assert recognised([made]) == ORDERS[schedule]
    assert {stage.microbatches for stage in made} == {many}
    once = dict.fromkeys((ActionKind.FORWARD, ActionKind.INPUT, ActionKind.WEIGHT), 1)
    once |= {ActionKind.BACKWARD: 2, ActionKind.OVERLAPPED: 3}
    length = played(made, [{kind: time / chunks_of(schedule) for kind, time in once.items()}] * stages)
    work = 3 * many / (2 if schedule == "dualpipe" else 1)  # half of the microbatches go through each of its parts
    assert length - work == pytest.approx(ideal_bubble(schedule, stages, 1, 1, 1))


@pytest.mark.parametrize(("schedule", "labels"), [
    ("interleaved", "torch"),
    ("interleaved", "megatron"),
    ("interleaved", "none"),
    ("zb1p", "torch"),
    ("zbv", "torch"),
    ("dualpipe", "torch"),
    ("dualpipev", "torch"),
])  # fmt: skip
def test_bubbles_of_schedules_with_several_parts_or_halves(tmp_path: Path, schedule: str, labels: str) -> None:
    stacks = labels == "megatron"
    options = {"schedule": schedule, "stage_labels": labels, "layers": 8, "steps": 1, "stacks": stacks, "jitter": 0.01}
    result = rows(job(tmp_path, **options))
    assert [row.stage for row in result] == [row.rank for row in result] == [0, 1, 2, 3]
    (slowest,) = [row for row in result if row.work_ns == max(row.work_ns for row in result)]
    for row in result:
        assert (row.schedule, row.known_by) == (ORDERS[schedule], "phases" if labels == "none" else "labels")
        assert (row.stage_count, row.microbatch_count, row.chunk_count) == (4, 8, chunks_of(schedule))
        assert abs(row.rest_ns) < 0.03 * row.window_ns
    weights = WEIGHT_SHARE * slowest.backward_ns
    theory = ideal_bubble(schedule, 4, slowest.forward_ns, slowest.backward_ns - weights, weights)
    # by ZBV and DualPipe, forwards and both halves of the backward must take equally long: else the order has another
    in_thirds = schedule in ("zbv", "dualpipe", "dualpipev")
    limit = (0.03 if in_thirds else 0.01) * slowest.window_ns
    assert slowest.theory_ns == pytest.approx(theory, abs=limit)
    assert slowest.bubble_ns == pytest.approx(theory, abs=0.03 * slowest.window_ns)


@pytest.mark.parametrize("schedule", ["zb1p", "zbv", "dualpipev"])
def test_halves_of_the_backward_without_labels_are_no_other_schedule(tmp_path: Path, schedule: str) -> None:
    """Without labels nobody can tell the halves: 1F1B would have a larger bubble than was recorded."""
    for row in rows(job(tmp_path, schedule=schedule, layers=8, steps=1, jitter=0.01)):
        assert (row.schedule, row.theory_ns) == ("unknown", None)
        assert row.bubble_ns == row.imbalance_ns + row.late_send_ns + row.host_ns + row.rest_ns


def test_parts_are_not_read_into_other_orders() -> None:
    for made in (one_f_one_b(4, 8), gpipe(4, 8), zb1p(4, 8)):
        assert all((stage.chunk == -1).all() for stage in parted(made))
    unlabelled = [Passes(stage.kind, np.full(len(stage.kind), -1), stage.microbatch) for stage in interleaved(4, 2, 8)]
    for stage, known in zip(parted(unlabelled), interleaved(4, 2, 8), strict=True):
        assert stage.chunk.tolist() == known.chunk.tolist()


def test_a_first_step_that_lacks_passes_is_no_obstacle(tmp_path: Path) -> None:
    """A recording that begins within a step, on one rank."""
    summaries = job(tmp_path, pp=2, microbatches=2, steps=3)
    table = {name: np.frombuffer(content, np.int64) for name, content in summaries[1].tables["actions"].items()}
    kept = (table["step"] != table["step"].min()) | (table["kind"] != ActionKind.FORWARD)
    assert not kept.all()
    summaries[1].tables["actions"] = {name: column[kept].tobytes() for name, column in table.items()}
    assert {row.step_count for row in rows(summaries)} == {3}


def test_labels_that_overlap_by_a_rounded_nanosecond_are_beside_each_other(tmp_path: Path) -> None:
    job(tmp_path, schedule="1f1b", stage_labels="torch")
    paths = [path for path in sorted(tmp_path.iterdir()) if "truth" not in path.name]
    for path in paths:
        document = load(path)
        labels = [
            each
            for each in document["traceEvents"]
            if each.get("cat") == "user_annotation" and each["name"].startswith(("Forward", "Backward"))
        ]
        labels.sort(key=lambda each: each["ts"])
        for label, following in itertools.pairwise(labels):
            label["dur"] = following["ts"] - label["ts"] + Decimal("0.001")
        save(document, path)
    assert {(row.schedule, row.microbatch_count, row.step_count) for row in rows(summaries_at(paths))} == {
        ("1F1B", 8, 2)
    }


def test_a_slow_stage_is_the_others_bubble(tmp_path: Path) -> None:
    result = rows(job(tmp_path, schedule="1f1b", straggler=1, straggler_factor=1.5, jitter=0.01))
    slow = result[1]
    assert slow.work_ns == max(row.work_ns for row in result)
    assert slow.bubble_ns == min(row.bubble_ns for row in result)
    for row in (result[0], result[2]):
        assert row.work_ns * 1.5 == pytest.approx(slow.work_ns, rel=0.02)
        assert 0.1 * row.window_ns < row.imbalance_ns == max(row.imbalance_ns, slow.imbalance_ns)
        assert abs(row.rest_ns) < 0.03 * row.window_ns


def test_a_late_host_is_told_apart(tmp_path: Path) -> None:
    options = {"schedule": "1f1b", "work": 0.3, "steps": 3}
    stalled = rows(job(tmp_path, **options, host_stall_us=4000.0, host_stall_rank=2))
    assert all(row.by_clocks for row in stalled)
    hosts = [row.host_ns for row in stalled]
    assert hosts[2] > 2_000_000
    assert max(hosts[:2] + hosts[3:]) < hosts[2] / 10


def test_pipelines_of_data_parallel_jobs_are_told_apart(tmp_path: Path) -> None:
    result = rows(job(tmp_path, ranks=4, pp=2, schedule="1f1b"))
    assert [(row.pipeline, row.stage, row.rank) for row in result] == [(0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 3)]


def test_a_kernel_that_receives_is_no_work(tmp_path: Path) -> None:
    """Receives spin most of the bubble: the device is not idle, and yet the stage stands still."""
    summaries = job(tmp_path, schedule="1f1b")
    for row, summary in zip(rows(summaries), summaries, strict=True):
        kinds = [code for code, kind in enumerate(summary.kinds) if kind == "Recv"]
        spun = int((summary.column("end") - summary.column("ts"))[np.isin(summary.column("kind"), kinds)].sum())
        assert spun > row.bubble_ns / 3
        assert row.work_ns + row.bubble_ns == row.window_ns


def test_stretched_jobs_have_stretched_bubbles(tmp_path: Path) -> None:
    before = rows(job(tmp_path / "a", schedule="1f1b"))
    for each, two in zip(before, rows(job(tmp_path / "b", schedule="1f1b", stretch=2.0)), strict=True):
        assert two.bubble_ns == pytest.approx(2 * each.bubble_ns, rel=1e-3)
        assert two.theory_ratio == pytest.approx(each.theory_ratio)


def test_ranks_that_only_send_are_not_taken_for_stages(tmp_path: Path) -> None:
    """As all-to-alls made of sends and receives, of which neither group nor peer is recorded."""
    summaries = job(tmp_path, ranks=2, pp=2, schedule="1f1b")
    for summary in summaries:
        summary.groups = [["", "", "", "", -1, "recorded"] for _ in summary.groups]
        summary.columns = summary.columns | {"peer": np.full(len(summary.column("peer")), -1).tobytes()}
    assert "which ranks are stages" in getattr(answer_to(summaries).outcomes["pipeline"], "reason", "")
    stated = answer_to(summaries, {"pp": 2}).outcomes["pipeline"]
    assert [row.stage for row in sorted(stated.rows, key=lambda row: row.rank)] == [0, 1]


def test_jobs_without_stages_have_no_bubble(tmp_path: Path) -> None:
    outcome = answer_to(job(tmp_path, ranks=2, pp=1, microbatches=1)).outcomes["pipeline"]
    assert "no forward and backward passes" in getattr(outcome, "reason", "")


def test_a_recorded_pipeline_of_pytorch() -> None:
    """Two stages on each of two processes; on the CPU, so that the ranges of actions are the passes."""
    paths = sorted((EXAMPLES / "cpu_pipeline").glob("rank*.json.gz"))
    content = rows([summary_of(AugmentedTrace(read(str(path)), {})) for path in paths])
    assert [(row.rank, row.stage) for row in content] == [(0, 0), (1, 1)]
    for row in content:
        assert (row.schedule, row.known_by) == ("interleaved 1F1B", "labels")
        assert (row.stage_count, row.chunk_count, row.microbatch_count, row.step_count) == (2, 2, 4, 2)
        assert row.theory_ratio == pytest.approx(1 / (2 * 4 + 1))


def timelines(name: str, window: Window | None = None) -> list[RankSummary]:
    paths = job_at(EVIDENCE / name, "pp_rank_*.json.gz")
    return [summary_of(AugmentedTrace(read(str(path)), {}, window)) for path in paths]


def test_the_bubbles_of_primus() -> None:
    """Reference by hand: 1 - sum(forward, backward) / (last end - first start), in iteration 20."""
    summaries = timelines("primus_pp8_1f1b", Window(20, 20, 0))
    assert answer_to(summaries).verdict.text[0].endswith(": their passes are those of one pipeline.")
    result = rows(summaries)
    ratios = [round(100 * row.bubble_ratio, 1) for row in result]
    assert ratios == [36.4, 37.4, 35.0, 36.5, 35.7, 35.0, 36.1, 30.2]
    assert sum(ratios) / 8 == pytest.approx(35.3, abs=0.05)
    assert {row.schedule for row in result} == {"1F1B"}
    assert result[0].theory_ratio == pytest.approx(7 / 23)
    assert result[7].imbalance_ns == min(row.imbalance_ns for row in result)


def test_the_schedule_of_megatron_app() -> None:
    result = rows(timelines("megatronapp_pp4"))
    assert {row.schedule for row in result} == {"interleaved 1F1B"}
    assert {(row.stage_count, row.chunk_count, row.microbatch_count) for row in result} == {(4, 4, 8)}
    assert result[0].theory_ratio == pytest.approx(3 / (4 * 8 + 3))

"""What a job gains if all ranks fix what their devices do: simulated again, changed, and bounded by plain sums."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import truth

from augment import augment, read
from augment.diagnosis.rule import severity_of
from augment.job.answer import Answer, answer
from augment.job.rank_answers import cures, rank_answer
from augment.job.ranks import summarize

CHAINS = {"elchain": 30}
RULE = "elementwise_chains"


def simulated(family: str, seed: int, of_rank: dict[int, dict[str, Any]], *, hz: float = 1.0, **settings: Any) -> Any:
    """A world whose ranks have these faults, by a simulator that shares no code; 0 is what all others have. ``hz``: how
    long hosts take, as a multiple."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    work = truth.drawn(family, seed, {"ranks": 4, **settings})
    programs = [truth._PROGRAMS[family](work, of_rank.get(rank, of_rank[0]), None) for rank in range(work.ranks)]
    world = truth.generator().World(work.ranks, seed=seed, kn=work.noise)
    world.hz = hz
    return world.run(lambda rank: programs[rank.r](rank))


def answered(paths: list[Path]) -> Answer:
    return answer([summarize(augment(read(str(path)), only=["diagnosis"])) for path in paths], [p.name for p in paths])


def written(world: Any, folder: Path) -> list[Path]:
    for rank in world.ranks:
        rank.write(str(folder / f"{rank.r}.json"))
    return [folder / f"{rank.r}.json" for rank in world.ranks]


def share(result: Answer, rule: str = RULE) -> float:
    return result.judgement.fixed_ns[rule] * result.judgement.step_count / result.judgement.recorded_ns


@pytest.mark.parametrize("family", ["ddp", "fsdp"])
@pytest.mark.parametrize("beside", [{}, {"throttle": 1.4}, {"host_gap": (8e3, False)}])
def test_the_gain_is_that_of_a_simulation_without(family: str, beside: dict[str, Any], tmp_path: Path) -> None:
    """Beside a rank with another fault: its device is slow, so that its chains cost the job more than its peers' do; or
    its host stalls, and the other ranks wait for it."""
    worlds = [simulated(family, 6111, {0: each, 1: {**each, **beside}}, reads_loss=True) for each in (CHAINS, {})]
    true = 1 - truth.length(worlds[1]) / truth.length(worlds[0])
    result = answered(written(worlds[0], tmp_path))
    assert share(result) == pytest.approx(true, abs=0.02)
    per_step = result.judgement.fixed_ns[RULE]
    alone = result.summaries[2].own_diagnosis
    (known,) = (row for row in alone.rows if row["rule"] == RULE)
    known["evidence"] = ["100 % of their time comes from model.py:24"]  # by the lines that launched the kernels
    result.summaries[2].diagnosis = zlib.compress(msgspec.msgpack.encode(alone))
    (row,) = (row for row in rank_answer(result, 2).rows if row["rule"] == RULE)
    assert row["evidence"] == known["evidence"]
    for member in range(4):  # each says what its job gains, and no rank its own figure
        (row,) = (row for row in rank_answer(result, member).rows if row["rule"] == RULE)
        assert (row["saved_ns"], row["at_most"]) == (per_step, False)
        assert "Fusing them on all ranks would save" in row["title"]
    is_first = any("Fusing them on all ranks would save" in each for each in cures(result))
    assert is_first == ("throttle" not in beside), "unless the late rank alone would gain the job more"
    assert is_first == result.judgement.label.startswith("On all ranks: Chains of elementwise kernels (a fix saves 2")
    first = result.verdict.text[0].partition(": fixed on all ranks, a mean step would take ")
    assert is_first == (first[0] == "Chains of elementwise kernels")
    assert result.judgement.severity[0] == "high"
    scenarios = {row.scenario: row.gain_ns for row in result.outcomes["job_what_if"].rows}
    assert scenarios[f"{RULE} is fixed on all ranks"] == per_step * result.judgement.step_count


def test_a_host_that_is_the_limit_leaves_no_gain(tmp_path: Path) -> None:
    """Truth: kernels of no length at all gain as little, as a slow host of one rank holds up all of them."""
    fault = {0: CHAINS, 1: CHAINS | {"slowhost": 4.0}}
    world = simulated("ddp", 6112, fault, scale=0.25, reads_loss=True)
    result = answered(written(world, tmp_path))
    assert result.judgement.fixed_ns.get(RULE, 0) < 0.02 * result.judgement.recorded_ns / result.judgement.step_count
    assert not any("on all ranks" in each for each in cures(result))


@pytest.mark.parametrize("family", ["ddp", "fsdp"])
def test_faster_hosts_of_all_ranks_are_told_where_another_host_is_nearly_as_slow(family: str, tmp_path: Path) -> None:
    """Truth: simulated again with rank 1 like its peers, and with hosts that take no time."""
    slow = {0: {}, 1: {"slowhost": 2.0}, 2: {"slowhost": 1.8}}
    settings = {"scale": 0.1, "host": 2.0, "layers": 3, "steps": 5, "reads_loss": False}
    worlds = [
        simulated(family, 12, faults, hz=hz, **settings)
        for faults, hz in ((slow, 1.0), (slow | {1: {}}, 1.0), (slow, 0.02))
    ]
    before, alike, free = (truth.length(world) for world in worlds)
    result = answered(written(worlds[0], tmp_path))
    (row,) = result.verdict.rows
    assert row.rank == 1
    assert row.gain_ns / result.judgement.recorded_ns == pytest.approx(1 - alike / before, abs=0.04)
    of_all = row.figures["all_hosts_ns"] / result.judgement.recorded_ns
    assert 2 * (row.gain_ns / result.judgement.recorded_ns) < of_all == pytest.approx(1 - free / before, abs=0.1)
    assert f"faster ones on all ranks would save up to {100 * of_all:.0f} %." in result.verdict.text[0]
    assert result.judgement.label.startswith(
        f"Faster hosts of all ranks save up to {100 * of_all:.0f} %; rank 1 is late"
    )
    assert result.judgement.severity[0] == severity_of(of_all), "as grave as what is said first"
    assert cures(result)[0].startswith("Hosts of all ranks: Launch many kernels at once")


@pytest.mark.parametrize("count", [1, 3, 4])
def test_it_is_told_of_what_all_ranks_have(count: int, tmp_path: Path) -> None:
    """Metamorphic: fewer ranks have the chains. Then each keeps its own figure, as the rest may decide."""
    world = simulated("ddp", 6113, {rank: CHAINS if rank < count else {} for rank in range(4)})
    result = answered(written(world, tmp_path))
    assert (RULE in result.judgement.fixed_ns) == (count == 4)
    if count == 4:  # all that they have more than the others
        cured = simulated("ddp", 6113, {0: {}})
        assert share(result) == pytest.approx(1 - truth.length(cured) / truth.length(world), abs=0.02)


def test_the_order_and_the_clocks_of_ranks_change_nothing(tmp_path: Path) -> None:
    """Metamorphic."""
    said = []
    for number in range(2):
        world = simulated("fsdp", 6114, {0: CHAINS, 1: {**CHAINS, "throttle": 1.3}})
        paths = list[Path]()
        for rank in world.ranks[:: 1 - 2 * number]:
            rank.r, rank.offset = len(paths), number * (7e6 - 9e5 * len(paths))
            rank.write(str(tmp_path / f"{number}_{rank.r}.json"))
            paths.append(tmp_path / f"{number}_{rank.r}.json")
        said.append(share(answered(paths)))
    assert said[0] == pytest.approx(said[1], abs=0.001)
    assert said[0] > 0.1


@pytest.mark.parametrize("folder", ["control", "test"])
def test_recorded_ranks_gain_no_more_than_their_kernels_take(folder: str, shared_traces: Path) -> None:
    """By plain sums of the files: twice as fast, the FP32 products of no rank take away more than half of their time,
    and a step lasts at least as long as its slowest rank computes then."""
    paths = sorted((shared_traces / "v100_4rank_pair_torchrec" / folder).glob("*.json.gz"))
    if not paths:
        pytest.skip("the job is not at hand")
    result = answered(paths)
    gain, numbers = result.judgement.fixed_ns["matrix_units"], result.judgement.steps.numbers.tolist()
    half, least = [], []
    for path in paths:
        rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        named = {f"ProfilerStep#{number}" for number in numbers}
        spans = [(each["ts"], each["ts"] + each["dur"]) for each in rows if each.get("name") in named and "dur" in each]
        start, end = min(span[0] for span in spans), max(span[1] for span in spans)
        kernels = [
            each for each in rows if each.get("cat", "").lower() == "kernel" and start <= each.get("ts", 0) < end
        ]
        products = sum(each["dur"] for each in kernels if "sgemm" in each["name"])
        others = sum(each["dur"] for each in kernels if not any(of in each["name"] for of in ("sgemm", "nccl")))
        half.append(1e3 * products / 2 / len(numbers))
        least.append(1e3 * (products / 2 + others) / len(numbers))
    assert 0 < gain <= max(half)
    assert result.judgement.recorded_ns / len(numbers) - gain >= 0.98 * max(least)
    or_less = next(text for text in result.verdict.text if "fixed on all ranks" in text) if folder == "test" else ""
    assert ("ms or less instead of" in or_less) == ("(a fix saves at least 4.5 %); rank" in result.judgement.label)
    assert gain == next(row for row in rank_answer(result, 3).rows if row["rule"] == "matrix_units")["saved_ns"]


def converted(paths: list[Path]) -> list[Path]:
    """The same ranks, of whose kernels each third converts the layout of a tensor."""
    for path in paths:
        trace = json.loads(path.read_text())
        kernels = [row for row in trace["traceEvents"] if row.get("cat") == "kernel" and "nccl" not in row["name"]]
        for kernel in kernels[::3]:
            kernel["name"] = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
        path.write_text(json.dumps(trace))
    return paths


def test_what_saves_most_is_first_in_the_sentences_the_label_and_the_cures(tmp_path: Path) -> None:
    """Beside transfers that would save less, though more than any rank that is late."""
    result = answered(converted(written(simulated("moe", 77, {0: {}}), tmp_path)))
    gain = result.judgement.fixed_ns["layout_conversions"] * result.judgement.step_count
    assert 0 < result.judgement.transfers[0] < gain
    assert [text.split(":")[0].split(" that")[0] for text in result.verdict.text][:2] == [
        "Layout conversions",
        "Transfers",
    ]
    assert result.verdict.text[0].endswith(" %), at best.")
    first, second = result.judgement.label.split("; ")
    assert first.startswith("On all ranks: Layout conversions (a fix saves up to ")
    assert second.startswith("exposed communication (a fix saves up to ")
    assert [cure.split(",")[0].split(":")[0] for cure in cures(result)] == ["On all 4 ranks", "Communication"]


def test_it_is_as_sure_as_the_rank_that_is_least_sure(tmp_path: Path) -> None:
    """And only possible if one step is known, between whose ends on the ranks the job spends most."""
    result = answered(written(simulated("ddp", 6113, {0: CHAINS}), tmp_path))
    severities = []
    for least in ("medium", "low"):
        for member in (1, 3):
            alone = result.summaries[member].own_diagnosis
            rows = [{**row, "confidence": least} if row["rule"] == RULE else row for row in alone.rows]
            changed = msgspec.structs.replace(alone, rows=rows)
            result.summaries[member].diagnosis = zlib.compress(msgspec.msgpack.encode(changed))
            packed = [zlib.compress(msgspec.msgpack.encode(each)) for each in result.summaries]
            again = answer(packed, [str(each) for each in range(4)])
            severities.append(again.judgement.severity)
            assert again.verdict.text[0].startswith("Possible: ") == (least == "low")
    assert severities == [("high", "medium")] * 2 + [("high", "low")] * 2


def test_nothing_is_told_where_many_collectives_are_missing(tmp_path: Path) -> None:
    """Then ranks wait for each other, and the replay does not know."""
    paths = written(simulated("ddp", 6113, {0: CHAINS}), tmp_path)
    trace = json.loads(paths[1].read_text())
    kernels = [row for row in trace["traceEvents"] if row.get("cat") == "kernel" and "nccl" in row["name"]]
    gone = {id(row) for row in kernels[::2]}
    trace["traceEvents"] = [row for row in trace["traceEvents"] if id(row) not in gone]
    paths[1].write_text(json.dumps(trace))
    assert answered(paths).judgement.fixed_ns == {}


def test_nothing_is_told_of_a_rank_without_a_trace(tmp_path: Path) -> None:
    """It may have no such finding, and decide as it is."""
    paths = written(simulated("ddp", 6113, {0: CHAINS}), tmp_path)
    assert answered(paths).judgement.fixed_ns
    result = answered(paths[:3])
    assert result.judgement.tells
    assert result.judgement.fixed_ns == {}

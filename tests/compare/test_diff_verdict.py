"""The verdict of a comparison: one or two sentences that are right about the step."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
from test_known_changes import idling, in_us, loading

import augment
import tables
from augment.compare import Diff, diff
from augment.compare.diff_verdict import parts
from augment.compare.gate import GateLimits
from augment.compare.outputs import document
from augment.readers import read
from augment.results.recordings import judged, of_metrics, of_traces
from augment.writers.metrics import encode
from metamorphic import Document, Event, load, save
from simulator import JobOptions, simulate
from traces import event, op, write_trace

JOB = JobOptions(ranks=1, steps=6, layers=2, collectives="none", jitter=0.01)


def compared(folder: Path, **changes: Any) -> Diff:
    ((control, _),) = simulate(JOB, folder / "control")
    ((test, _),) = simulate(dataclasses.replace(JOB, seed=1, **changes), folder / "test")
    return diff(read(str(control)), read(str(test)))


def test_a_slower_loader_is_named(tmp_path: Path) -> None:
    """Also where an operator fetches the batch."""
    jobs = JOB, dataclasses.replace(JOB, seed=1, host_stall_us=3_000.0)
    control, path = (simulate(job, tmp_path / str(job.seed))[0][0] for job in jobs)
    slower = load(path)
    fetches = [each for each in slower["traceEvents"] if each["name"].startswith("enumerate(DataLoader)")]
    slower["traceEvents"] += [each | {"name": "aten::stack", "cat": "cpu_op"} for each in fetches]
    result = diff(read(str(control)), read(str(save(slower, tmp_path / "slower.json"))))
    first, second = result.verdict.text
    assert first.startswith("A mean step is 3")
    assert "slower" in first
    assert "waiting for the host (enumerate(DataLoader)" in second
    assert result.verdict.rows[0].kind == "host_wait"
    sidecar = json.loads(encode(document(result)))
    assert sidecar["verdict"]["text"] == [first, second]


def test_noise_is_no_difference(tmp_path: Path) -> None:
    (first, *_) = compared(tmp_path).verdict.text
    assert first.startswith("No difference beyond noise: ")


@pytest.mark.parametrize("faster", [True, False])
def test_the_direction_is_right(faster: bool, tmp_path: Path) -> None:
    (first, *_) = compared(tmp_path, work=0.7 if faster else 1.4).verdict.text
    assert ("faster" if faster else "slower") in first


def test_equal_traces_are_equal(tmp_path: Path) -> None:
    ((path, _),) = simulate(JOB, tmp_path)
    (said,) = diff(read(str(path)), read(str(path))).verdict.text
    assert said == "No difference: a mean step is as long on both sides."


def test_work_that_moved_between_names_is_no_part() -> None:
    moved = [("aten::mm", 1.0, 10.0), ("AddmmBackward0", 9.0, 1.0), ("aten::add", 1.0, 2.0)]
    (waits, computing) = parts(
        [("host_wait", None, ["aten::item"], 1.0, 6.0), *(("computation", name, [], *sides) for name, *sides in moved)],
        {},
    )
    assert (waits.label, waits.doubt) == ("waiting for the host (aten::item)", "")
    assert (computing.ns, computing.label, computing.doubted_ns) == (2.0, "computing", 8.0)
    assert computing.doubt.endswith("differences cancel, such as +9 ns aten::mm and -8 ns AddmmBackward0")


def test_a_name_that_others_had_is_not_blamed() -> None:
    """Waiting while the host was in what itself took less; work of a name that only one side has."""
    ms = 1e6
    waited = [("host_wait", None, ["loop"], 0, 5 * ms), ("host_wait", None, ["aten::empty"], 2 * ms, ms)]
    (waits,) = parts(waited, {"loop": -ms})
    assert (waits.label, waits.names) == ("waiting for the host", [])
    assert waits.doubt.startswith("the device now waits 5.00 ms while the host is in loop, although that")
    compiled = [("computation", "Compiled", [], 0, 30 * ms), ("computation", "aten::mm", [], 17 * ms, 2 * ms)]
    (computing,) = parts(compiled, {})
    assert computing.label == "computing (mostly Compiled 0 → 30.0 ms)"
    assert computing.doubt.startswith("within computing, Compiled is new in the test, and other names take")
    (new,) = parts(compiled[:1], {})
    assert (new.label, new.doubt) == ("computing (Compiled 0 → 30.0 ms)", "")


def of_lengths(folder: Path, *sides: tuple[int, ...]) -> list[str]:
    """Traces of windows of these lengths, us."""
    paths = []
    for name, lengths in zip(("control", "test"), sides, strict=True):
        starts = zip(accumulate(lengths, initial=0), lengths, strict=False)
        made = ((event("user_annotation", "timed", at, us, 100, 100), op("aten::mm", at, us - 1)) for at, us in starts)
        paths.append(str(write_trace(folder / f"{name}.json", *chain(*made))))
    return paths


def test_a_single_long_step_hides_no_difference(tmp_path: Path) -> None:
    """The verdict says of the means and of the usual steps, by which the gate judges, what each shows."""
    sides = (149_600, 149_800, 149_500, 154_300, 154_500), (126_200, 127_200, 123_100, 163_500, 124_200)
    for order, how in ((sides, "shorter"), (sides[::-1], "longer")):
        said = diff(*of_lengths(tmp_path, *order), region="timed").verdict.text[0]
        assert ", which single steps make uncertain (95 % interval " in said
        assert re.search(rf"of each side it is [0-9.]+ % {how}, beyond noise[.]$", said)


def test_irregular_steps_are_not_judged(tmp_path: Path) -> None:
    """Of an A100: windows of 219, 2.5, 210, 2.4 and 210 ms, without the first."""
    paths = of_lengths(tmp_path, (2500, 210_000, 2400, 210_500), (1200, 1300, 1210, 1290))
    result = diff(*paths, region="timed")
    assert result.verdict.text[0] == (
        "A mean step is 105 ms (98.8 %) faster; the 4 steps are too irregular to judge that (2 to 210 ms "
        "in the control, 1.20 to 1.30 ms in the test)."
    )
    assert result.outcomes["diff_figures"].rows[0].low is None
    assert diff(*paths).verdict.text[-1].endswith("sides can be the steps: --region 'timed' (4 times).")


def test_computing_that_the_step_hides_is_said(tmp_path: Path) -> None:
    """Both: the loader is faster, and computing takes longer."""
    ((control, _),) = simulate(dataclasses.replace(JOB, host_stall_us=30_000.0), tmp_path / "control")
    ((test, _),) = simulate(dataclasses.replace(JOB, seed=1, work=1.3), tmp_path / "test")
    said = " ".join(diff(str(control), str(test)).verdict.text)
    assert re.fullmatch(r"A mean step is .* faster\. .* Computing itself takes .* longer\.", said)


def test_an_outlying_first_step_is_in_no_figure(tmp_path: Path) -> None:
    ((control, _),) = simulate(JOB, tmp_path / "control")
    ((test, _),) = simulate(dataclasses.replace(JOB, seed=1), tmp_path / "test")
    longer = with_compilation(load(test), 0, 60_000)
    longer["traceEvents"][-1]["name"] = "aten::empty"  # which nothing says happens once
    result = diff(str(control), str(save(longer, tmp_path / "longer.json")))
    wall = result.outcomes["diff_figures"].rows[0]
    assert (wall.step_count, len(result.outcomes["diff_steps"].rows)) == (JOB.steps - 1, JOB.steps - 1)
    assert wall.low < wall.delta < wall.high
    assert result.verdict.text[-1].startswith("The first step is an outlier and left out on both sides: in the test ")


def with_compilation(document: Document, number: int, us: int) -> Document:
    """The same recording, in which the host compiles for so long as a step begins."""
    rows = [each for each in document["traceEvents"] if "ts" in each]
    (step,) = (each for each in rows if each["name"] == f"ProfilerStep#{number}" and each["cat"] == "user_annotation")
    moment = step["ts"] + 1

    def later(event: Event) -> Event:
        if "ts" not in event or event["ts"] >= moment:
            return event | ({"ts": event["ts"] + us} if "ts" in event else {})
        covers = event.get("dur") is not None and event["ts"] + event["dur"] > moment
        return event | ({"dur": event["dur"] + us} if covers else {})

    compiling = {"ph": "X", "cat": "cpu_op", "name": "compile_fx.<locals>.fw_compiler_base", "args": {}, "dur": us - 2}
    compiling |= {"ts": moment + 1, "pid": step["pid"], "tid": step["tid"]}
    return document | {"traceEvents": [*map(later, document["traceEvents"]), compiling]}


def test_what_happens_once_is_no_part_of_steps(tmp_path: Path) -> None:
    """Metamorphic: a step that compiles changes nothing that is told of the others."""
    ((control, _),) = simulate(JOB, tmp_path / "control")
    ((test, _),) = simulate(dataclasses.replace(JOB, seed=1, work=1.2), tmp_path / "test")
    compiles = save(with_compilation(load(test), 3, 60_000), tmp_path / "once.json")
    before, after = (diff(read(str(control)), read(str(path))) for path in (test, compiles))
    *text, once = after.verdict.text
    assert once.startswith(
        "Left out on both sides, for what happens once (compilation, capture, first use): step 3 of the control, "
    )
    assert "; step 3 of the test, " in once
    assert [each.count for each in after.diagnostics if each.code == "one_off_steps"] == [1]
    assert "slower." in text[0]
    assert "slower." in before.verdict.text[0]
    for name in ("compute_ns", "wall_ns"):
        changes = [
            next(row for row in result.outcomes["diff_figures"].rows if row.figure == name).change_ratio
            for result in (before, after)
        ]
        assert changes[1] == pytest.approx(changes[0], abs=0.02)
    recordings = [of_traces([read(str(path))], None) for path in (control, test, compiles)]
    (plain, _), (gated, notes) = (judged(recordings[0], each, ("a", "b"), GateLimits()) for each in recordings[1:])
    assert (gated[0].status, notes) == (plain[0].status, [once.removesuffix(".")])
    assert gated[0].change == pytest.approx(plain[0].change, rel=0.1), "the gate leaves it out as well"
    again = save(with_compilation(load(compiles), 1, 60_000), tmp_path / "twice.json")
    assert not diff(read(str(control)), read(str(again))).choice  # of six steps two: it comes again
    longer = with_compilation(load(control), 1, 60_000)
    longer["traceEvents"][-1]["name"] = "aten::empty"  # which nothing says happens once
    kept = save(longer, tmp_path / "kept.json")
    assert not diff(read(str(kept)), read(str(compiles))).choice


def units(path: Path, count: int, us: int, *, annotated: bool = True) -> Path:
    """A recording without steps, of so many units of work within one enclosing range."""
    many = [
        row
        for n in range(count)
        for row in (
            *([event("user_annotation", f"frame {n}", n * us, us - 2, 100, 100)] if annotated else []),
            op("aten::conv2d", n * us + 1, us // 2),
        )
    ]
    return write_trace(path, event("user_annotation", "all", 0, count * us, 100, 100), *many)


@pytest.mark.parametrize(("annotated", "called"), [(True, "'frame *'"), (False, "aten::conv2d")])
def test_recordings_of_unequal_work_do_not_compare(annotated: bool, called: str, tmp_path: Path) -> None:
    paths = [
        units(tmp_path / f"{n}.json", n, us, annotated=annotated) for n, us in ((30, 2000), (10, 1500), (29, 2100))
    ]
    more, fewer, alike = map(str, paths)
    first, how, each = diff(more, fewer).verdict.text
    plain, lengths = called.strip("'"), "60.0 ms and 15.0 ms"
    assert first == (
        f"The recordings are not of equal work (30 and 10 × {plain}): their lengths, {lengths}, do not compare."
    )
    assert how == f"--region {called} compares equal parts."
    assert each.startswith(f"By the number of {plain}, a recording takes 2.00 ms and 1.50 ms (-25.0 %) for each; ")
    compared = diff(more, fewer, region=plain)
    assert (compared.unequal, len(compared.pairs[0].test.steps)) == ([], 10)
    assert diff(more, alike).verdict.text[0].startswith("The recording is 900 µs (1.5 %) slower; ")
    assert (
        "neither side has an annotation" in str([each.message for each in diff(more, fewer).diagnostics])
        or not annotated
    )


def test_the_gate_does_not_pass_recordings_of_unequal_work(tmp_path: Path) -> None:
    """The baseline's metrics, of 30 units, beside traces of as many and of a third as long ones; and of 10 units."""
    made = augment.augment(str(units(tmp_path / "base.json", 30, 2000)))
    control = of_metrics([str(augment.write(made, tmp_path)[-1])])
    for count, us, status in ((30, 2000, "pass"), (30, 6000, "fail"), (10, 6000, "uncertain")):
        test = of_traces([read(str(units(tmp_path / "test.json", count, us)))], None)
        lines, notes = judged(control, test, ("base", "test"), GateLimits())
        assert [line.status for line in lines if line.figure.name == "wall_ns"] == [status]
        assert ("not of equal work: 30 and 10 × frame *; --region compares equal parts" in notes) == (count == 10)


COMPILING = tables.op("backend_compile (dynamo_timed)", 100, 10_100)


@pytest.mark.parametrize(("before", "after", "said"), [
    (loading(300_000), loading(0), "first launches take 300 ms in the control and 0 ns in the test"),
    (loading(0), loading(300_000), "first launches take 0 ns in the control and 300 ms in the test"),
    (loading(0), [*loading(0), COMPILING], "compilation takes 0 ns in the control and 10 ms in the test"),
    ([*loading(60_000), COMPILING], loading(10_000),
     "first launches and compilation take 70 ms in the control and 10 ms in the test"),
    (loading(300_000), loading(100_000), ""),  # both are cold
    (loading(2_000), loading(0), ""),
    (idling(0), [*idling(0), *(tables.op(COMPILING.name, at, at + 500) for at in range(0, 4_200, 1_050))], ""),  # again
    (idling(0), [*idling(0), tables.op(COMPILING.name, 0, 900), tables.op(COMPILING.name, 1_050, 1_950)],
     "compilation takes 0 ns in the control and 1.8 ms in the test"),
])  # fmt: skip
def test_a_cold_run_beside_a_warm_one_is_said(before: list[Any], after: list[Any], said: str) -> None:
    result = diff(in_us(before), in_us(after))
    (first, *_) = result.verdict.text
    assert (first == f"A cold run is compared with a warm one: {said}; compare later steps.") == bool(said), first
    assert ("cold_beside_warm" in {each.code for each in result.diagnostics}) == bool(said)
    assert json.loads(encode(document(result)))["verdict"]["text"][0] == first

"""Logs of PyTorch's compiler, and Inductor's origins of kernels: read, joined with a trace, judged alone."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.analyses import compilations, roofline, source_lines
from augment.core import Skipped, SliceTrack
from augment.core.attachment_kinds import kind_of
from augment.core.records import CompileLog, CompileLogs, GraphOrigins, KernelOrigins
from augment.core.source_code import CodeLine
from augment.diagnosis import rule
from augment.diagnosis.rules import graph_breaks, recompilation
from augment.errors import AugmentError, UnknownFormat
from augment.pipeline import augment as analyse
from augment.readers import read
from augment.readers.attachments.compile_log import failed_guard, graph_break, read_compile_log, read_provenance
from said import problem_of
from tables import annotation, call, kernel, op, rows_of, trace_of
from traces import event, launch, write_trace
from traces import kernel as recorded_kernel

SHARED = Path(__file__).parents[3] / "shared" / "evidence"
DAY_US = 1_700_000_000 * 10**6
BREAK = """Graph break in user code at /w/model.py:4
Graph Break Reason: Encountered graph break when attempting to trace CALL

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print`
  Hint: …

User code traceback:
  File "/w/train.py", line 9, in main
"""
RECOMPILED = """1/0: n == 0        # x = x + n  # w/model.py:10 in forward
User stack trace:
  File "/w/model.py", line 10, in forward
    x = x + n
"""


def record(content: dict[str, Any], payload: object = None) -> str:
    """A record of TORCH_TRACE with its payload, a text or JSON."""
    line = f"V1114 22:13:20.000000 4242 torch/_dynamo/utils.py:2009] {json.dumps(content)}\n"
    text = payload if isinstance(payload, str) else json.dumps(payload, indent=0) if payload is not None else ""
    return line + "".join(f"\t{part}\n" for part in text.splitlines())


def compiled(number: str, begin_us: int, us: int, *more: str, rank: int | None = 0) -> str:
    """The records of one compilation of ``forward`` in model.py, line 3."""
    frame, times = map(int, number.split("/"))
    who: dict[str, Any] = {"frame_id": frame, "frame_compile_id": times, "attempt": 0}
    who |= {} if rank is None else {"rank": rank}
    events = [
        record({"chromium_event": {}, **who}, {"name": name, "ts": at, "ph": phase, "tid": 0})
        for name, at, phase in (
            ("dynamo", begin_us, "B"), ("inductor_compile", begin_us + 5, "B"), ("inductor_compile", begin_us + 9, "E"),
            ("fx_graph_cache_miss", begin_us + 9, "i"), ("dynamo", begin_us + us, "E"),
        )
    ]  # fmt: skip
    metrics = {"co_filename": "/w/model.py", "co_firstlineno": 3, "co_name": "forward", "start_time": 1.0,
               "entire_frame_compile_time_s": 9.0}  # fmt: skip
    return "".join([*events[:-1], *more, record({"compilation_metrics": metrics, **who}), events[-1]])


def artifact(number: str, name: str, payload: object) -> str:
    frame, times = map(int, number.split("/"))
    return record(
        {"artifact": {"name": name, "encoding": "string"}, "frame_id": frame, "frame_compile_id": times}, payload
    )


def write_log(path: Path, *records: str) -> Path:
    path.write_text("".join(records))
    return path


@pytest.mark.parametrize("prefix", ["", "[rank3]:", "[default0]: "])
def test_a_log(tmp_path: Path, prefix: str) -> None:
    path = write_log(
        tmp_path / "any.name",
        record({"str": ["/w/model.py", 0]}),
        compiled("0/0", DAY_US, 1000, artifact("0/0", "dynamo_graph_break_reason", BREAK)),
        artifact("0/1", "recompile_reasons", RECOMPILED),
        compiled("0/1", DAY_US + 5000, 300),
        compiled("0/0", DAY_US + 9000, 200),  # after a reset
        "V1114 22:13:20.000000 4242 torch/a.py:1] {broken\n", "text of others\n",
    )  # fmt: skip
    path.write_text("".join(f"{prefix}{line}\n" for line in path.read_text().splitlines()))
    log = read_compile_log(str(path))
    assert (log.rank, log.unreadable_records) == (0, 1)
    assert log.period == (DAY_US * 1000, (DAY_US + 9200) * 1000)
    first, again, reset = log.compilations
    assert [each.compile_id for each in log.compilations] == ["0/0", "0/1", "0/0"]
    assert [each.compile_ns for each in log.compilations] == [1_000_000, 300_000, 200_000]
    assert first.line == CodeLine("/w/model.py", 3, "forward")
    assert (first.caches, reset.breaks, first.guard) == (["fx_graph_cache_miss"], [], "")
    assert (first.breaks[0].line, again.guard) == (CodeLine("/w/model.py", 4), "n == 0")
    why = "Failed to trace builtin operator: Dynamo does not know how to trace builtin operator `print`"
    assert first.breaks[0].reason == why
    assert again.guard_line == CodeLine("/w/model.py", 10, "forward")


def ahead(*events: tuple[str, str, int], rank: int = 0) -> list[str]:
    """Events of no frame: name, phase and time."""
    return [record({"chromium_event": {}, "rank": rank}, {"name": n, "ph": p, "ts": t, "tid": 0}) for n, p, t in events]


def test_compilations_ahead_of_time(tmp_path: Path) -> None:
    """AOTInductor compiles no frame: its records have no id, nor have those of loading and tuning."""
    begin, times = DAY_US + 50, {"start_time": (DAY_US + 60) / 1e6, "end_time_us": DAY_US + 1060}
    metrics = record({"compilation_metrics": {"co_name": None, **times}, "rank": 0})
    tuning = ahead(("CachingAutotuner.benchmark", "B", DAY_US), ("CachingAutotuner.benchmark", "E", DAY_US + 9))
    inner = ahead(("compile_fx_aot", "B", begin), ("fw_compiler_base", "B", begin + 1), ("fw_compiler_base", "E", 2))
    end = ahead(("compile_fx_aot", "E", begin + 1000))
    path = write_log(tmp_path / "a.log", *tuning, *inner, metrics, *end, *tuning, compiled("0/0", DAY_US, 500), metrics)
    log = read_compile_log(str(path))
    assert [each.compile_id for each in log.compilations] == ["aot", "0/0", "aot"]
    assert [each.compile_ns for each in log.compilations] == [1_000_000, 500_000, 1_000_000]
    assert log.compilations[0].line is None
    said = augment.augment(path).verdict.text
    assert said[0] == "The compiler's log has 3 compilations in 2.5 ms, 2 of them ahead of time (AOTInductor)."
    said = augment.augment(write_log(path, *tuning, *inner, metrics, *end)).verdict.text
    assert said[0] == "The compiler's log has 1 compilation in 1.0 ms ahead of time (AOTInductor)."
    assert augment.augment(write_log(path, *tuning)).verdict.text[0] == "The compiler's log has no compilation."


def test_older_reasons() -> None:
    old = 'Graph break: from user code at:\n  File "/w/a.py", line 7, in f\n    x\nReason: Unsupported: builtin: print'
    expected = ("Unsupported: builtin: print", CodeLine("/w/a.py", 7, "f"))
    assert (graph_break(old).reason, graph_break(old).line) == expected
    assert failed_guard("[\"tensor 'L['x']' size mismatch at index 0. expected 3, actual 4\"]") == (
        "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4", None,
    )  # fmt: skip
    assert failed_guard("") == ("", None)


def test_metrics_alone_say_when(tmp_path: Path) -> None:
    metrics = {
        "co_name": "fn", "co_filename": "a.py", "co_firstlineno": 9, "start_time": 1712154528.0, "fail_type": "E",
        "fail_reason": "raised:\nno\nmore", "entire_frame_compile_time_s": 0.25, "restart_reasons": ["a graph_break"],
    }  # fmt: skip
    who = {"frame_id": 0, "frame_compile_id": 0}
    log = read_compile_log(str(write_log(tmp_path / "a.log", record({"compilation_metrics": metrics, **who}))))
    (only,) = log.compilations
    assert (only.compile_ns, only.failure) == (250_000_000, "E: raised: no")
    assert only.breaks[0].reason == "a graph_break"
    assert log.period == (1712154528 * 10**9, 1712154528 * 10**9 + 250_000_000)


def recording(path: Path, logged: Path) -> Any:
    """Three steps of 1 ms; each runs the region 0/0."""
    events = []
    for number in range(3):
        at = DAY_US + 10_000 + number * 1000
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, 990, 100, 100),
            event("cpu_op", "Torch-Compiled Region: 0/0", at + 10, 200, 100, 100),
            event("cpu_op", "aten::mm", at + 90, 60, 100, 100),
            launch("cuLaunchKernel", at + 20, 5, correlation=3 * number + 1),
            launch("cuLaunchKernel", at + 30, 5, correlation=3 * number + 2),
            launch("cudaLaunchKernel", at + 100, 5, correlation=3 * number + 3),
            recorded_kernel("triton_poi_0", at + 400, 100, correlation=3 * number + 1),
            recorded_kernel("triton_poi_0", at + 500, 200, correlation=3 * number + 2),
            recorded_kernel("ampere_gemm", at + 700, 50, correlation=3 * number + 3),
        ]
    trace = read(str(write_trace(path, *events, distributedInfo={"rank": 0})))
    return augment.with_torch_trace(trace, str(logged))


def stack(line: int) -> str:
    return f'  File "/w/model.py", line {line}, in forward\n    x\n'


def test_a_log_beside_its_trace(tmp_path: Path) -> None:
    stacks = {"triton_poi_0:1": [stack(5), stack(6)], "triton_poi_0:2": [stack(7)], "extern_kernels.mm:3": [stack(8)]}
    log = write_log(
        tmp_path / "trace.log",
        compiled("0/0", DAY_US, 1000, artifact("0/0", "dynamo_graph_break_reason", BREAK)),
        artifact("0/0", "inductor_provenance_tracking_kernel_stack_traces", stacks),
        artifact("1/0", "inductor_provenance_tracking_kernel_stack_traces", {"triton_poi_0:1": [stack(99)]}),
        artifact("1/1", "recompile_reasons", RECOMPILED),
        compiled("1/1", DAY_US + 11_300, 300),
    )
    trace = recording(tmp_path / "a.json", log)
    outcome = compilations.analyze(trace)
    assert rows_of(outcome, "compile_id", "start_ns", "step", "region_count") == [
        ("0/0", -10_000_000, None, 3), ("1/1", 1_300_000, 1, 0),
    ]  # fmt: skip
    (track,) = outcome.annotations  # type: ignore[union-attr]
    assert isinstance(track, SliceTrack)
    assert track.dur.tolist() == [1_000_000, 300_000]
    assert rows_of(source_lines.analyze(trace), "source", "gpu_ns") == [
        ("model.py:7", 600_000), ("model.py:5, 6", 300_000), ("model.py:8", 150_000),
    ]  # fmt: skip
    broken = problem_of(graph_breaks.check(trace))
    assert broken.seen.title(words()) == "Compiled code breaks its graph 1 time per step"
    assert broken.seen.evidence(words())[0].startswith("model.py:4: Failed to trace")
    again = problem_of(recompilation.check(trace))
    assert again.seen.evidence(words()) == ["guard `n == 0` failed (model.py:10)"]


def test_kernels_have_the_work_of_their_graph(tmp_path: Path) -> None:
    """From the text of the log to the table: 64 x 32 floats read and written, and a product of (64, 32) by (32, 16)."""
    graph = """class <lambda>(torch.nn.Module):
    def forward(self, x: "f32[64, 32][32, 1]cuda:0", w: "f32[32, 16][16, 1]cuda:0"):
        relu: "f32[64, 32][32, 1]cuda:0" = torch.ops.aten.relu.default(x);  x = None
        neg: "f32[64, 32][32, 1]cuda:0" = torch.ops.aten.neg.default(relu);  relu = None
        mm: "f32[64, 16][16, 1]cuda:0" = torch.ops.aten.mm.default(neg, w);  w = None
        return (mm,)
"""
    made_of = {"triton_poi_0:1": ["relu"], "triton_poi_0:2": ["neg"], "extern_kernels.mm:3": ["mm"]}
    log = write_log(
        tmp_path / "trace.log",
        compiled("0/0", DAY_US, 1000),
        artifact("0/0", "after_post_grad_graph", graph),
        artifact("0/0", "inductor_provenance_tracking_node_mappings", {"cppCodeToPost": made_of}),
    )
    outcome = roofline.analyze(recording(tmp_path / "a.json", log))
    assert sorted(rows_of(outcome, "operator", "flops", "size_bytes", "count")) == [
        ("extern_kernels.mm", 3 * 2 * 64 * 32 * 16, 3 * 4 * (64 * 32 + 32 * 16 + 64 * 16), 3),
        ("triton_poi_0", None, 6 * 4 * 2 * 64 * 32, 6),
    ]  # fmt: skip
    alone = recording(tmp_path / "a.json", write_log(tmp_path / "b.log", compiled("0/0", DAY_US, 1000)))
    assert isinstance(roofline.analyze(alone), Skipped)


def words() -> Any:
    from augment.core.text import Words

    return Words()


def test_what_is_not_known_is_not_said(tmp_path: Path) -> None:
    """Metamorphic: without breaks, overlap or the rank nothing is blamed; nor is a region of another id."""
    plain = compiled("0/0", DAY_US, 1000)
    trace = recording(tmp_path / "a.json", write_log(tmp_path / "1.log", plain))
    assert isinstance(graph_breaks.check(trace), rule.NotApplicable)
    assert isinstance(recompilation.check(trace), rule.NotApplicable)
    other = compiled("7/0", DAY_US, 1000, artifact("7/0", "dynamo_graph_break_reason", BREAK))
    trace = recording(tmp_path / "a.json", write_log(tmp_path / "2.log", other))
    assert isinstance(graph_breaks.check(trace), rule.Fine)
    early = compiled("0/1", DAY_US - 10**9, 1000)
    trace = recording(tmp_path / "a.json", write_log(tmp_path / "3.log", early))
    assert isinstance(recompilation.check(trace), rule.NotApplicable)
    outcome = compilations.analyze(trace)
    assert "they do not overlap" in (outcome.partial or "")
    assert not outcome.annotations
    trace = recording(tmp_path / "a.json", write_log(tmp_path / "4.log", compiled("0/0", DAY_US, 9, rank=5)))
    outcome = compilations.analyze(trace)
    assert isinstance(outcome, Skipped)
    assert outcome.reason == "the logs of the compiler are of rank 5, the trace of rank 0"


def test_origins_need_as_many_launches_as_sites() -> None:
    lines = {number: (CodeLine("m.py", number),) for number in range(4)}
    graphs = [GraphOrigins("", {"k:1": lines[1], "k:2": lines[2]}), GraphOrigins("5/5", {"k:1": lines[3]})]
    events = [
        annotation("s", 0, 1000), op("Torch-Compiled Region: 0/0", 0, 100),
        call("cuLaunchKernel", 10, 11, correlation=1), kernel("k", 200, 210, correlation=1),
        op("Torch-Compiled Region: 0/0", 300, 400),
        call("cuLaunchKernel", 310, 311, correlation=2), kernel("k", 400, 410, correlation=2),
        call("cuLaunchKernel", 320, 321, correlation=3), kernel("k", 410, 420, correlation=3),
        call("cuLaunchKernel", 500, 501, correlation=4), kernel("k", 600, 610, correlation=4),
    ]  # fmt: skip
    rows = rows_of(source_lines.analyze(trace_of(*events, beside=[KernelOrigins(graphs)])), "source", "gpu_ns")
    assert sorted(rows) == [("m.py:1", 10), ("m.py:1, 2", 10), ("m.py:1, 2, 3", 10), ("m.py:2", 10)]


def test_a_folder_of_inductor(tmp_path: Path) -> None:
    folder = tmp_path / "tl" / "-_1_0_0"
    folder.mkdir(parents=True)
    (folder / "inductor_provenance_tracking_node_mappings_9.json").write_text('{"preToPost": {}, "cppCodeToPost": {}}')
    with pytest.raises(UnknownFormat, match="node mappings alone name no lines"):
        read_provenance(str(tmp_path))
    path = folder / "inductor_provenance_tracking_kernel_stack_traces_10.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"k:1": {"stack_traces": [stack(3)]}, "other": 7}).encode()))
    expected = GraphOrigins("1/0", {"k:1": (CodeLine("/w/model.py", 3, "forward"),)})
    assert read_provenance(str(tmp_path)).graphs == [expected]
    assert kind_of(b'{"preToPost": {') == kind_of(json.dumps({"k:1": [stack(3)]}).encode())


@pytest.mark.parametrize("value", ["9" * 9, True, [1], {"a": 1}, 1e300, -1, None, "x"])
def test_odd_numbers_cost_their_record(tmp_path: Path, value: object) -> None:
    metrics = {"co_name": "fn", "start_time": value, "entire_frame_compile_time_s": value}
    lines = [record({"compilation_metrics": metrics, "frame_id": 0, "frame_compile_id": 0}), compiled("1/0", DAY_US, 9)]
    assert read_compile_log(str(write_log(tmp_path / "a.log", *lines))).compilations[-1].compile_ns == 9000


def test_alone(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", artifact("0/1", "recompile_reasons", RECOMPILED), compiled("0/1", DAY_US, 1000))
    augmented = analyse(str(log))
    assert augmented.verdict.text[1] == "1 compilation again, as a guard failed: `forward` for `n == 0`."
    assert len(augmented["compilations"]) == 1


BITS = (b"", b"\t", b"}", b"\n", b"1e999", b"null", b"[" * 2000, b"\xff", b'"x"', b"-1")


def mutated(text: bytes, chance: random.Random) -> bytes:
    pieces = bytearray(text)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(pieces))
        pieces[place : place + chance.randint(0, 30)] = chance.choice(BITS)
    return bytes(pieces)


def test_damaged_logs_raise_nothing_else(tmp_path: Path) -> None:
    stacks = artifact("0/0", "inductor_provenance_tracking_kernel_stack_traces", {"k:1": [stack(1)]})
    broken = artifact("0/0", "dynamo_graph_break_reason", BREAK)
    text = "".join(
        [compiled("0/0", DAY_US, 9, broken), artifact("0/1", "recompile_reasons", RECOMPILED), stacks]
    ).encode()
    path = tmp_path / "a.log"
    for seed in range(300):
        path.write_bytes(mutated(text, random.Random(seed)))
        try:
            log = read_compile_log(str(path))
        except AugmentError:
            continue
        assert isinstance(log, CompileLog)
        compilations.analyze(trace_of(beside=[CompileLogs((log,))]))


@pytest.mark.parametrize("path", sorted((SHARED / "torch_trace").rglob("*.gz")), ids=lambda path: path.name)
def test_real_logs_agree_with_plain_python(path: Path) -> None:
    """Compilations by id and their time, of the outermost events of each id, taken line by line."""
    spent: Counter[str] = Counter()
    depth: Counter[str] = Counter()
    seen: list[str] = []
    head, payload = None, list[str]()
    lines = [*gzip.decompress(path.read_bytes()).decode("utf-8", "replace").split("\n"), "V end"]
    for line in lines:
        if line.startswith("\t"):
            payload.append(line[1:])
        elif line[:1] in "VIW" and line:
            if head and '"chromium_event"' in head and '"frame_id"' in head:
                try:
                    who, what = json.loads(head[head.index("{") :]), json.loads("\n".join(payload))
                except ValueError:
                    who, what = {}, {}
                if who and what["ph"] in "BE":
                    number, sign = f"{who['frame_id']}/{who['frame_compile_id']}", 1 if what["ph"] == "B" else -1
                    if depth[number] == (0 if sign == 1 else 1):
                        spent[number] -= sign * round(what["ts"] * 1000)
                        seen += [number] if sign == 1 and what["name"] == "dynamo" else []
                    depth[number] += sign
            head, payload = line, []
    try:
        log = read_compile_log(str(path))
    except UnknownFormat:
        assert not spent
        return
    if spent:
        taken: Counter[str] = Counter()
        for each in log.compilations:
            taken[each.compile_id] += each.compile_ns
        assert taken == spent
        assert Counter(each.compile_id for each in log.compilations) == Counter(seen)

"""What work costs, counted: bytes that are decompressed and compressed, and bytes of memory for each event.

Unlike times, these are the same in every run. A bound is what was measured with some room: who lowers a cost lowers
its bound, and who must raise one says why.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from augment import AugmentedTrace, Trace, augment, read
from augment.analyses import ANALYSES
from augment.arrays.columns import PackedColumn
from augment.batch.conversion import Progress, RunPlan, convert
from augment.batch.inputs import Input
from augment.cli.registry import group
from augment.facts.names import LOOKED_AT, KernelType, strings_where, type_of
from augment.pipeline.request import Request
from augment.readers import containers
from augment.writers import chrome, compression, metrics, perfetto, write_seamed
from augment.writers.perfetto.packets import ArgsEncoder
from traces import Event, copy, kernel, launch, op, step

pytestmark = pytest.mark.slow

STEPS, LAUNCHES = 16, 1000
#: most bytes at the peak of each stage beyond what is held before, and of the columns that reading leaves; the peak of
#: analyses is that of the diagnosis, which tells the parts of the wait for launches (here each stretch is in one)
MOST = {"reading": 30_500_000, "columns": 1_100_000, "analyses": 14_800_000, "writing": 6_300_000, "native": 24_000_000}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 16 steps of 1000 launches, with operators, runtime calls, kernels and copies: flushed once, too."""
    events: list[Event] = []
    for number in range(STEPS):
        begin = number * 40 * LAUNCHES
        events.append(step(number, begin, 40 * LAUNCHES))
        for each in range(LAUNCHES):
            ts, correlation = begin + 40 * each, number * LAUNCHES + each + 1
            events.append(op(f"aten::op{each % 17}", ts + 1, 20))
            if each % 10:
                events.append(launch("cudaLaunchKernel", ts + 5, 8, correlation=correlation))
                events.append(kernel(f"kernel{each % 29}", ts + 15, 25, correlation=correlation))
            else:
                events.append(launch("cudaMemcpyAsync", ts + 5, 8, correlation=correlation))
                events.append(copy("Memcpy HtoD", ts + 15, 20, correlation=correlation))
    result = tmp_path_factory.mktemp("costs") / "t.json.gz"
    with gzip.open(result, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write(json.dumps({"traceEvents": events}))
    return result


class Counted:
    """A compressor or decompressor that counts what it gives or gets."""

    def __init__(self, inner: Any, count: Callable[[int], None]) -> None:
        self._inner, self._count = inner, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decompress(self, *args: Any) -> bytes:
        data: bytes = self._inner.decompress(*args)
        self._count(len(data))
        return data

    def compress(self, data: Any) -> Any:
        self._count(len(data))
        return self._inner.compress(data)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes of text that are decompressed ("in") and compressed ("out") from now on."""
    done: Counter[str] = Counter()
    decompressor, fastest = containers._gzip_decompressor, compression.fastest

    def inflating() -> Any:
        make, error = decompressor()
        return lambda: Counted(make(), lambda size: done.update({"in": size})), error

    def deflating(bits: int) -> Any:
        crc32, compressor = fastest(bits)
        return crc32, Counted(compressor, lambda size: done.update({"out": size}))

    monkeypatch.setattr(containers, "_gzip_decompressor", inflating)
    monkeypatch.setattr(compression, "fastest", deflating)
    return done


@pytest.mark.parametrize("only", [(), ("temporal_breakdown",)])
def test_the_text_is_decompressed_once_and_only_its_end_compressed_again(
    path: Path, work: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only: tuple[str, ...]
) -> None:
    monkeypatch.setattr(chrome, "SPLICED_FROM", 0)
    trace = read(str(path))
    chrome.write(augment(trace, only=only), tmp_path / "out")
    size = trace.source.text_bytes
    assert work["in"] == size
    assert work["out"] - (len(gzip.decompress((tmp_path / "out").read_bytes())) - size) < 1 << 20


def peak(work: Callable[[], Any]) -> tuple[Any, int]:
    """The result of ``work``, and the most memory that it took beyond what was held before."""
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    return work(), tracemalloc.get_traced_memory()[1] - held


def column_bytes(value: Any) -> int:
    """The size of all arrays in a table of events."""
    if isinstance(value, np.ndarray | PackedColumn):
        return value.nbytes
    parts = value.values() if isinstance(value, dict) else [getattr(value, s) for s in getattr(value, "__slots__", ())]
    return sum(map(column_bytes, parts))


def test_args_of_the_same_rows_share_them(tmp_path: Path) -> None:
    events = []
    for number in range(100):
        events.append(op("aten::mm", 20 * (number ^ 1), 9))
        events[-1]["args"] |= {"Input Dims": [[number, 2]], "Input type": ["float"], "Sequence number": number}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    args = read(str(tmp_path / "t.json")).events.args
    dims, types = args["Input Dims"].others, args["Input type"].others
    assert len(dims.rows) == 100
    assert dims.rows is types.rows is args["Sequence number"].numbers.rows
    assert dims.values.dtype == np.int32


def test_memory_for_each_event(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.pipeline.THREADS_FROM", 0)  # as for a large trace
    augment(read(str(path)))  # what is loaded at the first call is not counted
    tracemalloc.start()
    try:
        trace, reading = peak(lambda: read(str(path)))
        augmented, analysing = peak(lambda: augment(trace, later="writing"))
        _, writing = peak(lambda: written(augmented, tmp_path))
        _, native = peak(lambda: perfetto.write(augmented, tmp_path / "native"))
    finally:
        tracemalloc.stop()
    result = {"reading": reading, "columns": column_bytes(trace.events), "analyses": analysing}
    result |= {"writing": writing, "native": native}
    assert len(trace.events) == STEPS * (3 * LAUNCHES + 1)
    assert all(result[name] <= MOST[name] for name in MOST), result


def written(augmented: AugmentedTrace, folder: Path) -> None:
    chrome.write(augmented, folder / "chrome")
    metrics.write(augmented, folder / "metrics")


def test_one_long_text(tmp_path: Path) -> None:
    """A name is judged by its beginning, and a member takes no memory beyond a few times its text."""
    path, letters = tmp_path / "long.json", 1_000_000
    work = {"ph": "X", "cat": "kernel", "name": "k" * letters, "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    work["args"] = {"stream": 7}
    path.write_text(json.dumps({"hostname": "h" * letters, "traceEvents": [work]}))
    tracemalloc.start()
    try:
        trace, reading = peak(lambda: read(str(path)))
    finally:
        tracemalloc.stop()
    assert reading < 30 * letters
    lengths: list[int] = []
    strings_where(trace, lambda name: lengths.append(len(name)))
    assert max(lengths) == LOOKED_AT < letters
    assert type_of("x" * LOOKED_AT + "ncclKernel") == KernelType.COMPUTATION


def test_packets_are_written_again_without_decoding_each(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python sees a packet with a key or a value that was not met before, and no other."""
    perfetto.write(AugmentedTrace(read(str(path)), {}), tmp_path / "native")
    trace = read(str(tmp_path / "native"))
    encoded, encode = 0, ArgsEncoder.args

    def counted(encoder: ArgsEncoder, args: Any) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(encoder, args)

    monkeypatch.setattr(ArgsEncoder, "args", counted)
    perfetto.write(AugmentedTrace(trace, {}), tmp_path / "again")
    assert encoded < 100
    assert read(str(tmp_path / "again")).source.text_bytes == trace.source.text_bytes


def test_showing_a_sidecar_reads_no_trace(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = tmp_path / "t.metrics.json"
    metrics.write(augment(read(str(path)), only=("temporal_breakdown",)), sidecar)

    def refuse(*_: Any, **__: Any) -> Trace:
        raise AssertionError("a trace is read")

    monkeypatch.setattr("augment.readers.read", refuse)
    monkeypatch.setattr("augment.pipeline.augment", refuse)
    shown = CliRunner().invoke(group(), ["show", str(sidecar), "--json"], standalone_mode=False)
    assert not shown.exception
    assert "temporal_breakdown" in json.loads(shown.stdout)


def test_a_cheap_analysis_makes_no_dear_facts(path: Path) -> None:
    """Neither the critical path nor the args of operators are made for what needs neither."""
    trace = read(str(path))
    augment(trace, only=("temporal_breakdown", "kernel_type_breakdown", "queue_length"))
    dear = ("critical", "diagnosis", "operators", "memory", "source.arg_columns", "host.")
    made = [name for name in trace.context.facts if any(f".{part}" in name for part in dear)]
    assert not made
    assert len(ANALYSES) > 3


def test_conversion_forgets_facts_that_no_writer_asks_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took a fifth of the peak of memory; what is left is not computed again."""
    known: list[dict[str, Any]] = []

    def write(augmented: AugmentedTrace, folder: Path, *rest: Any) -> Any:
        known.append(dict(augmented.trace.context.facts))
        written = write_seamed(augmented, folder, *rest)
        known.append(dict(augmented.trace.context.facts))
        return written

    monkeypatch.setattr("augment.pipeline.THREADS_FROM", 0)  # as for a large trace
    monkeypatch.setattr("augment.writers.write_seamed", write)
    plan = RunPlan(Request(formats=("chrome", "perfetto")))
    result = convert(Input(str(path), str(path.parent / "out"), named=True), plan, Progress())
    assert result.status == "augmented", result.message
    before, after = known
    assert "augment.facts.critical.critical_graph.critical_graph" not in before
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_a_file_alone_loads_nothing_of_jobs_and_comparisons(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"deviceProperties": [], "traceEvents": [step(0, 0, 9)]}))
    command = [sys.executable, "-X", "importtime", "-m", "augment", "run", str(tmp_path / "t.json")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "augment.writers.perfetto" in loaded
    assert "augment.job.answer" not in loaded
    assert "augment.compare" not in loaded

"""Facts are computed once, go after the stage that they name, and no stage requests one that is gone."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from augment import AugmentedTrace, Findings, LimitExceeded, MalformedTrace, Trace, augment, pipeline, read
from augment.analyses import ANALYSES
from augment.core import STAGES, Context, ExecutionNodes, Flows, Stage, derived, tables_of
from augment.core.attachments import Tables
from augment.core.context import UNTIL
from augment.core.threads import Threads
from augment.facts.source import event_args
from augment.job.ranks import drawn_under, summarize
from augment.pipeline import STAGE_OF
from augment.readers import chrome as chrome_reader
from augment.readers import containers, members
from augment.readers.limits import Limits
from augment.writers import chrome, metrics, perfetto, write_seamed
from augment.writers.perfetto.packets import Part
from augment.writers.perfetto.tracks import Tracks
from tables import op, trace_of
from traces import SIMULATED


@derived
def lowest(trace: Trace) -> int:
    return len(trace.events)


@derived(until="rules")
def middle(trace: Trace) -> int:
    return lowest(trace)


class Record(dict[str, Any]):
    """Facts, with a count of how often each was computed, and the last stage that requested it."""

    def __init__(self) -> None:
        self.computed: Counter[str] = Counter()
        self.last: dict[str, Stage] = {}
        self.stage: Stage = STAGES[0]
        self.events = 1

    def __setitem__(self, key: str, value: Any) -> None:
        self.computed[key] += 1
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        self.last[key] = self.stage
        return super().get(key, default)


def run(path: Path, facts: Record, folder: Path, **options: Any) -> AugmentedTrace:
    """A conversion in all its stages."""
    trace = read(str(path))
    facts.events = len(trace.events)
    augmented = augment(replace(trace, context=Context(facts=facts)), later="summary", **options)
    summarize(augmented)
    drawn_under(augmented)
    augmented.trace.context.begin("writing")
    write_seamed(augmented, folder, ("chrome", "perfetto"))
    return augmented


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are dropped as of a large trace."""
    monkeypatch.setattr(pipeline, "THREADS_FROM", 0)


@pytest.fixture
def used(large: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Record]:
    """The facts of every simulated trace. None was dropped: what counts is who requested them last."""
    begin, records = Context.begin, [Record() for _ in SIMULATED]

    def note(context: Context, stage: Stage) -> None:
        assert isinstance(context.facts, Record)
        context.facts.stage = stage

    monkeypatch.setattr(Context, "begin", note)
    for path, record in zip(SIMULATED, records, strict=True):
        run(path, record, tmp_path)
    monkeypatch.setattr(Context, "begin", begin)
    return records


def test_facts_go_after_the_last_stage_that_requests_them(used: list[Record]) -> None:
    last: dict[str, Stage] = {}
    for record in used:
        last |= {key: stage for key, stage in record.last.items() if is_later(stage, last.get(key, STAGES[0]))}
    assert len(last) > 70
    late = {key: (UNTIL[key], stage) for key, stage in last.items() if key in UNTIL and is_later(stage, UNTIL[key])}
    assert not late, "a stage requests a fact that is gone: say @derived(until=) of this stage"
    grows = {key for record in used for key, value in record.items() if bytes_of(value) > record.events}
    kept = {key: last[key] for key in grows if key not in UNTIL and last[key] != STAGES[-1]}
    assert not kept, "a large fact is kept for nothing: say @derived(until=) of this stage"


def is_later(stage: Stage, than: Stage) -> bool:
    return STAGES.index(stage) > STAGES.index(than)


def bytes_of(value: Any) -> int:
    """The arrays in a fact."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple | list):
        return sum(map(bytes_of, value))
    names = {*getattr(value, "__slots__", ()), *getattr(value, "__dict__", ())}
    return sum(bytes_of(getattr(value, name, None)) for name in names)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", SIMULATED[:2], ids=lambda path: path.name[:5])
def test_facts_are_dropped_and_computed_once(path: Path, threads: int, large: None, tmp_path: Path) -> None:
    kept, facts = augment(read(str(path))), Record()
    dropped = run(path, facts, tmp_path, threads=threads)
    assert metrics.encode(metrics.document(dropped)) == metrics.encode(metrics.document(kept))
    assert max(facts.computed.values()) == 1
    assert len(facts.computed) > 70 > 51 > len(facts)


def test_arrows_of_a_part_lead_to_rows_of_the_whole(large: None) -> None:
    """Dropping facts must not drop where the part's rows are in the whole."""
    trace = read(str(SIMULATED[0]))
    assert any(ends_of(trace, None))
    assert ends_of(trace, "writing") == ends_of(trace, None)


def ends_of(trace: Trace, later: Any) -> list[list[int]]:
    """The rows at which arrows begin."""
    outcomes = augment(trace.changed(), steps=(2, 2), later=later).outcomes.values()
    drawn = [each for outcome in outcomes if isinstance(outcome, Findings) for each in outcome.annotations]
    return [each.out.rows.tolist() for each in drawn if isinstance(each, Flows) and not each.out.track]


def test_what_is_requested_later_is_kept() -> None:
    trace = trace_of(op("a", 0, 10))
    assert middle(trace) == 1
    facts = trace.context.facts
    trace.context.begin("rules")
    assert facts == {f"{__name__}.middle": 1, f"{__name__}.lowest": 1}
    trace.context.begin("operations")
    assert facts == {f"{__name__}.lowest": 1}
    assert middle(trace) == 1


def test_a_changed_trace_has_its_attachments_and_no_facts() -> None:
    trace = trace_of(op("a", 0, 10), beside=[ExecutionNodes([])])
    assert lowest(trace) == 1
    other = trace.changed(Tables({"peak": []}), partial="cut off")
    assert other.partial == "cut off"
    assert not other.context.facts
    assert trace.context.facts
    assert other.context.attached(ExecutionNodes) is trace.context.attached(ExecutionNodes)
    assert (tables_of(trace), tables_of(other)) == ({}, {"peak": []})


def test_a_context_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(Context([Tables({})], {"a": 1}, Threads(4))))
    assert (again.attached(Tables), again.facts, again.threads.count) == (Tables({}), {"a": 1}, 1)
    assert again.lock("x") is again.lock("x")


def test_analyses_of_stages_exist() -> None:
    assert {*STAGE_OF} <= {analysis.NAME for analysis in ANALYSES}
    assert {*STAGE_OF.values(), *UNTIL.values()} <= {*STAGES}


# Several threads: each fact is computed once, and outputs do not depend on how many there are.
COMPUTED: list[str] = []


@derived
def below(trace: Trace) -> int:
    time.sleep(0.01)
    COMPUTED.append("below")
    return len(trace.events)


@derived
def left(trace: Trace) -> int:
    COMPUTED.append("left")
    return below(trace) + 1


@derived
def right(trace: Trace) -> int:
    COMPUTED.append("right")
    return below(trace) + 2


@derived
def failing(trace: Trace) -> int:
    COMPUTED.append("failing")
    raise ValueError("no such fact")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}))
    return read(str(path))


def test_a_fact_is_computed_once_whoever_asks(trace: Trace) -> None:
    COMPUTED.clear()
    start = threading.Barrier(8)

    def ask(number: int) -> int:
        start.wait()
        return (left if number % 2 else right)(trace)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [3, 2] * 4
    assert sorted(COMPUTED) == ["below", "left", "right"]


def test_a_fact_that_fails_is_tried_again(trace: Trace) -> None:
    COMPUTED.clear()
    for _ in range(2):
        with pytest.raises(ValueError, match="no such fact"):
            failing(trace)
    assert COMPUTED == ["failing", "failing"]


def outputs(path: Path, threads: int, folder: Path) -> list[bytes]:
    return written(augment(read(str(path), threads=threads), threads=threads), folder / str(threads))


def written(augmented: AugmentedTrace, folder: Path) -> list[bytes]:
    folder.mkdir(exist_ok=True)
    for writer, name in ((chrome, "a"), (perfetto, "b"), (metrics, "c")):
        writer.write(augmented, folder / name)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_outputs_are_those_of_a_single_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "THREADS_FROM", 0)
    monkeypatch.setattr(containers, "AHEAD_FROM", 0)
    for path in SIMULATED:
        alone = outputs(path, 1, tmp_path)
        assert outputs(path, 2, tmp_path) == alone
        assert outputs(path, 7, tmp_path) == alone


def test_blocks_are_written_while_the_next_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks, each with args that the earlier ones do not have."""
    monkeypatch.setattr(containers, "AHEAD_FROM", 0)
    monkeypatch.setattr(containers, "CHUNK", 1 << 12)
    monkeypatch.setattr(event_args, "_BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(perfetto, "PACKED_BYTES", 1 << 13)
    events = [{"ph": "X", "name": f"k{i % 99}", "pid": 1, "tid": 1, "ts": i, "dur": 1, "args": {f"a{i // 50}": i}}
              for i in range(2000)]  # fmt: skip
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    files = []
    for threads in (1, 2):
        trace = read(str(path), threads=threads)
        perfetto.write(AugmentedTrace(trace, {}), tmp_path / "out")
        files.append((tmp_path / "out").read_bytes())
    assert files[0] == files[1]

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() > 1 << 12:
                raise OSError(28, "full")
            return super().write(data)

    with pytest.raises(OSError, match="full"):
        perfetto.write_part(AugmentedTrace(trace, {}), Full(), Tracks(trace), Part())


def test_the_error_of_an_analysis_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "THREADS_FROM", 0)
    trace = read(str(SIMULATED[0]))

    def broken(trace: Trace, analysis: object, options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline, "_outcome", broken)
    with pytest.raises(ZeroDivisionError):
        augment(trace, threads=2)


def test_progress_is_told_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "THREADS_FROM", 0)
    output: list[tuple[str, int, int]] = []
    augment(read(str(SIMULATED[0])), threads=3, progress=lambda *item: output.append(item))
    assert [done for _, done, _ in output] == list(range(len(ANALYSES)))
    assert {name for name, _, _ in output} == {analysis.NAME for analysis in ANALYSES}


@pytest.mark.parametrize("cut", [None, 3000])
def test_text_that_is_read_ahead_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int | None) -> None:
    monkeypatch.setattr(containers, "AHEAD_FROM", 0)
    path = tmp_path / "t.json.gz"
    events = [{"ph": "X", "name": f"k{i}", "pid": 1, "tid": 1, "ts": i * 7919 % 10007, "dur": 1} for i in range(2000)]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode())[:cut])
    alone, ahead = read(str(path)), read(str(path), threads=2)
    assert np.array_equal(alone.events.ts, ahead.events.ts)
    assert alone.partial == ahead.partial
    assert alone.source.sha256 == ahead.source.sha256
    assert alone.source.text.gzip_tail == ahead.source.text.gzip_tail
    assert alone.diagnostics == ahead.diagnostics
    texts = [b"".join(map(bytes, trace.source.text.chunks())) for trace in (alone, ahead)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == alone.source.text_bytes
    assert ahead.args_of(np.arange(1)) == [{}]  # gives up the text in its midst
    assert "augment-read-ahead" not in [thread.name for thread in threading.enumerate()]


def test_no_thread_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a text that is too long, nor by one that is given up in its midst."""
    monkeypatch.setattr(containers, "AHEAD_FROM", 0)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (32 << 20) + b"]}"))
    with pytest.raises(LimitExceeded):
        read(str(path), limits=Limits(text_bytes=20 << 20), threads=2)
    with containers.open_text(str(path)) as text:
        text.read(10)
        text.read_ahead()
        assert len(text.read(100)) == 100
    assert "augment-read-ahead" not in [thread.name for thread in threading.enumerate()]


def test_calls_of_calls_run_side_by_side_and_give_results_in_order() -> None:
    threads = Threads(3)
    began: set[int] = set()
    together = threading.Barrier(3)

    def inner(number: int) -> int:
        if number < 3:  # of one call alone: of two, a third thread may take the last of one, and its own then waits
            together.wait(120)  # passes only if three threads are here
        began.add(threading.get_ident())
        return number

    def outer(number: int) -> list[int]:
        return threads.all([partial(inner, 10 * number + each) for each in range(3)])

    assert threads.all([partial(outer, 0)]) == [[0, 1, 2]]
    assert threads.all([partial(outer, number) for number in (1, 2)]) == [[10, 11, 12], [20, 21, 22]]
    assert threading.get_ident() in began


def test_calls_of_a_single_thread_are_made_in_order() -> None:
    made: list[int] = []
    Threads(1).all([partial(made.append, number) for number in range(5)])
    assert made == list(range(5))


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_error_is_raised_when_no_call_runs_any_more(count: int) -> None:
    running: list[int] = []

    def fail(number: int) -> None:
        running.append(number)
        try:
            time.sleep(0.001)
            raise ValueError(str(number))
        finally:
            running.remove(number)

    with pytest.raises(ValueError, match="0"):
        Threads(count).all([partial(fail, number) for number in range(count)])
    assert not running


def test_threads_that_are_pickled_are_one() -> None:
    assert pickle.loads(pickle.dumps(Threads(4))).count == 1


LONG = [{"ph": "X", "name": "n" * (i * 37 % 900), "pid": 1, "tid": 1, "ts": i, "dur": 1} for i in range(300)]
WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": LONG, "more": "m" * 3000})


@pytest.mark.parametrize(
    "text", [WHOLE, WHOLE[:90_000], WHOLE + " trailing", WHOLE[:-3], WHOLE.replace('"more"', "more"), "[" + " " * 5000]
)
@pytest.mark.parametrize("headroom", [16, 1 << 10])
def test_text_in_filled_blocks_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, headroom: int
) -> None:
    """Events that are longer and shorter than the room for what is left of a block, whole and damaged texts."""
    monkeypatch.setattr(containers, "AHEAD_FROM", 0)
    monkeypatch.setattr(chrome_reader, "CHUNK_BYTES", 1 << 9)
    monkeypatch.setattr(members, "_HEADROOM", headroom)
    for name, content in (("t.json", text.encode()), ("t.json.gz", gzip.compress(text.encode()))):
        path = tmp_path / name
        path.write_bytes(content)
        alone, ahead = read(str(path)), read(str(path), threads=2)
        assert np.array_equal(alone.events.offset[:], ahead.events.offset[:])
        assert list(alone.strings) == list(ahead.strings)
        assert (alone.partial, alone.diagnostics) == (ahead.partial, ahead.diagnostics)
        assert alone.source.insert_at == ahead.source.insert_at
        assert alone.source.text_bytes == ahead.source.text_bytes
        assert alone.source.metadata == ahead.source.metadata
        assert alone.source.text.gzip_tail == ahead.source.text.gzip_tail
    assert "augment-read-ahead" not in [thread.name for thread in threading.enumerate()]


def test_broken_text_in_filled_blocks_is_refused_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "AHEAD_FROM", 0)
    monkeypatch.setattr(chrome_reader, "CHUNK_BYTES", 1 << 9)
    path = tmp_path / "t.json"
    path.write_text(WHOLE.replace('{"ph"', "<<<<<<< ours", 100).replace("<<<<<<< ours", '{"ph"', 99))
    errors = []
    for threads in (1, 2):
        with pytest.raises(MalformedTrace) as raised:
            read(str(path), threads=threads)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    assert "augment-read-ahead" not in [thread.name for thread in threading.enumerate()]

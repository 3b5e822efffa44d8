"""What every registered analysis, reader and writer must keep; nothing here counts or names them."""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from augment.analyses import ANALYSES, options_of
from augment.compare.diff_rows import ROWS as OF_DIFF
from augment.core import old_names, records
from augment.core.annotations import Annotation, CounterTrack, Flows, InstantTrack, SliceTrack, row_count
from augment.core.attachments import RequestSpans, Tables
from augment.core.findings import UNITS, AugmentedTrace, Column, Skipped, columns_of
from augment.core.output_files import stem
from augment.core.source_code import CodeLine
from augment.core.trace import COMPLETE, LAUNCHES, NO_CORRELATION, Category, Trace, Track
from augment.errors import UnknownFormat
from augment.facts.source.several_ranks import trace_on_clock
from augment.job.sidecar import ROWS as OF_JOB
from augment.pipeline import augment
from augment.readers import READERS, read
from augment.readers.attachments import with_execution_trace, with_memory_snapshot, with_memory_timeline
from augment.writers import WRITERS, metrics
from execution_traces import execution_trace_of, write_execution_trace
from memory_snapshots import training, write_snapshot
from memory_timelines import memory_timeline_of, write_memory_timeline
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from tables import trace_of

ROOT = Path(__file__).resolve().parents[2]
JOB = JobOptions(steps=2, layers=2, stacks=True, memory=True, counters=True, host_stall_us=900.0, host_stall_step=1)
SUFFIX_UNITS = {f"_{unit}": unit for unit in ("ns", "bytes", "count", "ratio")}
SUFFIX_UNITS |= {"_gbps": "GB/s", "_tflops": "TFLOP/s"}
#: numbers that say which row it is
IDENTIFIERS = ("rank", "device", "stream", "step", "part", "correlation", "node_id")
ALWAYS_IN_THE_NAME = ("ns", "ratio", "GB/s", "TFLOP/s")  #: a count may be called ``max``, bytes ``bytes``
analysis_of = pytest.mark.parametrize("analysis", ANALYSES, ids=lambda item: item.NAME)
writer_of = pytest.mark.parametrize("writer", WRITERS, ids=lambda item: item.NAME)
reader_of = pytest.mark.parametrize("reader", READERS, ids=lambda item: item.NAME)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a rank that is not 0."""
    return simulate(JOB, tmp_path_factory.mktemp("job"))[1][0]


@pytest.fixture(scope="module")
def trace(job: Path) -> Trace:
    nodes = write_execution_trace(job.parent / "et.json.gz", execution_trace_of(job))
    memory = write_memory_timeline(job.parent / "a.raw.json.gz", memory_timeline_of(job))
    recorded = with_memory_timeline(with_execution_trace(read(str(with_counters(job))), nodes), memory)
    operation = records.DumpedOperation("7", 0, 1, "all_reduce", 0, True, None, [[10]], [[10]], ("Float",))
    groups = {"7": records.DumpedGroup("7", "dp", (0, 1))}
    snapshot = training(int(recorded.events.ts[0]) // 1000 + 1).snapshot()
    recorded = with_memory_snapshot(recorded, write_snapshot(job.parent / "snapshot.pickle", snapshot))
    decodes = Tables({"step": [{"pattern": r"ProfilerStep#\d+", "phase": "decode"}]})
    log = records.CompileLog(
        "log", compilations=[records.Compilation("0/0", CodeLine("model.py", 3, "forward"), stated_ns=7)]
    )
    dump = records.RankDump("dump_0", recorded.rank or 0, groups, {}, [operation])
    moments = np.linspace(int(recorded.events.ts[0]), int(recorded.events.end.max()), 6).astype(np.int64)
    spans = RequestSpans("spans", ["a"], ["vllm"], moments[None], np.array([7]), np.array([3]))
    made = records.Communicator("n0", None, "0xaa", 0, 2, 0, identity="0xfe", is_complete=True)
    nccl = records.NcclLog("nccl.log", communicators=[made])
    return watched(
        recorded.changed(
            decodes, spans, records.CompileLogs((log,)), records.FlightDumps((dump,)), records.NcclLogs((nccl,))
        )
    )


def with_counters(job: Path) -> Path:
    """The same file with samples of hardware counters, 2 µs apart."""
    content = json.loads(gzip.decompress(job.read_bytes()))
    kernels = [each for each in content["traceEvents"] if each.get("cat") == "kernel"]
    name = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
    for number in range(2000):
        who = {"pid": f"GPU {kernels[0]['args']['device']} Counters", "tid": 0, "cat": "hardware_counters"}
        sample = {"ph": "C", "name": name, "ts": kernels[0]["ts"] + 2 * number, "args": {"": number % 100}}
        content["traceEvents"].append(who | sample)
    path = job.with_name(f"sampled_{job.name}")
    path.write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return path


def watched(trace: Trace) -> Trace:
    """With telemetry, 1 ms apart."""
    ts = np.arange(int(trace.events.ts[0]) - 10**6, int(trace.events.end.max()) + 10**6, 10**6, dtype=np.int64)
    power = records.Samples("0", "power", "W", ts, 300 + 50 * np.sin(np.arange(len(ts))))
    return trace.changed(records.Telemetry("smi.csv", (power,)))


@pytest.fixture(scope="module")
def augmented(trace: Trace) -> AugmentedTrace:
    return augment(trace)


def has_a_docstring(analysis: Any) -> None:
    docstring = inspect.getdoc(analysis) or ""
    assert docstring.split("\n\n")[0].endswith("?"), "the first paragraph is the question that the analysis answers"
    assert re.fullmatch(r"[a-z][a-z0-9_]*", analysis.NAME)
    assert inspect.getdoc(analysis.Row)
    assert inspect.getdoc(analysis.analyze)


def options_are_documented_and_have_units(analysis: Any) -> None:
    docstring = inspect.getdoc(analysis) or ""
    for name, default in options_of(analysis).items():
        assert f"    {name}: " in docstring.partition("Options:\n")[2]
        assert isinstance(default, (bool, str)) or name.endswith(tuple(SUFFIX_UNITS)), f"{name} lacks its unit"


def columns_have_unit_and_sentence(analysis: Any) -> None:
    for column in columns_of(analysis.Row):
        unit, doc = column.unit, column.doc
        assert unit in UNITS, column.name
        assert re.fullmatch(r"\S(?:(?!\. [A-Z]).)*\.", doc), f"{column.name}: one sentence, not {doc!r}"
        said = next((unit for suffix, unit in SUFFIX_UNITS.items() if column.name.endswith(suffix)), None)
        assert said in (None, unit), f"{column.name} is declared to be in {unit!r}"
        assert said or unit not in ALWAYS_IN_THE_NAME, f"{column.name} is in {unit!r}, which its name must say"
        assert f"{column.name}: " not in doc
        is_number = column.type in (int, int | None) and column.is_key and not unit
        assert not is_number or column.name in IDENTIFIERS, (
            f"{column.name} is a whole number without a unit, so rows of other ranks are joined by it: "
            "give it a unit such as 'count', or add it to IDENTIFIERS"
        )


def rows_are_immutable(analysis: Any) -> None:
    row: Any = analysis.Row
    assert row.__struct_config__.frozen


def needs_are_groups_of_categories(analysis: Any) -> None:
    assert all(group for group in analysis.NEEDS)


#: of an analysis by itself, without a trace
CHECKS: Sequence[Callable[[Any], None]] = (
    has_a_docstring,
    options_are_documented_and_have_units,
    columns_have_unit_and_sentence,
    rows_are_immutable,
    needs_are_groups_of_categories,
)


@analysis_of
@pytest.mark.parametrize("check", CHECKS, ids=lambda item: item.__name__)
def test_every_analysis_is_declared_well(analysis: Any, check: Callable[[Any], None]) -> None:
    check(analysis)


@analysis_of
def test_an_empty_trace_is_skipped_with_a_reason(analysis: Any) -> None:
    assert augment(trace_of(), only=[analysis.NAME]).outcomes[analysis.NAME].reason


@analysis_of
def test_a_trace_of_the_host_alone_gives_no_zeros(analysis: Any) -> None:
    path = ROOT / "examples" / "traces" / "cpu_stacks_shapes_memory.pt.trace.json.gz"
    outcome = augment(read(str(path)), only=[analysis.NAME]).outcomes[analysis.NAME]
    assert isinstance(outcome, Skipped) or outcome.rows


@analysis_of
def test_the_same_answer_twice(analysis: Any, trace: Trace, augmented: AugmentedTrace) -> None:
    assert figures(augment(trace.changed(), only=[analysis.NAME]), analysis) == figures(augmented, analysis)
    assert figures(augmented, analysis), "the simulated job has something for every analysis"


@analysis_of
@pytest.mark.parametrize("shift", [-(10**15), 1, 10**17])
def test_figures_do_not_depend_on_when(analysis: Any, trace: Trace, augmented: AugmentedTrace, shift: int) -> None:
    moved = augment(watched(trace_on_clock(trace, lambda ts: ts + shift)), only=[analysis.NAME])
    assert figures(moved, analysis) == figures(augmented, analysis)
    assert times(moved, analysis) == [[ts + shift for ts in track] for track in times(augmented, analysis)]


@analysis_of
def test_figures_do_not_depend_on_ids(analysis: Any, trace: Trace, augmented: AugmentedTrace) -> None:
    """Other pids, tids (Kineto puts them into names) and correlations; device and stream are what figures are of."""
    linked = trace.events.correlation != NO_CORRELATION
    correlation = np.where(linked, 10**9 - 3 * trace.events.correlation, NO_CORRELATION)
    tracks = tuple(
        msgspec.structs.replace(
            each,
            pid=77_000 - each.pid if isinstance(each.pid, int) else f"p{each.pid}",
            tid=number,
            thread_name=re.sub(r"\d+", str(number), each.thread_name or ""),
        )
        for number, each in enumerate(trace.tracks, start=5)
    )
    events = msgspec.structs.replace(trace.events, correlation=correlation)
    other = augment(trace.changed(events=events, tracks=tracks), only=[analysis.NAME])
    ids = ("correlation", "track")  # diagnosis names a thread
    assert figures(other, analysis, *ids) == figures(augmented, analysis, *ids)
    assert times(other, analysis) == times(augmented, analysis)


@pytest.fixture(scope="module")
def unlaunched(trace: Trace) -> tuple[AugmentedTrace, AugmentedTrace]:
    """The trace without some of its launches; and that with one more event, string and track, which are the last of
    all and of nothing that an analysis speaks of."""
    correlation = trace.events.correlation[:]
    correlation[trace.events.slices_of(*LAUNCHES)[::5]] = NO_CORRELATION
    events = msgspec.structs.replace(trace.events, correlation=correlation)
    last = {name: getattr(events, name)[-1] for name in ("ts", "offset", "length")}
    last |= {"dur": 0, "phase": COMPLETE, "category": Category.OTHER, "correlation": NO_CORRELATION}
    last |= {"category_name": len(trace.strings), "name": len(trace.strings), "track": len(trace.tracks)}
    columns = {name: getattr(events, name)[:] for name in last}
    columns = {name: np.append(column, column.dtype.type(last[name])) for name, column in columns.items()}
    more = msgspec.structs.replace(events, **columns)
    tracks = (*trace.tracks, Track(trace.rank, 9, 9, thread_name="of nothing"))
    other = trace.changed(events=more, strings=[*trace.strings, "of nothing"], tracks=tracks)
    return augment(trace.changed(events=events)), augment(other)


@analysis_of
def test_what_is_unknown_is_not_taken_from_the_last_event(
    analysis: Any, unlaunched: tuple[AugmentedTrace, AugmentedTrace]
) -> None:
    """An index of -1 says that there is none, and numpy gives the last entry for it, without a word."""
    without, beside = unlaunched
    assert figures(beside, analysis) == figures(without, analysis), "leave out NO_INDEX before you index by it"
    assert times(beside, analysis) == times(without, analysis)


def figures(result: AugmentedTrace, analysis: Any, *without: str) -> list[Any]:
    """The rows, but for the columns ``without``; NaN never equals itself, so it is refused."""
    outcome = result.outcomes[analysis.NAME]
    columns = [name for name in analysis.Row.__struct_fields__ if name not in without]
    rows = [tuple(getattr(row, column) for column in columns) for row in outcome.rows]
    assert not any(isinstance(value, float) and value != value for row in rows for value in row)
    return rows


def times(result: AugmentedTrace, analysis: Any) -> list[list[int]]:
    """When what it draws is drawn."""
    outcome = result.outcomes[analysis.NAME]
    drawn = outcome.annotations
    ends = [ends.times(result.trace) for each in drawn if isinstance(each, Flows) for ends in (each.out, each.into)]
    return [flow.tolist() for flow in [*ends, *(each.ts for each in drawn if not isinstance(each, Flows))]]


@analysis_of
def test_annotations_are_well_formed(analysis: Any, augmented: AugmentedTrace, trace: Trace) -> None:
    outcome = augmented.outcomes[analysis.NAME]
    for annotation in outcome.annotations:
        assert annotation.analysis == analysis.NAME
        if not isinstance(annotation, Flows):
            assert 0 <= annotation.under < len(trace.tracks)
            assert annotation.ts.dtype == np.int64
            documented = any(pattern.match(annotation.name) for pattern in documented_tracks())
            assert documented, f"add {annotation.name!r} to the table of tracks in docs/formats.md"
        WELL_FORMED[type(annotation)](annotation)


def slices_are_well_formed(track: SliceTrack) -> None:
    assert len(track.ts) == len(track.dur) == len(track.names)
    assert (track.dur >= 0).all()
    assert (np.diff(track.ts) >= 0).all()
    open_until: list[int] = []
    for ts, end in zip(track.ts.tolist(), (track.ts + track.dur).tolist(), strict=True):
        while open_until and open_until[-1] <= ts:
            open_until.pop()
        assert not open_until or end <= open_until[-1], "a slice overlaps another only by lying within it"
        open_until.append(end)
    assert all(len(column) == len(track.ts) for column in track.args.values())


def counters_are_well_formed(track: CounterTrack) -> None:
    assert len(track.ts) == len(track.values)
    assert (np.diff(track.ts) > 0).all()
    assert np.isfinite(track.values).all()
    stays = track.unit in ("bytes", "MB", "GB") or track.analysis == "telemetry"
    assert track.values[-1] == 0 or stays, "a counter falls to 0 when nothing runs; memory stays, and what was sampled"
    assert track.unit


def instants_are_well_formed(track: InstantTrack) -> None:
    assert len(track.ts) == len(track.names)
    assert (np.diff(track.ts) >= 0).all()


def flows_are_well_formed(flows: Flows) -> None:
    assert len(flows.out.rows) == len(flows.into.rows)
    for ends in (flows.out, flows.into):
        assert (ends.rows >= 0).all()
        assert ends.track is None or (ends.rows < len(ends.track.ts)).all()


WELL_FORMED: dict[type[Annotation], Callable[[Any], None]] = {
    SliceTrack: slices_are_well_formed,
    CounterTrack: counters_are_well_formed,
    InstantTrack: instants_are_well_formed,
    Flows: flows_are_well_formed,
}


def documented_tracks() -> list[re.Pattern[str]]:
    """How the names begin that docs/formats.md promises: N, KIND and LABEL stand for anything."""
    section = (ROOT / "docs" / "formats.md").read_text().partition("### Tracks added")[2].partition("\n#")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall("`([^`]+)`", cell)]
    assert names
    return [re.compile(re.sub(r"\b(N|KIND|LABEL)\b", r"\\S+", re.escape(name).replace("\\ ", " "))) for name in names]


def test_names_are_distinct() -> None:
    for registry in (ANALYSES, READERS, WRITERS):
        names = [each.NAME for each in registry]
        assert len(set(names)) == len(names)
    assert len({writer.SUFFIX for writer in WRITERS}) == len(WRITERS)


@writer_of
def test_a_writer_is_documented_and_deterministic(writer: Any, trace: Trace, tmp_path: Path) -> None:
    assert inspect.getdoc(writer)
    assert writer.SUFFIX.startswith(".augmented.")
    for name in ("a", "b"):
        writer.write_seamed(augment(trace.changed()), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_the_sidecar_is_deterministic(trace: Trace) -> None:
    first, again = (metrics.document(augment(trace.changed())) for _ in range(2))
    assert metrics.encode(first) == metrics.encode(again)


@writer_of
def test_perfetto_shows_all_that_was_added(
    writer: Any, augmented: AugmentedTrace, tmp_path: Path, perfetto: PerfettoEngine
) -> None:
    path = tmp_path / f"out{writer.SUFFIX}"
    writer.write_seamed(augmented, path)
    perfetto.load_clean(path)
    drawn = [annotation for annotation in augmented.annotations if not isinstance(annotation, Flows)]
    slices = sum(row_count(each) for each in drawn if not isinstance(each, CounterTrack))
    shown = "select count(*) from slice where category like 'augment.%' and category not like '%.flamegraph'"
    assert perfetto.rows(shown) == [(slices,)]
    for each in (each for each in drawn if isinstance(each, CounterTrack)):
        ((count, highest),) = perfetto.rows(
            "select count(*), max(value) from counter join counter_track t on t.id = track_id "
            f"where t.name = '{each.name}' or t.name like '{each.name} %'"
        )
        assert count == len(each.ts), each.name
        assert highest == pytest.approx(float(each.values.max()), abs=1e-6), each.name


@writer_of
def test_what_is_written_can_be_read_and_keeps_the_sources_events(
    writer: Any, augmented: AugmentedTrace, trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / f"rank1{writer.SUFFIX}"
    writer.write_seamed(augmented, path)
    try:
        again = read(str(path))
    except UnknownFormat:
        pytest.skip(f"there is no reader for {writer.NAME}")
    part = [not again.strings[code].startswith("augment.") for code in again.events.category_name.tolist()]
    kept = np.flatnonzero(part)
    assert len(kept) == len(trace.events)
    # what begins at the same time may change places: a format can have an order of its own
    assert in_any_order(again, kept) == in_any_order(trace, np.arange(len(trace.events)))


def in_any_order(trace: Trace, rows: Any) -> list[tuple[Any, ...]]:
    """The rows, but for what says where they lie in the file."""
    columns = [getattr(trace.events, name)[rows] for name in ("ts", "dur", "phase", "category", "correlation")]
    return sorted(zip(*(column.tolist() for column in columns), trace.names_of(rows), strict=True))


@reader_of
def test_a_reader_is_documented_and_knows_what_is_not_its_own(reader: Any) -> None:
    assert inspect.getdoc(reader)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", reader.NAME)
    for head in (b"", b" ", b"\xff\xfe\xfd", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n", b"#!/bin/sh\n"):
        assert reader.recognizes(head) is False


@reader_of
def test_outputs_are_named_without_the_suffix_of_the_format(reader: Any) -> None:
    for suffix in reader.SUFFIXES:
        assert stem(f"rank0{suffix}.gz") == "rank0", f"add {suffix} to _INPUT_SUFFIXES in augment/core/output_files.py"


def test_a_trace_has_one_reader() -> None:
    for head in (b'{"schemaVersion": 1, "traceEvents": [', b'\n[\n {"ph": "X"'):
        assert [reader.recognizes(head) for reader in READERS].count(True) == 1


# One name of a column is one figure in one unit, in all tables.
OF_TRACE = {analysis.NAME: analysis.Row for analysis in ANALYSES}
KEY = ("rank", "device", "step")
#: statistics of what their table names: a queue's length, or any figure
OF_ANYTHING = {"mean", "std", "max", "min"}
MANY = 3  #: tables; a figure in so many is in the vocabulary


@pytest.fixture(scope="module")
def columns() -> dict[str, dict[str, Column]]:
    """The columns by name, then table."""
    named: dict[str, dict[str, Column]] = defaultdict(dict)
    for table, row in {**OF_TRACE, **OF_JOB, **OF_DIFF}.items():
        for column in columns_of(row):
            named[column.name][table] = column
    return named


def test_a_name_has_one_unit(columns: dict[str, dict[str, Column]]) -> None:
    units = {name: {column.unit for column in tables.values()} for name, tables in columns.items()}
    assert {name for name, several in units.items() if len(several) > 1} <= OF_ANYTHING


def test_figures_of_many_tables_are_in_the_vocabulary(columns: dict[str, dict[str, Column]]) -> None:
    page = (ROOT / "docs" / "sidecar.md").read_text()
    listed: dict[str, str] = {}
    for names, unit in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([\w/]+) \|", page, re.M):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), unit)
    shared = {name: tables for name, tables in columns.items() if len(tables) >= MANY}
    figures = {name: next(iter(tables.values())).unit for name, tables in shared.items() if name not in OF_ANYTHING}
    missing = {name: unit for name, unit in figures.items() if unit and listed.get(name) != unit}
    assert not missing, "add these to the table of docs/sidecar.md, or use its names"
    assert set(listed) <= set(columns), "what no table has is not in the vocabulary"


def test_no_old_name_is_used(columns: dict[str, dict[str, Column]]) -> None:
    assert not columns.keys() & {"step_ns", "mean_step_ns", "max_step_ns", "exposed_copy_ns"}
    assert not old_names.TABLES.keys() & {**OF_TRACE, **OF_JOB, **OF_DIFF}.keys()


def differences(augmented: AugmentedTrace) -> list[str]:
    """Figures of equal name and key that differ between tables with a row for each rank, device and step."""
    tables: dict[str, dict[Any, Any]] = {}
    for name, row in OF_TRACE.items():
        rows = augmented.outcomes[name].rows if hasattr(augmented.outcomes[name], "rows") else ()
        keys = [tuple(getattr(each, column) for column in KEY) for each in rows if {*KEY} <= {*row.__struct_fields__}]
        if keys and len(set(keys)) == len(keys):
            tables[name] = dict(zip(keys, rows, strict=True))
    assert {"steps", "step_efficiency"} <= tables.keys()
    differing = []
    for (one_name, these), (other_name, others) in combinations(tables.items(), 2):
        for key in these.keys() & others.keys():
            shared = {*type(these[key]).__struct_fields__} & {*type(others[key]).__struct_fields__}
            differing += [
                f"{column} of {one_name} and {other_name}"
                for column in shared
                if column.endswith("_ns") and getattr(these[key], column) != getattr(others[key], column)
            ]
    return differing


def test_tables_of_steps_agree(tmp_path: Path) -> None:
    """Of a host that runs ahead, so that annotation and window differ."""
    options = JobOptions(ranks=1, steps=4, layers=2, run_ahead=1, side_streams=1)
    augmented = augment(read(str(simulate(options, tmp_path)[0][0])))
    assert any(row.wall_ns != row.host_wall_ns for row in augmented.outcomes["steps"].rows)
    assert not differences(augmented)


def test_tables_of_recorded_steps_agree(shared_traces: Path) -> None:
    augmented = augment(read(str(shared_traces / "h100_8rank_modded_nanogpt" / "rank5.json.gz")))
    assert any(row.wall_ns != row.host_wall_ns for row in augmented.outcomes["steps"].rows)
    assert not differences(augmented)


# Variables are named by what they hold.
CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("augment", "server", "tests", "examples", "benchmarks", "building", "docs", "proto")
#: words that say nothing of what a variable holds
NO_NAMES = {"one", "found", "own", "told", "mine"}
#: what follows a name where it is bound; sentences match, too, so that this only spares the parser most files
BOUND = re.compile(rf"\b(?:{'|'.join(NO_NAMES)})\s*(?:[=:,)\]]| in\b)|\bas (?:{'|'.join(NO_NAMES)})\b")


def bad_lines(tree: ast.Module) -> Iterator[int]:
    fields: set[ast.AST] = set()  # of records, whose names may be promised
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields |= {entry.target for entry in node.body if isinstance(entry, ast.AnnAssign)}
        name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
        if name in NO_NAMES and node not in fields:
            yield node.lineno


def test_variables_are_nouns() -> None:
    bad = []
    for path in (path for folder in FOLDERS for path in sorted((CHECKOUT / folder).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        if path.parent.name != "v1" and BOUND.search(text):
            bad += [f"{path.relative_to(CHECKOUT)}:{line}" for line in bad_lines(ast.parse(text))]
    assert not bad, f"{', '.join(sorted(NO_NAMES))} are no names of variables: {bad}"

"""Several traces in one native file, as Perfetto's engine reads it: nothing of one is mistaken for another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.annotations import Annotation, Ends, Flows, SliceTrack, Texts
from augment.core.findings import AugmentedTrace
from augment.core.trace import COMPLETE
from augment.writers.files import replacing
from augment.writers.perfetto.several import Links, Several, TraceGroup, is_of_several
from perfetto_engine import PerfettoEngine
from perfetto_traces import KERNEL, KERNEL_ARGS, NAMES, OP, TRACKS, arrows, codes, trace_of_events

pytestmark = pytest.mark.slow

LAUNCH = {
    "ph": "X",
    "cat": "cuda_runtime",
    "pid": 42,
    "tid": 43,
    "name": "cudaLaunchKernel",
    "args": {"correlation": 5},
}
ARROW = [
    {"ph": "s", "id": 5, "pid": 42, "tid": 43, "ts": 2, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 20, "cat": "ac2g", "name": "ac2g", "bp": "e"},
]


def rank(folder: Path, name: str, *annotations: Annotation, at: float = 0) -> AugmentedTrace:
    """A rank whose numbers (pids, correlations, flow ids) are those of every other, and whose texts are its own."""
    events: list[dict[str, Any]] = [
        *NAMES,
        {**OP, "name": f"op {name}", "ts": 1, "dur": 10, "args": {"who": name, f"only {name}": [1, name]}},
        {**LAUNCH, "ts": 2, "dur": 2, "args": {"correlation": 5}},
        {**KERNEL, "name": f"kernel {name}", "ts": 20, "dur": 5, "args": KERNEL_ARGS},
        *ARROW,
    ]
    events = [{**event, "ts": event["ts"] + at} if "ts" in event else event for event in events]
    folder = folder / f"rank {name}"
    folder.mkdir()
    return trace_of_events(folder, events, *annotations, distributedInfo={"rank": int(name)})


def kernel_row(augmented_trace: AugmentedTrace) -> int:
    names = augmented_trace.trace.names_of(np.arange(len(augmented_trace.trace.events)))
    (row,) = (row for row, name in enumerate(names) if name.startswith("kernel") and is_slice(augmented_trace, row))
    return row


def is_slice(augmented_trace: AugmentedTrace, row: int) -> bool:
    return bool(augmented_trace.trace.events.phase[row] == COMPLETE)


def idle(under: int = 0) -> list[Annotation]:
    """An added track, and an arrow from its slice to the source's last."""
    ts = np.array([12_000], np.int64)
    track = SliceTrack(
        "a", "Idle", under, ts, ts, Texts(np.zeros(1, np.int32), ["waiting"]), {"gap": np.array([7], np.int64)}
    )
    return [track, Flows("a", "waits for", Ends(np.array([0]), track), Ends(np.array([0])))]


def merged(perfetto: PerfettoEngine, folder: Path, ranks: dict[str, AugmentedTrace], *, linked: bool = True) -> None:
    """Write ``ranks``, their kernels linked, and have the engine read the file."""
    with replacing(folder / "all.pftrace") as file:
        several = Several(file)
        for name, each in ranks.items():
            links = Links(np.array([kernel_row(each)]), np.array([0]))
            output = several.add(each, TraceGroup(f"rank {name}", f"from {name}"), *([links] if linked else []))
            assert codes(output) == {}
    assert is_of_several(folder / "all.pftrace")
    perfetto.load(folder / "all.pftrace")
    assert perfetto.problems() == {}


def test_each_trace_keeps_its_own_slices_args_and_arrows(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    ranks = {name: rank(tmp_path, name, *idle()) for name in "012"}
    merged(perfetto, tmp_path, ranks, linked=False)
    expected = [("cudaLaunchKernel", f"kernel {name}") for name in "012"]
    assert arrows(perfetto) == sorted([*expected, *((f"op {name}", "waiting") for name in "012")])
    assert perfetto.rows("select count(*) from slice") == [(12,)]
    for name in "012":
        sql = f"select key, string_value from slice join args using (arg_set_id) where name = 'op {name}'"
        result = dict(perfetto.rows(f"{sql} and key glob 'debug*'"))
        assert result == {"debug.who": name, f"debug.only {name}": f'[1,"{name}"]'}
    assert perfetto.rows(
        "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in where a.ts > b.ts"
    ) == [(0,)]


def test_ranks_are_root_tracks_in_their_order(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    merged(perfetto, tmp_path, {name: rank(tmp_path, name, *idle(1)) for name in "210"})
    roots = """select name, extract_arg(source_arg_set_id, 'description') from track where parent_id is null
               order by extract_arg(source_arg_set_id, 'sibling_order_rank')"""
    assert perfetto.rows(roots) == [(f"rank {name}", f"from {name}") for name in "210"]
    paths = {path for (path,) in perfetto.rows(TRACKS)}
    for name in "012":
        assert {f"rank {name} > GPU 0 > stream 7", f"rank {name} > python 42 > main"} <= paths
    assert perfetto.rows("select count(*) from process where pid > 0") == [(0,)]
    below = "select count(*) from slice join track on slice.track_id = track.id where track.parent_id is null"
    assert perfetto.rows(below) == [(0,)]


def test_links_lead_from_trace_to_trace_in_the_order_of_time(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    late = {"0": 3, "1": 1, "2": 2}
    merged(perfetto, tmp_path, {name: rank(tmp_path, name, at=at) for name, at in late.items()})
    across = [(a, b) for a, b in arrows(perfetto) if a != "cudaLaunchKernel"]
    assert across == [("kernel 1", "kernel 2"), ("kernel 2", "kernel 0")]


def test_names_that_two_have_are_told_apart(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    events = [
        *NAMES,
        {"ph": "M", "name": "thread_name", "pid": 42, "tid": 44, "args": {"name": "main"}},
        {**OP, "name": "a", "ts": 1, "dur": 9},
        {**OP, "name": "b", "ts": 2, "dur": 9, "tid": 44},
        {**OP, "name": "c", "ts": 3, "dur": 9, "pid": "text", "tid": "thread"},
    ]
    trace = trace_of_events(tmp_path, events)
    with replacing(tmp_path / "all.pftrace") as file:
        several = Several(file)
        for _ in range(2):
            several.add(trace, TraceGroup("rank"))
    perfetto.load(tmp_path / "all.pftrace")
    paths = [str(path) for (path,) in perfetto.rows(TRACKS)]
    leaves = ["python 42 > main 43", "python 42 > main 44", "text > thread"]
    leaf_paths = [path for path in paths if path.count(">") == 2]
    assert sorted(leaf_paths) == sorted(f"{root} > {leaf}" for root in ("rank", "rank (2)") for leaf in leaves)
    assert perfetto.problems() == {}


def test_times_before_the_first_trace_are_the_next_ones_own(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    merged(perfetto, tmp_path, {"0": rank(tmp_path, "0", at=10**9), "1": rank(tmp_path, "1", at=0)})
    result = perfetto.rows("select name, ts, dur from slice where name glob 'kernel*' order by ts")
    assert result == [("kernel 1", 20_000, 5_000), ("kernel 0", 10**12 + 20_000, 5_000)]


def test_metadata_of_each_trace(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    merged(perfetto, tmp_path, {name: rank(tmp_path, name) for name in "01"})
    sql = "select str_value from metadata where name glob 'cr-*rank {} distributedInfo'"
    assert [perfetto.rows(sql.format(name)) for name in "01"] == [[('{"rank": 0}',)], [('{"rank": 1}',)]]

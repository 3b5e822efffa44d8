"""What a plain Perfetto UI, in which nobody pins anything, shows first, by the order that the UI itself asks for."""

from __future__ import annotations

from pathlib import Path

from augment import augment, read, write
from perfetto_engine import PerfettoEngine
from traces import event, some_work, write_trace

ROOT = Path(__file__).resolve().parents[2]
ORDER = """include perfetto module viz.summary.track_event;
select rows.name, thread.tid from _track_event_tracks_ordered_groups rows join thread using (utid)
where has_data and parent_id is null order by order_id"""


def test_the_verdict_is_the_first_row_of_the_main_thread(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """The UI puts the rows that lie in a thread above its slices, and threads above what lies in their process."""
    trace = read(str(next((ROOT / "examples" / "simulated" / "backlog").glob("*.json.gz"))))
    out, _ = write(augment(trace), str(tmp_path))
    perfetto.load_clean(out)
    rows = perfetto.rows(ORDER)
    pids = {track.pid for track in trace.tracks}
    assert rows[0][0] == "Diagnosis"
    assert rows[0][1] in pids  # the main thread, which the UI shows first


def test_layers_that_a_profiler_numbers_are_no_processes(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """The UI opens the only process of a file; Ascend's profiler has a pid for CANN, far beyond any of Linux."""
    layer = event("async_npu", "Node@launch", 3, 4, 43767502, 9)
    path = write_trace(tmp_path / "ascend.json", *some_work(), layer)
    out, _ = write(augment(read(str(path))), str(tmp_path))
    perfetto.load_clean(out)
    assert len(perfetto.rows("select pid from process where pid > 0")) == 1
    assert perfetto.rows("select count(*) from slice where name = 'Node@launch'") == [(1,)]

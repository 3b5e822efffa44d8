"""GPU work as render stages: Perfetto's own engine finds every kernel in ``gpu_slice``, and we read each once."""

from __future__ import annotations

from pathlib import Path

from augment import Trace, augment, read
from augment.core import GPU_WORK
from augment.writers import write_all
from perfetto_engine import PerfettoEngine

TRACE = Path(__file__).parents[2] / "examples" / "simulated" / "job" / "rank0.pt.trace.json.gz"


def written(trace: Trace, folder: Path, name: str) -> Path:
    return next(path for path in write_all(augment(trace), folder, [name]) if path.suffix == ".pftrace")


def told(trace: Trace) -> list[tuple[str, int, int, int]]:
    events = trace.events
    rows = events.slices_of(*GPU_WORK)
    columns = (trace.names_of(rows), *(each[rows].tolist() for each in (events.ts, events.dur, events.correlation)))
    return sorted(zip(*columns, strict=True))


def test_the_engine_has_all_gpu_work(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    trace = read(str(TRACE))
    path = written(trace, tmp_path, "gpu_slices")
    assert path.name == "rank0.augmented.gpu.pftrace"
    perfetto.load_clean(path)
    shown = "extract_arg(arg_set_id, 'correlation'), extract_arg(arg_set_id, 'grid')"
    rows = perfetto.rows(f"select name, ts, dur, {shown} from gpu_slice")
    assert sorted((name, ts, dur, int(str(number))) for name, ts, dur, number, _ in rows) == told(trace)
    grids = {
        args["correlation"]: args["grid"] for args in trace.args_of(trace.events.slices_of(*GPU_WORK)) if "grid" in args
    }
    of_engine = {int(str(number)): grid for *_, number, grid in rows if grid is not None}
    assert of_engine == {number: str(grid).replace(" ", "") for number, grid in grids.items()}
    queues = perfetto.rows("select distinct track.name from gpu_slice join track on track.id = track_id")
    assert ("GPU 0 stream 7",) in queues


def test_the_repetition_is_read_once(tmp_path: Path) -> None:
    trace = read(str(TRACE))
    plain, repeated = (read(str(written(trace, tmp_path, name))) for name in ("perfetto", "gpu_slices"))
    assert told(repeated) == told(plain) == told(trace)
    assert len(repeated.events) == len(plain.events)


def test_stages_of_a_source_are_kept(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """On the way through us, twice."""
    first = read(str(written(read(str(TRACE)), tmp_path, "gpu_slices")))
    again = written(first, tmp_path / "again", "perfetto")
    perfetto.load_clean(again)
    ((count,),) = perfetto.rows("select count(*) from gpu_slice")
    assert count == len(told(first))
    assert told(read(str(again))) == told(first)

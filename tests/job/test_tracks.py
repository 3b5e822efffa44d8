"""What a job draws on a rank's timeline, judged by Perfetto's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.findings import AugmentedTrace, Findings
from augment.core.trace import Trace
from augment.job.answer import Answer, answer
from augment.job.output.timeline import handovers
from augment.job.path.path import Path as Path_
from augment.job.path.path import is_handover
from augment.job.ranks.summary import summarize
from augment.readers import read
from augment.writers import perfetto as native
from simulator import JobOptions, simulate


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, list[Trace]]:
    options = JobOptions(ranks=3, steps=2, collectives="fsdp", straggler=1, clock_offset_ns=(0, 7_000_000, -(10**10)))
    traces = [read(str(path)) for path, _ in simulate(options, tmp_path_factory.mktemp("job"))]
    contents = [summarize(AugmentedTrace(trace, {})) for trace in traces]
    return answer(contents, [trace.source.name for trace in traces]), traces


def test_waits_and_transfers_lie_under_their_kernels(job: tuple[Answer, list[Trace]]) -> None:
    result, traces = job
    for member, trace in enumerate(traces):
        *_, slices, counter = result.annotations(member)
        assert (slices.ts[1:] >= (slices.ts + slices.dur)[:-1]).all()
        _, members, rows = result.links()
        kernels = np.sort(rows[members == member])
        assert len(kernels) == len(result.matched)
        assert slices.dur.sum() == trace.events.dur[kernels].sum()
        assert 290 < np.median(counter.values[counter.values > 0]) < 335
        assert counter.values[-1] == 0


def test_links_are_in_the_order_of_arrival(job: tuple[Answer, list[Trace]]) -> None:
    result, traces = job
    instance, member, row = result.links()
    start = np.array([result.clocks[m].to_common(traces[m].events.ts[r : r + 1])[0]
                      for m, r in zip(member.tolist(), row.tolist(), strict=True)])  # fmt: skip
    assert (np.diff(instance) >= 0).all()
    same = np.diff(instance) == 0
    assert (np.diff(start)[same] >= 0).all()


def test_the_path_is_drawn_where_it_is(job: tuple[Answer, list[Trace]]) -> None:
    result, traces = job
    path = result.path
    assert isinstance(path, Path_)
    drawn, come, left = 0, [], []
    for member in range(len(traces)):
        tracks = [each for each in result.annotations(member) if each.name == "Cross-rank critical path"]
        assert len(tracks) == (member in path.member)
        for track in tracks:
            part = path.member == member
            at = result.clocks[member].to_common(track.ts), result.clocks[member].to_common(track.ts + track.dur)
            assert (at[0] == path.start[part]).all()
            assert (at[1] == path.end[part]).all()
            drawn += len(track.ts)
            (_, _, first), (_, _, second) = handovers([track])
            come += first.tolist()
            left += second.tolist()
    assert drawn == len(path)
    assert sorted(come) == sorted(left) == list(range(int(is_handover(path).sum())))


def test_in_perfetto(job: tuple[Answer, list[Trace]], tmp_path: Path, perfetto: Any) -> None:
    result, traces = job
    drawn = AugmentedTrace(traces[2], {"job_collectives": Findings((), result.annotations(2))})
    assert native.write(drawn, tmp_path / "rank2.pftrace") == []
    perfetto.load(tmp_path / "rank2.pftrace")
    assert perfetto.problems() == {}
    rows = perfetto.rows(
        "select name, count(*), sum(dur) from slice where category = 'augment.job_collectives' and depth = 0 "
        "group by name"
    )
    part = result.matched.member == 2
    wait, transfer = result.parted.wait_ns[part], result.parted.transfer_ns[part]
    assert rows == [("transfer", (transfer > 0).sum(), transfer.sum()), ("wait", (wait > 0).sum(), wait.sum())]
    late = "extract_arg(arg_set_id, 'debug.last_to_arrive')"
    output = perfetto.rows(f"select distinct {late} from slice where category = 'augment.job_collectives' order by 1")
    assert ("rank 1",) in output
    assert {each for (each,) in output} <= {"rank 0", "rank 1", "rank 2", None}
    below = dict(
        perfetto.rows(
            "select below.name, count(*) from slice below join slice wait on below.parent_id = wait.id "
            "where wait.name = 'wait' and wait.category = 'augment.job_collectives' group by 1"
        )
    )
    assert set(below) <= {"for rank 0", "for rank 1", "for rank 2"}
    assert sum(below.values()) == (wait > 0).sum()

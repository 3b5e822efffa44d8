"""Recorded jobs: each rank's own outputs have its waits and transfers, as Perfetto's engine reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_job_tracks import DRAWN, batch
from test_merging_recorded import JOBS

from augment.core.findings import AugmentedTrace
from augment.job.answer import answer
from augment.job.ranks.summary import summarize
from augment.readers import read
from perfetto_engine import PerfettoEngine

#: what is drawn and does not lie within a collective of a stream, by times exactly as recorded
OUTSIDE = """
    select count(*) from slice drawn where drawn.category = 'augment.job_collectives' and not exists (
        select 1 from slice k where k.category = 'kernel' and k.name glob '*nccl*'
        and k.ts <= drawn.ts and drawn.ts + drawn.dur <= k.ts + k.dur)
"""
BANDWIDTHS = "select count(*) from counter_track where name glob 'Bus bandwidth without waits *'"


@pytest.mark.parametrize("job", JOBS)
def test_a_recorded_job(job: str, perfetto: PerfettoEngine, shared_traces: Path, tmp_path: Path) -> None:
    results, drawn = batch(shared_traces / job, tmp_path)
    results = [result for result in results if result.status == "augmented"]
    assert len(drawn) == len(results) == JOBS[job]
    traces = sorted((read(result.path) for result in results), key=lambda trace: trace.rank or 0)
    rows = answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [trace.source.name for trace in traces])
    of_path = {each.path: each for each in drawn}
    for member, trace in enumerate(traces):
        part = rows.matched.rows_of(member)
        time = int((rows.matched.end[part] - rows.matched.ts[part]).sum())
        chrome, native, bundle, _ = of_path[trace.source.path].outputs
        perfetto.load(Path(native))
        assert perfetto.problems() == {}
        drawn_ns = {name: dur for name, _, dur in perfetto.rows(DRAWN)}
        counts = [row[:2] for row in perfetto.rows(DRAWN)]
        assert set(drawn_ns) == {"wait", "transfer"}
        assert 0.9 * time < sum(drawn_ns.values()) <= time  # collectives that overlap on a stream are drawn once
        assert perfetto.rows(OUTSIDE) == [(0,)]
        sized = bool((rows.matched.bytes[rows.matched.instance[part]] > 0).any())
        assert (perfetto.rows(BANDWIDTHS) != [(0,)]) == sized
        perfetto.load(Path(trace.source.path))
        of_source = perfetto.problems()
        for path in (chrome, bundle):
            perfetto.load(Path(path))
            assert [row[:2] for row in perfetto.rows(DRAWN)] == counts
            assert perfetto.problems() == of_source

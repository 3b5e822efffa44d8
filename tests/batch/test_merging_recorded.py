"""Recorded jobs merged: every slice of every rank in Perfetto's engine, every collective linked across all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_merging import ACROSS, ROOTS

from augment.batch.inputs import choose_inputs
from augment.batch.merged_timeline import merge, only_job
from augment.batch.run_plan import RunPlan
from augment.core.findings import AugmentedTrace
from augment.core.trace import COMPLETE
from augment.job.answer import answer
from augment.job.ranks.summary import summarize
from augment.pipeline.request import Request
from augment.readers import read
from perfetto_engine import PerfettoEngine

JOBS = {
    "h100_8rank_modded_nanogpt": 8,
    "dlrm_8rank_v100_param/kineto": 8,
    "v100_4rank_pair_torchrec/control": 4,
    "v100_4rank_pair_torchrec/sst_sleep_pl_dense_after_backward_2": 4,
}


@pytest.mark.parametrize("job", JOBS)
def test_a_recorded_job(job: str, perfetto: PerfettoEngine, shared_traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "job.pftrace"
    result = only_job(choose_inputs([str(shared_traces / job)], None).inputs)
    output = merge(result, str(out), RunPlan(Request(only=("idle_time_breakdown",))))
    assert (output.ranks, output.left_out, output.failed) == (JOBS[job], "", ())
    perfetto.load(out)
    assert perfetto.problems() == {}
    summaries = []
    for rank, member in enumerate(result.members):
        trace = read(member.input.path)
        summaries.append(summarize(AugmentedTrace(trace, {})))
        phase = trace.events.phase
        drawn = int(np.count_nonzero(np.isin(phase, [COMPLETE, *b"iIR"])))
        sql = f"{ROOTS} select count(*) from slice join root on root.id = track_id where top = 'rank {rank}'"
        assert perfetto.rows(f"{sql} and coalesce(slice.category, '') not glob 'augment.*'") == [(drawn,)]
        assert perfetto.rows(f"{sql} and slice.category = 'augment.idle_time_breakdown'") != [(0,)]
    instance, members, _ = answer(summaries, [str(rank) for rank in range(len(summaries))]).links()
    assert len(perfetto.rows(ACROSS)) == len(instance) - len(np.unique(instance)) > 0
    assert set(members.tolist()) == set(range(JOBS[job]))

"""The augmented trace of a rank of a folder that a run wrote: there, or made on demand with what its job tells."""

from __future__ import annotations

import os
from pathlib import Path

from augment.batch.convert import convert_or_raise
from augment.batch.inputs import Input, of_ranks
from augment.batch.job_question import COMPARISON, alone, draw, jobs_of, summary_of
from augment.batch.manifest import results_in
from augment.batch.run_plan import Progress, Report, RunPlan
from augment.errors import InputError


def trace_of(folder: str, inputs: list[Input], rank: int, scratch: Path, report: Report) -> str:
    """The path of the augmented trace of a rank; of its trace if no run has written into the folder.

    Args:
        folder: with the outputs of a run, or with traces.
        inputs: the traces in the folder.
        rank: of the only job there.
        scratch: where the trace is written if none is there.
        report: called with the current activity.

    Raises:
        AugmentError: there is no such rank, or there are several; its trace cannot be read.
    """
    known = {result.path: result for result in results_in(folder)}
    results = [result for result in known.values() if result.rank == rank]
    paths = [result.path for result in results] or [item.path for item in of_ranks(inputs, [range(rank, rank + 1)])]
    if len(paths) != 1:
        raise InputError(
            folder, f"holds {len(paths)} traces of rank {rank}" + "".join(f"; {path}" for path in paths[:2])
        )
    if not results:
        return paths[0]
    if there := next(filter(os.path.exists, results[0].traces), ""):
        return there
    members = [Input(path, folder, named=False) for path in known]
    job = next(job for job in jobs_of(members, known) if any(member.input.path == paths[0] for member in job.members))
    with_summaries = ((member, summary_of(known[member.input.path], COMPARISON)) for member in job.members)
    summaries = [(member, path) for member, path in with_summaries if path]
    plan = RunPlan(question=COMPARISON)
    item = Input(paths[0], str(scratch), named=True)
    written = convert_or_raise(item, plan, Progress(stage=report))
    if len(summaries) > 1:
        report("what the job tells")
        conclusion = COMPARISON.conclude(job, summaries, plan.request, alone)
        place = next(place for place, (member, _) in enumerate(summaries) if member.input.path == item.path)
        if tracks := conclusion.tracks[place]:
            written = draw(item, written, tracks(), conclusion.digest)
    if not written.traces:
        raise InputError(item.path, written.message)
    return written.traces[0]

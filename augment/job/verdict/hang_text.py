"""Sentences about a job that hangs, and its rows as ``augment diagnose`` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augment.core.records import DumpedGroup, DumpedOperation, RankDump
from augment.core.text import counted, listed, ranges_text, time
from augment.facts.source.recorded_times import instant
from augment.job.verdict.hangs import Culprit, Hang, Waiting, judge

_ADVICE = {
    "host": "Look at the Python stack of the process (py-spy dump --native): a lock, an exception, a data loader, a "
    "checkpoint, or a branch that the other ranks did not take",
    "device": "Look for Xid errors and lost devices on its node (nvidia-smi -q, dmesg), and leave the node out",
    "no_dump": "Look at how its process ended (log of the scheduler, out of memory, segmentation fault)",
    "mismatch": "Compare what these ranks do there: another branch, another batch or another data type",
    "order": "Let all ranks enqueue the collectives of different groups in one order",
    "group": "Test the links between them (nccl-tests), and record NCCL_DEBUG=INFO",
}


def report_on_dumps(dumps: Sequence[RankDump], name: str) -> dict[str, Any]:
    """The report of ``augment diagnose`` on the dumps of a job's ranks."""
    hang = judge(dumps)
    what = f"job {name}, {counted(hang.dumps, 'dump')} of the flight recorder"
    return {"input": what, "verdict": verdict(hang), "rows": rows(hang), "summary": None}


def verdict(hang: Hang) -> list[str]:
    """What hangs, and since when; who holds it up; what is missing."""
    if not hang.culprits:
        stuck = len(hang.waiting)
        if not stuck:
            return [f"Nothing hangs: the {counted(hang.dumps, 'rank')} completed every collective in their dumps."]
        seen = f"{counted(stuck, 'rank')} of {hang.ranks} had something left to complete when it dumped"
        if hang.dumps < hang.ranks:
            return [f"{seen}. Who holds it up cannot be told from {hang.dumps} of {hang.ranks} dumps."]
        return [f"{seen}, but no rank waits for another: nothing hangs as far as the dumps tell."]
    blamed = sorted({rank for culprit in hang.culprits for rank in culprit.ranks})
    since = min(culprit.since_ns for culprit in hang.culprits if culprit.since_ns is not None)
    victims = len({waiting.rank for waiting in hang.waiting} - set(blamed))
    others = f"; {counted(victims, 'other rank')} {'waits' if victims == 1 else 'wait'}" if victims else ""
    begin = f"The job has hung since {instant(since)} UTC"
    if any(culprit.cause == "group" for culprit in hang.culprits):
        sentences = [f"{begin}. The dumps do not tell which rank holds it up."]
    else:
        stopped = f"rank {blamed[0]} does" if len(blamed) == 1 else f"ranks {ranges_text(blamed)} do"
        sentences = [f"{begin}: {stopped} not go on{others}."]
    sentences += [f"{title(culprit)}." for culprit in hang.culprits]
    if hang.dumps < hang.ranks:
        sentences.append(f"{counted(hang.ranks - hang.dumps, 'rank')} of {hang.ranks} left no dump.")
    return sentences


def title(culprit: Culprit) -> str:
    """What a culprit does not do, in one sentence without the period."""
    ranks = _ranks(culprit.ranks).capitalize()
    where = called(culprit.operation, culprit.group) if culprit.operation and culprit.group else ""
    if culprit.cause == "host":
        return f"{ranks} stopped on the host: it never enqueued {where}"
    if culprit.cause == "device":
        number = counted(culprit.ran_ahead, "collective")
        return f"{ranks} stopped on the device: it has not completed {number} that others completed, the first {where}"
    if culprit.cause == "no_dump":
        return f"{ranks} left no dump: its process may be gone. Others wait for it in {where}"
    if culprit.cause == "mismatch":
        return f"{ranks} differs in {where}: {' against '.join(culprit.differences)}"
    if culprit.cause == "order":
        return f"{ranks} wait for each other: they enqueued the collectives of their groups in different order"
    return f"{ranks} wait in {where}: one of them, or the link between them, is at fault"


def rows(hang: Hang) -> list[dict[str, Any]]:
    """One finding for each culprit."""
    return [
        {
            "rule": "hang",
            "status": "found",
            "severity": "high",
            "title": title(culprit),
            "confidence": culprit.confidence,
            "advice": _ADVICE[culprit.cause],
            "evidence": _evidence(culprit, hang.waiting),
            "cause": culprit.cause,
            "ranks": list(culprit.ranks),
            "waiting": list(culprit.waiting),
            "since_ns": culprit.since_ns,
        }
        for culprit in hang.culprits
    ]


def called(operation: DumpedOperation, group: DumpedGroup) -> str:
    """``all_to_all 20947 of EXPERT_MODEL_PARALLEL_GROUP [8-11]``, ``recv from rank 3``."""
    name = group.description or f"group {group.name}"
    if operation.peer is not None:
        direction = "to" if operation.kind == "send" else "from"
        return f"{operation.kind} {direction} rank {operation.peer} in {name}"
    return f"{operation.kind.lstrip('_')} {operation.sequence} of {name} [{ranges_text(group.ranks)}]"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges_text(ranks)}"


def _evidence(culprit: Culprit, waiting: Sequence[Waiting]) -> list[str]:
    lines = []
    if culprit.waiting:
        lines.append(f"waiting for it: {_ranks(culprit.waiting)}")
    operation = culprit.operation
    if operation is not None and operation.frames:
        frame = operation.frames[0]
        lines.append(f"enqueued at {frame.filename}:{frame.line} in {frame.name}")
    if operation is not None and operation.timeout_ms:
        lines.append(f"timeout of the group: {time(operation.timeout_ms * 1e6)}")
    for wait in [each for each in waiting if each.rank in culprit.waiting or each.rank in culprit.ranks][:4]:
        behind = f", held up by {listed([f'rank {rank}' for rank in wait.waits_for])}" if wait.waits_for else ""
        lines.append(f"rank {wait.rank}: oldest not completed is {called(wait.operation, wait.group)}{behind}")
    return lines

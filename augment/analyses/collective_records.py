"""What did NCCL and PyTorch's flight recorder say of the collectives: algorithm, protocol, transport, own timing?

The input is what was recorded beside the trace, or alone: dumps of the flight recorder (``--flight-recorder``), logs of
``NCCL_DEBUG`` (``--nccl-log``), records of NCCL's Inspector (``--nccl-inspector``). Without any it is skipped.
A row has the records of one group, kind and size by one recorder, and the collectives of the trace that they belong to:
those of the same process whose group has as many ranks, of the same kind and bytes. Kernel names do not tell algorithm
or protocol; where the records of a row differ, the commonest is told with its share.

Collectives of a row are drawn as ``Collective records`` under their device, or the thread of the host that does them
(gloo), each with the recorder that tells it. Diagnostics count the lines that could not be read and the records that
were dropped, and say where the Inspector's own timing differs from the trace's by more than 5 %.

**What to do**: where ``record_ns`` is far from ``kernel_ns``, look at the source of timing: of ``collective_cpu`` the
host's waiting is part. Little data by ``RING`` between nodes, ``NET/Socket``, or one channel are worth a try with
other settings. See [records of collectives](collective-records.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment.core import Annotation, Diagnostic, Findings, OfRank, Skipped, SliceTrack, Texts, Trace, column, text
from augment.core.records import FlightDumps, InspectorLogs, NcclLogs
from augment.facts.collectives.recorded_by_library import JoinedRecords, joined_records, traced_collectives

NAME = "collective_records"
NEEDS = ()
TOLD = ("algorithm", "protocol", "channels", "transport")  #: what the args of a slice say
OTHER_TIMING = 0.05  #: of the trace's, from which on the Inspector's is another


class Row(OfRank, frozen=True):
    """The records of one group, kind and size by one recorder."""

    recorder: Annotated[str, column("flight_recorder, nccl_log or nccl_inspector.")]
    group: Annotated[str, column("The group as the recorder names it: its description, or the communicator.")]
    group_size: Annotated[int | None, column("Number of ranks in the group, if recorded.", "count")]
    kind: Annotated[str, column("AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send or another kind.")]
    bytes: Annotated[int | None, column("Bytes of one collective, as nccl-tests counts, if recorded.", "bytes")]
    record_count: Annotated[int, column("Number of records.", "count")]
    joined_count: Annotated[int, column("Number of collectives of the trace that they belong to.", "count")]
    algorithm: Annotated[str | None, column("The commonest algorithm, such as RING or NVLS, if recorded.")]
    protocol: Annotated[str | None, column("The commonest protocol, LL, LL128 or SIMPLE, if recorded.")]
    agreeing_ratio: Annotated[float | None, column("The share of the records with that algorithm.", "ratio")]
    channel_count: Annotated[int | None, column("The commonest number of channels, if recorded.", "count")]
    transport: Annotated[str | None, column("What connects the group's ranks: P2P, SHM, NET, if recorded.")]
    kernel_ns: Annotated[int | None, column("The median duration of the collectives in the trace.", "ns")]
    record_ns: Annotated[int | None, column("The median duration that the recorder took, if it did.", "ns")]
    timing_source: Annotated[str | None, column("How it was taken: kernel_gpu, kernel_cpu or collective_cpu.")]
    channel_skew_ns: Annotated[
        int | None, column("The median time from the end of the first channel to that of the last.", "ns")
    ]


def analyze(trace: Trace) -> Findings | Skipped:
    """List what the recorders say, and draw what belongs to a collective."""
    if not any(trace.context.attached(kind) for kind in (FlightDumps, NcclLogs, InspectorLogs)):
        return Skipped("no records of collectives are given beside the trace: see --nccl-log and --flight-recorder")
    rows, every = [], traced_collectives(trace)
    for joined in joined_records(trace):
        members, kind, moved = joined.key
        algorithm, agreeing = joined.commonest("algorithm")
        durations = (every.end - every.ts)[joined.places]
        rows.append(
            Row(
                rank=trace.rank,
                recorder=joined.recorder,
                group=joined.group,
                group_size=members if members > 0 else None,
                kind=kind,
                bytes=moved if moved >= 0 else None,
                record_count=len(joined.records),
                joined_count=len(joined.places),
                algorithm=algorithm,
                protocol=joined.commonest("protocol")[0],
                agreeing_ratio=agreeing if algorithm else None,
                channel_count=joined.commonest("channels")[0],
                transport=joined.commonest("transport")[0],
                kernel_ns=int(np.median(durations)) if len(durations) else None,
                record_ns=joined.middle_ns("exec_ns"),
                timing_source=joined.commonest("timing_source")[0],
                channel_skew_ns=joined.middle_ns("skew_ns"),
            )
        )
    if not rows:
        return Skipped("the given records have no collective of this process")
    # what the recorders lost, and what of their files could not be read
    diagnostics = []
    attached = trace.context.attached
    logs = given.logs if (given := attached(NcclLogs)) else ()
    inspected = records.logs if (records := attached(InspectorLogs)) else ()
    for code, counts, message in (
        ("nccl_log_unreadable", [log.unreadable_lines for log in logs], "lines with numbers that are none: left out"),
        ("nccl_log_long", [log.long_lines for log in logs], "lines of more than 64 KiB: their ends were passed over"),
        ("nccl_log_glued", [log.glued_lines for log in logs], "lines glued together: cut where one of NCCL begins"),
        ("nccl_log_left_out", [log.left_out for log in logs], "messages after two million: left out"),
        ("nccl_log_warnings", [log.warnings_left_out for log in logs], "warnings after the first thousand: left out"),
        ("inspector_left_out", [log.left_out for log in inspected], "records after the first million: left out"),
        ("inspector_unreadable", [log.unreadable_lines for log in inspected], "lines that are no record: left out"),
        ("inspector_dropped", [log.dropped for log in inspected], "collectives that the Inspector says it dropped"),
    ):
        if count := sum(counts):
            diagnostics.append(Diagnostic(code, count, message))
    # where the Inspector's own timing is another than the trace's; its times are whole microseconds
    apart = [
        (row.record_ns / row.kernel_ns, row)
        for row in rows
        if row.recorder == "nccl_inspector" and row.record_ns and row.kernel_ns
        if abs(row.record_ns - row.kernel_ns) > max(OTHER_TIMING * row.kernel_ns, 1000)
    ]
    if apart:
        ratio, row = max(apart, key=lambda each: abs(math.log(each[0])))
        what = row.kind + (f" of {text.size(row.bytes)}" if row.bytes is not None else "")
        by_source = f"{text.time(row.record_ns or 0)} by {row.timing_source or 'an unknown source'}"
        in_trace = f"{text.time(row.kernel_ns or 0)} in the trace"
        unlike = f"{text.percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'}"
        message = (
            f"rows where the Inspector's timing is another than the trace's, most of {what}: "
            f"{by_source}, {in_trace} ({unlike})"
        )
        diagnostics.append(Diagnostic("inspector_timing", len(apart), message))
    return Findings(rows, [*_tracks(trace)], diagnostics)


def _tracks(trace: Trace) -> Iterator[Annotation]:
    """Of each device, or thread of the host, its collectives that a recorder tells something of."""
    every, records_of = traced_collectives(trace), defaultdict[int, list[JoinedRecords]](list)
    words: dict[int, dict[str, str]] = {}
    for joined in joined_records(trace):
        words[id(joined)] = {name: str(value) if (value := joined.commonest(name)[0]) else "" for name in TOLD}
        for index in joined.places.tolist():
            records_of[index].append(joined)
    for track in dict.fromkeys(every.track.tolist()):
        here = [i for i in sorted(records_of) if every.track[i] == track]
        # of collectives that run at once on several streams one row shows what does not cross
        shown, until = [], 0
        for index in here:
            if every.ts[index] >= until:
                shown.append(index)
                until = int(every.end[index])
        if not shown:
            continue
        names, columns = [], defaultdict[str, list[str]](list)
        for index in shown:
            told_by = [words[id(each)] for each in records_of[index]]
            said = {name: next(filter(None, (of[name] for of in told_by)), "") for name in TOLD}
            names.append(" ".join(filter(None, (records_of[index][0].key[1], said["algorithm"], said["protocol"]))))
            for name, value in said.items():
                columns[name].append(value)
            columns["recorder"].append(", ".join(dict.fromkeys(each.recorder for each in records_of[index])))
        place = np.array(shown, np.int64)
        yield SliceTrack(
            analysis=NAME,
            name="Collective records",
            under=track,
            ts=every.ts[place],
            dur=every.end[place] - every.ts[place],
            names=Texts.of(names),
            args={name: Texts.of(values) for name, values in columns.items()},
            description="what the recorders beside the trace say of each collective",
        )

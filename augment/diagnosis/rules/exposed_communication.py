"""Does the device only communicate, and compute nothing meanwhile?

The prediction takes from the communication kernels of the steps the time in which the device computes nothing
meanwhile: this is what hiding it would save, or removing it, where computing takes less. It needs the launches of most
work. The answer names the group and kind with most of the exposed time. A collective ends on all ranks together, so
part of its time may be waiting for a late rank. One trace cannot tell; of equal collectives the fastest shows what the
transfer itself takes at most. Where the traces of the other ranks are at hand, the prediction and the advice are about
the transfers alone, and `straggling_rank` is about the waits. A rank that only waits gains nothing by faster transfers
if the late rank gains nothing: what is promised is what the replay of the job gains if no communication of any rank
takes time. Messages between the stages of a pipeline are left out: `pipeline_bubble` is about them.

**What to do**: FSDP: prefetch earlier (``forward_prefetch``, ``set_modules_to_forward_prefetch``), fewer and larger
units. DDP: other bucket sizes (``bucket_cap_mb``), ``gradient_as_bucket_view=True``, BF16 compression. All: accumulate
gradients with ``no_sync()``; look at the job (`augment run` of the folder) for the rank that comes late. Inference:
overlap it with a second micro-batch, spread a layer over fewer devices, kernels made for small messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import RankInJob, Trace, text
from augment.diagnosis import judging, recording_completeness, rule, served

NAME = "exposed_communication"
SURELY_WAITING = 0.5  #: this share of the time beyond the fastest equal collective is called waiting
SLOW_GBPS = 5.0  #: GB/s, less than half of a network of 100 Gb/s: such transfers wait, or the network is slow
MOSTLY_BEYOND = 0.8  #: of the time of collectives: so much beyond the fastest of equal size is not moving data
_FOLDER = "augment diagnose FOLDER with the traces of all ranks"
_FILE = "in this file, by the durations of equal collectives on its devices"
_SERVING = (
    "Overlap it with computation that does not need it (a second micro-batch), spread a layer over fewer devices, or, "
    "if messages are small, use kernels made for them ({})"
)
_SHARDED = (
    "Start it earlier, beside computation that does not need it (with FSDP: forward_prefetch, "
    "set_modules_to_forward_prefetch, fewer and larger units){}"
)
_REPLICATED = (
    "DDP: try other bucket sizes (bucket_cap_mb), gradient_as_bucket_view=True, {}no_sync() while accumulating; "
    "tensor parallelism: async TP, sequence parallelism"
)
#: by kind; and what more helps where elements are wider than 16 bits
_BY_KIND = {
    **dict.fromkeys(
        (facts.names.ALL_GATHER, facts.names.REDUCE_SCATTER, "Gather"), (_SHARDED, "; communicate in BF16")
    ),
    facts.names.ALL_REDUCE: (_REPLICATED, "BF16 compression, "),
}
_OTHERS = "Overlap it with computation that needs no result of it (split the batch in two and take turns), or send less"


class ExposedCommunication(rule.Seen, frozen=True):
    """Communication that computation does not hide; times are per step. ``wait_ns``, of it for late ranks, is None
    where the traces of other ranks are not at hand."""

    exposed_ns: int
    wait_ns: int | None
    kind: str  #: of the collectives with most of the exposed time
    group: str  #: theirs; empty if it has no name
    rank_count: int | None  #: of that group
    most_ratio: float  #: their share of the exposed time
    trains: bool
    collective_count: float  #: of that kind and group
    median_bytes: float | None
    beyond_fastest_ratio: float | None  #: of their time, beyond the fastest of equal size; None if unknown or small
    small_count: int | None  #: of them below 1 MB, if those have most of the time; not per step
    engine: str = ""  #: of inference
    decode_ratio: float | None = None  #: of the time of its decodes that only communicates; None without any
    decode_requests: int | None = None  #: sequences of a decode, the median
    device_count: int = 1  #: in the file, of one rank or of several
    slow_gbps: float | None = None  #: bus bandwidth of the large ones, GB/s, if no link of a cluster is as slow
    is_whole: bool = True  #: all ranks of the collectives have traces, where that of any other is known
    computing_ns: int = 0  #: which hides no more than that
    is_narrow: bool = False  #: elements of most of the exposed time have 16 bits or fewer
    gain_ns: int = 0  #: what is promised
    host_ns: int = 0  #: what the host takes, however fast the devices are
    host_error_ns: int = 0  #: the standard error of that; of a single step all of it

    def _exposed(self, words: text.Words) -> str:
        return f"{text.time(self.exposed_ns)} of communication {words.per_step} is exposed"

    def title(self, words: text.Words) -> str:
        if self.wait_ns is not None:
            return f"{self._exposed(words)}: {self._parts(self.wait_ns)}"
        ranks = "" if self.rank_count is None else text.counted(self.rank_count, "rank")
        group = ", ".join(filter(None, (self.group if self.group != "default_pg" else "", ranks)))  # of all ranks
        label = f"{self.kind} ({group})" if group else self.kind
        beyond = f", {text.percent(self.beyond_fastest_ratio or 0)} of their time beyond the fastest of equal size"
        title = f"{self._exposed(words)}, {text.percent(self.most_ratio)} of it {label}"
        late = ", for late ranks or slow transfers (this trace alone cannot tell)"
        late *= self.device_count == 1 and self.slow_gbps is None and not self._is_hideable
        return f"{title}{beyond if self._mostly_beyond else late}"

    @property
    def _mostly_beyond(self) -> bool:
        """Whether nearly all of it is not moving data: a rank comes late, or something contends."""
        return self.beyond_fastest_ratio is not None and self.beyond_fastest_ratio >= MOSTLY_BEYOND

    def _parts(self, wait_ns: int) -> str:
        absent = "" if self.is_whole else ", or waiting for ranks without traces,"
        return (
            f"{text.time(self.exposed_ns - wait_ns)} transfers{absent} and {text.time(wait_ns)} waiting for late ranks"
        )

    @property
    def _is_hideable(self) -> bool:
        return self.gain_ns <= self.computing_ns

    def cure(self, words: text.Words) -> str:
        verb = "hiding" if self._is_hideable else "removing"
        if self.wait_ns is None:
            return f"{verb} it"
        return f"{verb} the transfers{' of all ranks' if self.gain_ns > self.exposed_ns - self.wait_ns else ''}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        parts = "" if self.wait_ns is None else f" ({self._parts(self.wait_ns)})"
        hidden = self.wait_ns is None and words.ratio(self.exposed_ns - saved_ns) >= rule.LEAST_RATIO
        why = ", as the host or copies take as long meanwhile" if hidden else ""
        return f"{self._exposed(words)}{parts}; {self.cure(words)} would save {words.share(saved_ns)}{why}"

    def advice(self, words: text.Words) -> str:
        late = f"see whether a rank comes late ({_FILE if self.device_count > 1 else _FOLDER})"
        if self.slow_gbps is not None:
            return f"First {late} or the network is slow (NCCL_DEBUG=INFO); then: {self._way}"
        if self._mostly_beyond or (self.wait_ns is None and not self._is_hideable):
            return f"First {late}; then: {self._way}"
        return self._way + (f"; first {late}" if self.wait_ns is None else "")

    @property
    def _way(self) -> str:
        """What to do about collectives of this kind; buckets and units are those of a run that trains."""
        if not self.trains and self.kind != facts.names.ALL_TO_ALL:
            return _SERVING.format(served.option_of("all_reduce", self.engine))
        way, narrower = _BY_KIND.get(self.kind, (_OTHERS, ""))
        return way.format("" if self.is_narrow else narrower)

    def evidence(self, words: text.Words) -> Sequence[str]:
        causes = []
        if self.median_bytes is not None:
            often = words.often(self.collective_count, "collective")
            causes.append(f"{often}, median {text.size(self.median_bytes)}")
        if self.slow_gbps is not None:
            causes.append(
                f"large ones move {self.slow_gbps:.2g} GB/s (bus bandwidth): waiting for a late rank, or a slow network"
            )
        elif self.beyond_fastest_ratio is not None:
            beyond = f"{text.percent(self.beyond_fastest_ratio)} of their time exceeds the fastest of equal size"
            causes.append(f"{beyond}: waiting for other ranks, or contention")
        if self.decode_ratio is not None:
            of = "" if self.decode_requests is None else f" of {text.counted(self.decode_requests, 'sequence')}"
            causes.append(f"{text.percent(self.decode_ratio)} of the time of decodes{of}")
        if self.small_count is not None:
            causes.append(f"most of it in {text.counted(self.small_count, 'collective')} below 1 MB")
        if not self._is_hideable:
            alone = f"{text.time(self.computing_ns)} {words.per_step}, all the computing that has none beside it"
            causes.append(f"hiding it, rather than removing it, can save no more than {alone}")
        return causes

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        exposed = job.wait_ns + job.transfer_ns
        known = replace(self, exposed_ns=exposed, wait_ns=job.wait_ns, is_whole=job.is_whole)
        known = replace(known, beyond_fastest_ratio=None, slow_gbps=None)
        most_ns = None if job.is_paced_by_workers else job.transfer_gain_ns
        gain_ns = min(saved_ns, job.most_saved_ns if most_ns is None else most_ns)
        return replace(known, gain_ns=gain_ns), gain_ns


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose communication is hidden."""
    every, work = facts.collectives.kernels(trace), facts.gpu.work(trace)
    if len(every) and recording_completeness.unlaunched_ratio(trace) > recording_completeness.MOST_UNLAUNCHED:
        return rule.NoData("what waits for communication is unknown: most work has no launch", "record with {calls}")
    of_steps = judging.work_in_steps(trace)[every.place] if len(every) else np.zeros(0, np.bool_)
    inside = every.where(of_steps & ~every.is_message)
    if not len(inside):
        if (work.launch[every.place] == arrays.NO_INDEX).any() and not of_steps.any():
            return rule.NoData("the steps of collectives are unknown: they have no launch", "record with {calls}")
        only = "all communication is messages between stages" if of_steps.any() else ""
        return rule.NotApplicable(only or "no communication kernel runs in the steps")
    windows, steps = judging.measure(trace).windows, judging.measure(trace).count
    ns = every.exposed_ns[inside]
    cut = facts.critical.without_work(trace, every.place[inside], ns)
    # the kind and group with most exposed time, its collectives, its share of all
    (kinds, groups), which = arrays.combinations(every.kind.codes[inside], every.group[inside])
    exposed = arrays.sums(which, ns, len(kinds))
    most = int(np.argmax(exposed))
    kind, group = every.kind.values[int(kinds[most])], every.groups[int(groups[most])]
    worst, share = inside[which == most], float(exposed[most] / max(int(ns.sum()), 1))
    dur, sizes, sizes_of = every.dur[worst], every.bytes[worst], every.element_bytes[worst]
    sized = sizes != arrays.NO_VALUE
    small = sized & (sizes < facts.collectives.SMALL_BYTES)
    engine, decode_ratio, requests = _in_decodes(trace, every, inside)
    large = sized & ~small
    moved = float((sizes * every.bus_factor[worst])[large].sum()) / max(int(dur[large].sum()), 1)  # bytes a ns
    beyond = 0.0  # the share of the time beyond the fastest of equal size
    if sized.all() and len(sizes) > 3:
        distinct, of_size = np.unique(sizes, return_inverse=True)
        least = np.full(len(distinct), np.iinfo(np.int64).max, np.int64)
        np.minimum.at(least, of_size, dur)
        beyond = float((dur - least[of_size]).sum() / max(int(dur.sum()), 1))
    name = group.description if group.description not in ("", "undefined") else group.name
    host = judging.host_ns_of_steps(trace)
    exposed_ns = facts.collectives.exposed_ns(trace, inside, every.ts[inside]) // steps
    saved = min(judging.saved_ahead(trace, cut), exposed_ns)
    kinds_of_work = {"any_of": facts.gpu.COMPUTATION, "none_of": facts.gpu.COMMUNICATION}
    computing = (
        each.time_within(windows.start, windows.end, **kinds_of_work).sum() for each in facts.gpu.coverage(trace)
    )
    seen = ExposedCommunication(
        exposed_ns=exposed_ns,
        wait_ns=None,
        kind=kind,
        group=name,
        rank_count=group.size if group.size != arrays.NO_VALUE else None,
        most_ratio=share,
        trains=facts.collectives.trains(trace),
        collective_count=len(worst) / steps,
        median_bytes=float(arrays.median(sizes[sized])) if sized.any() else None,
        beyond_fastest_ratio=beyond if beyond > SURELY_WAITING else None,
        small_count=int(small.sum()) if dur[small].sum() > 0.5 * dur.sum() else None,
        engine=engine,
        decode_ratio=decode_ratio,
        decode_requests=requests,
        device_count=len(work.devices),
        computing_ns=int(max(computing)) // steps,
        is_narrow=2 * int(ns[which == most][(sizes_of > 0) & (sizes_of <= 2)].sum()) > int(exposed[most]),
        gain_ns=saved,
        host_ns=judging.host_ns(trace) // steps,
        host_error_ns=int(host.std(ddof=1) / len(host) ** 0.5) if len(host) > 1 else int(host.sum()),
        slow_gbps=moved if 0 < moved < SLOW_GBPS and 2 * dur[large].sum() > dur.sum() else None,
    )
    spans = rule.Spans(every.ts[worst], every.end[worst], work.row[every.place[worst]])
    return judging.judged(trace, seen, saved, spans=spans, confidence="high", cut=cut, at_most=True)


def _in_decodes(
    trace: Trace, every: facts.collectives.Collectives, inside: arrays.CollectiveIndexes
) -> tuple[str, float | None, int | None]:
    """The engine of inference, the share of its decodes' time in which collectives are exposed, and their batch."""
    steady = served.steady_steps(trace)
    if steady is None:
        return "", None, None
    steps, places = steady
    decodes = places[[steps.batches[place].phase == "decode" for place in places.tolist()]]
    if not len(decodes):
        return steps.batches[0].engine, None, None
    step = facts.steps.step_of_work(trace, steps.windows)[every.place[inside]]
    exposed = int(every.exposed_ns[inside][np.isin(step, decodes)].sum())
    sizes = [steps.batches[place].requests for place in decodes.tolist() if steps.batches[place].requests >= 0]
    requests = round(arrays.median(np.array(sizes))) if sizes else None
    return steps.batches[int(decodes[0])].engine, exposed / max(int(steps.wall_ns[decodes].sum()), 1), requests

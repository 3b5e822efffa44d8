"""What can be said of a recording without work of a device: what the host does, and why there is nothing else."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from augment import arrays, facts
from augment.core import Category, Trace, derived
from augment.core.text import Words, counted, listed, percent, short, time
from augment.diagnosis import judging, recording_completeness, rule, served, standstills
from augment.diagnosis.rule import NOWHERE
from augment.diagnosis.wording import known_slices, words

MOST_NAMED = 3  #: operators
TOLD_OUTSIDE = 0.1  #: of a step in no operator; less is not told
STILL_NS = 4_000_000  #: Python hands its lock on after 5 ms
LEAST_EVENTS = 3  #: of other threads, over half of the time in which the main thread stands still
NAMED_RATIO = 0.05  #: of the time in operators; those that take less are not named
FEWEST_CALLS = 3  #: of an operator, of which one takes at least half of its time, for that one to be told
_NO_MPS = "; of Apple's MPS this profiler records nothing"
READ_NS = 100_000  #: a number of the host is read in a microsecond
_FASTER = (
    "On a CPU with bfloat16 (avx512_bf16 or amx_bf16 in lscpu), torch.autocast('cpu') and torch.compile speed them up"
)
_LOOPS = "torch._inductor.config.cpp.enable_kernel_profile=True records them"
_QUERY = "augment query answers questions about this one in SQL, and augment open shows it"

_XLA = ("/device:", "/host:")  #: so XLA's profiler names processes
_TENSORFLOW = (" Compute", " Tensors")  #: so TensorFlow's timeline ends the names of its processes
_AUTOGRAD = {"CPU functions", "CUDA functions"}  #: processes of PyTorch's first profiler, whose events have no category
_ON_GPU, _ON_CPU = re.compile(r"aten::_?(?:cudnn|miopen)_"), re.compile(r"aten::_?mkldnn_")  #: libraries of one kind
_SCHEDULE = (
    "Let the profiler's schedule reach an active step (call its step() in the loop), and leave its with block before "
    "the file is written."
)


def unjudged(trace: Trace) -> tuple[str, str]:
    """Why no rule can judge a trace without events of PyTorch's profiler, and what to do."""
    if not len(trace.events):
        cut = next((note.message for note in trace.diagnostics if note.code == "truncated_text"), "")
        foreign = not cut and trace.source.format.startswith("perfetto")
        return (
            f"The file has no events{f': {cut}' if cut else ''}{' that augment reads' if foreign else ''}.",
            f"If another program wrote it, {_QUERY}." if foreign else _SCHEDULE,
        )
    names = sorted({track.process_name for track in trace.tracks if track.process_name})
    whose = f" (its processes: {', '.join(short(name) for name in names[:3])})" if names else ""
    what = f"these events are not from PyTorch's profiler, and no rule knows them{whose}"
    advice, events = "A recording by torch.profiler can be judged", trace.events
    compiling = np.flatnonzero(facts.names.starting(trace, "dynamo_timed")[events.category_name[:]])
    if any(name.startswith(_XLA) and not name.endswith(_TENSORFLOW) for name in names):
        what = f"this is a recording of JAX or XLA, not of PyTorch, and no rule knows its events{whose}"
        advice = "XProf judges the .xplane.pb file that belongs to it"
    elif any(track.pid in _AUTOGRAD for track in trace.tracks):
        what = "this is an export of PyTorch's former profiler; it does not say which call launched what"
    elif len(compiling):
        ns = arrays.sums(events.name[compiling], np.maximum(events.dur[compiling], 0), len(trace.strings))
        most = [f"{short(trace.strings[name])} ({time(int(ns[name]))})" for name in np.argsort(-ns, kind="stable")[:4]]
        what = f"these are the times of torch.compile alone, as tlparse writes them; the longest are {listed(most, 4)}"
        advice = "The log they come from, given with --torch-trace beside a recording by torch.profiler, can be judged"
    return f"Not judged: {what}.", f"{advice}; {_QUERY}."


def timeless(trace: Trace) -> tuple[str, str]:
    """Why a recording cannot be judged whose steps or events take no time, and what to do."""
    step_count = len(facts.steps.recorded(trace))
    whole = counted(step_count, "step") if step_count else counted(len(known_slices(trace)), "event")
    return (
        f"Not judged: no time passes in the {whole} that PyTorch's profiler recorded.",
        f"{_SCHEDULE} augment doctor says what of this file could not be used.",
    )


def host_sentence(trace: Trace, words: Words) -> str:
    """Why there is no work of a device, and where the time of the host goes."""
    calls = len(recording_completeness.kernel_launches(trace))
    recorder = trace.source.metadata.get("recorder")
    note = str(recorder.get("note", "")) if isinstance(recorder, dict) else ""  # why the recorder has no work
    if not calls and not len(facts.host.operator_calls(trace).row):
        known = "only the annotations" if len(trace.events.slices_of(Category.USER_ANNOTATION)) else "nothing"
        return (
            f"Neither {words.gpu} work nor operators were recorded, so {known} can be judged: "
            f"{note or f'record with {words.everything}'}."
        )
    codes = arrays.distinct(trace.events.name[facts.host.operator_calls(trace).row])
    ran = [trace.strings[code] for code in codes.tolist()]
    device = next((name for _, name in trace.source.devices if name), "")
    of_kernels = note or f"record with {words.kernels}"
    if calls:
        lost = "was launched, but not recorded" if calls == 1 else "were launched, but none was recorded"
        why = f"{counted(calls, 'kernel')} {lost} ({of_kernels})"
    elif any(_ON_GPU.match(name) for name in ran):
        why = f"Operators ran on the {words.gpu}, but none of its work was recorded ({of_kernels})"
    elif (waited := _reads(trace)) >= TOLD_OUTSIDE:
        reads = f"aten::_local_scalar_dense, which only reads a number, takes {percent(waited)} of operators' time"
        why = f"A device is waited for ({reads}), but none of its work was recorded ({of_kernels}{_NO_MPS})"
    elif device and any(_ON_CPU.match(name) for name in ran):
        there = f"although there is a {words.gpu} ({short(device)})"
        why = f"There is no {words.gpu} work in this recording, and operators ran on the CPU {there}"
    else:
        why = f"There is no {words.gpu} work in this recording"
    return f"{why}: only the host can be judged{_batches(trace)}{_operators(trace)}."


def _reads(trace: Trace) -> float:
    """The share of operators' time that reading single numbers takes, where it takes far longer than a read."""
    operators = facts.host.operator_calls(trace)
    reads = facts.names.starting(trace, "aten::_local_scalar_dense")[trace.events.name[operators.row]]
    spent = operators.self_ns[reads & (operators.self_ns >= READ_NS)]  # once or twice: the thread had no CPU
    return float(spent.sum() / max(operators.self_ns.sum(), 1)) if len(spent) >= LEAST_EVENTS else 0.0


def _batches(trace: Trace) -> str:
    """How long the steps of an inference engine take by what they compute: ``. vLLM prefills 4 sequences (4,096 new
    tokens) in 674 ms (2 of 3 steps)``; empty without an engine."""
    windows, of_step = judging.measure(trace).windows, facts.steps.batches(trace)
    lengths = defaultdict[tuple[str, str, int, int], list[int]](list)
    for number, ns in zip(windows.number.tolist(), (windows.end - windows.start).tolist(), strict=True):
        if of_step and (batch := of_step[number]).requests > 0 and batch.phase in served.VERBS:
            verb = served.VERBS[batch.phase]
            lengths[batch.engine or "The engine", verb, batch.requests, batch.new_tokens].append(ns)
    said = list[str]()
    for (engine, verb, requests, tokens), each in sorted(lengths.items(), key=lambda item: -sum(item[1]))[:MOST_NAMED]:
        new = f" ({tokens:,} new tokens)" if tokens > 0 else ""
        many = f" ({len(each)} of {len(windows)} steps)" if len(windows) > len(each) else ""
        who = f"{engine} " if not said else ""
        said.append(f"{who}{verb} {counted(requests, 'sequence')}{new} in {time(float(np.median(each)))}{many}")
    return f". {listed(said)}" if said else ""


def _operators(trace: Trace) -> str:
    """Where the host's time goes: ``. For 86 % of a mean step of 1.2 s no recorded thread runs an operator; …`` and ``.
    All operators of the recording take 412 ms: 78 % in aten::mm``."""
    events, whole = trace.events, judging.measure(trace)
    outside, ran, shares = main_thread_outside(trace)
    ratio = arrays.total(outside) / max(arrays.total(arrays.union(whole.windows.start, whole.windows.end)), 1)
    text = _outside(trace, outside, ratio, ran, shares) if ratio >= TOLD_OUTSIDE else ""
    operators = facts.host.operator_calls(trace)
    rows, lasts, within = operators_alone(trace), trace.recorded_ns, ""
    chosen = arrays.is_among(operators.row, judging.rows_in_steps(trace, rows) if whole.count > 1 else rows)
    ns = np.bincount(events.name[operators.row[chosen]], operators.self_ns[chosen], len(trace.strings)).astype(float)
    shares = _shares(trace, ns, float(ns.sum()), operators.row[chosen], operators.self_ns[chosen])
    if not shares:
        return text
    if not text and whole.unit == "recording" and lasts > (1 + TOLD_OUTSIDE) * whole.length_ns:
        between = f"the {time(whole.length_ns)} between the first and the last operator or call"
        within = f" in {between} (of {time(lasts)} recorded)"
    spent = f"All operators of the recording take {time(float(ns.sum()))}"
    if whole.count > 1:
        spent = (
            f"Operators take {time(ns.sum() / whole.count)} per step ({time(float(ns.sum()))} in {whole.count} steps)"
        )
    taken = f"{text}. {spent}{within}: {listed(shares)}"
    if ns[facts.names.starting(trace, "Torch-Compiled Region")].sum() > NAMED_RATIO * ns.sum():
        taken += f". What a Torch-Compiled Region takes itself is spent in loops that torch.compile made ({_LOOPS})"
    of_cpu = ns[facts.names.starting(trace, "aten::mkldnn_", "aten::_mkldnn_")].sum()
    if 2 * of_cpu > ns.sum() and not any(name for _, name in trace.source.devices):
        taken += f". {_FASTER}"
    if text or len(events.slices_of(Category.PYTHON_FUNCTION)):
        return taken
    if len(facts.source.args(trace).texts("Input Dims")[0]):
        return f"{taken}. {words(trace).stacks} shows which lines call them"
    return f"{taken}. {words(trace).stacks} and {words(trace).shapes} show which lines call them, and with which sizes"


@derived
def operators_alone(trace: Trace) -> arrays.EventRows:
    """The rows of operators; the oldest recordings have steps and fetches among them."""
    rows = trace.events.slices_of(Category.CPU_OP)
    return rows[~facts.names.starting(trace, facts.names.STEP, facts.names.FETCH)[trace.events.name[rows]]]


def outside_operators(trace: Trace, windows: facts.steps.StepWindows) -> arrays.Intervals:
    """When no thread runs an operator, nor fetches a batch, of which a rule tells, within ``windows``."""
    known, events = np.concatenate((operators_alone(trace), facts.names.fetches(trace))), trace.events
    known_times = arrays.union(events.ts[known], events.ts[known] + events.dur[known])
    return arrays.subtract(arrays.union(windows.start, windows.end), known_times)


@derived
def main_thread_outside(trace: Trace) -> tuple[arrays.Intervals, float, list[str]]:
    """When no thread runs an operator within steps, and what the main thread is in then: the share of code that
    torch.compile made, and frames and annotations with most of the time, if they were recorded."""
    windows, lane, events = judging.measure(trace).windows, facts.critical.main_track(trace), trace.events
    within, outside = arrays.union(windows.start, windows.end), outside_operators(trace, windows)
    ns = np.zeros(len(trace.strings)) if lane == arrays.NO_INDEX else _spent(trace, lane, outside)
    ns[facts.names.starting(trace, facts.names.STEP)] = 0
    compiled = facts.names.starting(trace, facts.names.COMPILED)
    ran = float(ns[compiled].sum()) / max(arrays.total(outside), 1)
    ns[compiled] = 0
    rows = events.slices_of(Category.USER_ANNOTATION)
    for name in arrays.distinct(events.name[rows]).tolist():  # those that hold everything name nothing
        spans = rule.Spans.of(trace, rows[events.name[rows] == name])
        _, _, inside = arrays.clip(arrays.union(spans.start, spans.end), within)
        ns[name] *= arrays.total(inside) < standstills.WHOLE * arrays.total(within)
    return outside, ran, _shares(trace, ns, arrays.total(outside))


def _outside(trace: Trace, outside: arrays.Intervals, ratio: float, ran: float, shares: list[str]) -> str:
    """What happens while no thread runs an operator: collectives, then what the main thread is in, frames and
    annotations, if they were recorded."""
    whole, lane = judging.measure(trace), facts.critical.main_track(trace)
    length = f"{'a mean step' if whole.count > 1 else words(trace).a_step} of {time(whole.length_ns)}"
    if whole.unit == "recording" and time(whole.length_ns) != time(trace.recorded_ns):
        length = f"the {time(whole.length_ns)} between the first and the last operator or call"
    some = f"For {percent(ratio)} of {length}, no recorded thread runs an operator"
    text = f". {some if len(operators_alone(trace)) else f'No operator runs in {length}'}"  # none: not of PyTorch
    rest = f"of these {time(ratio * whole.length_ns)}"
    collectives = facts.collectives.host_collectives(trace)
    _, _, waits = arrays.clip(arrays.union(collectives.ts, collectives.end), outside)
    waited = arrays.total(waits) / max(arrays.total(outside), 1)
    if waited >= TOLD_OUTSIDE:
        names = arrays.distinct(trace.events.name[collectives.row]).tolist()
        ways = listed([short(trace.strings[name]) for name in names[:MOST_NAMED]])
        waiting = f"{ways} wait{'s' * (len(names) == 1)} for other ranks or the network (all ranks' traces show which)"
        if 2 * waited > 1 and len(operators_alone(trace)):
            text = f". For {percent(waited * ratio)} of {length}, {waiting}. Meanwhile no operator runs"
            rest = f"of all {time(ratio * whole.length_ns)} without operators"
        else:
            text += f"; for {percent(waited)} {rest} {waiting}"
    if ran > NAMED_RATIO:
        text += f"; {percent(ran)} {rest} is code that torch.compile made, whose loops are no operators ({_LOOPS})"
    if shares:
        return f"{text}; {rest} the main thread spends {listed(shares)}{_standing_still(trace, lane)}"
    if 2 * ran > 1:
        return text
    unknown = "what the main thread does then, or waits for, was not recorded"
    return f"{text}; {unknown} ({words(trace).stacks} shows it)"


def _spent(trace: Trace, lane: int, times: arrays.Intervals) -> npt.NDArray[np.float64]:
    """The time that a thread is innermost in slices of each name within ``times``, ns, by the code of the name."""
    segments, part = facts.host.host_segments(trace), facts.host.host_segments(trace).of(lane)
    ts, row = segments.ts[part], segments.row[part][:-1].astype(np.int64)
    _, which, pieces = arrays.clip(times, arrays.Intervals(ts[:-1], ts[1:]))
    inside = row[which] >= 0
    names = trace.events.name[row[which[inside]]]
    return np.bincount(names, (pieces.end - pieces.start)[inside], len(trace.strings)).astype(float)


def _standing_still(trace: Trace, lane: int) -> str:
    """How long the main thread makes no progress in Python code that usually takes microseconds, and whether other
    threads of the process run Python meanwhile: then it cannot, as one at a time holds the interpreter's lock."""
    events, whole, names = trace.events, judging.measure(trace), trace.strings
    segments, part = facts.host.host_segments(trace), facts.host.host_segments(trace).of(lane)
    ts, row = segments.ts[part], segments.row[part][:-1].astype(np.int64)
    known = np.maximum(row, 0)
    interpreted = ~facts.names.starting(trace, "<built-in")
    frames = np.flatnonzero(
        (row >= 0) & (events.category[known] == Category.PYTHON_FUNCTION) & interpreted[events.name[known]]
    )
    took = np.diff(ts)[frames]
    still = frames[(took >= STILL_NS) & standstills.usually_short(events.name[row[frames]].astype(np.int64), took)]
    start, end = ts[:-1][still], ts[1:][still]
    process = [place for place, each in enumerate(trace.tracks) if each.pid == trace.tracks[lane].pid and place != lane]
    others = events.slices_of(Category.PYTHON_FUNCTION)
    others = others[arrays.is_any(events.track[others], process)]
    moments = np.sort(np.concatenate((events.ts[others], events.end[others])))
    first, stop = np.searchsorted(moments, start, side="right"), np.searchsorted(moments, end, side="left")
    some = stop - first >= LEAST_EVENTS
    spread = np.zeros(len(start), np.int64)
    spread[some] = moments[stop[some] - 1] - moments[first[some]]
    held = 2 * spread >= end - start
    within = arrays.union(whole.windows.start, whole.windows.end)
    contended, alone = (
        arrays.total(arrays.clip(arrays.Intervals(start[chosen], end[chosen]), within)[2])
        / max(arrays.total(within), 1)
        for chosen in (held, ~some)
    )
    text = f"of {words(trace).a_step} it stands still in Python code that usually takes"
    if contended >= TOLD_OUTSIDE:
        times = arrays.union(start[held], end[held])
        ns = np.sum([_spent(trace, place, times) for place in process], axis=0) * interpreted
        most = listed([short(names[name]) for name in np.argsort(-ns, kind="stable")[:2].tolist() if ns[name]])
        running = f"other threads run Python{f' ({most})' if most else ''}: the GIL lets one run at a time"
        return f". For {percent(contended)} {text} microseconds, while {running}"
    if alone >= TOLD_OUTSIDE:
        reasons = "whether it gets no CPU, or waits for a lock or for native code, was not recorded"
        return f". For {percent(alone)} {text} microseconds, while no other thread runs Python: {reasons}"
    return ""


def _shares(
    trace: Trace,
    ns: npt.NDArray[np.float64],
    whole: float,
    rows: arrays.EventRows = NOWHERE.row,
    took: arrays.Int64s = NOWHERE.start,
) -> list[str]:
    """The names with most of the time: ``78 % in aten::mm``, and of each whether one of its calls, ``rows`` that took
    so long, has most of it."""
    shares, name_of = list[str](), trace.events.name[rows]
    for name in np.argsort(-ns, kind="stable")[:MOST_NAMED].tolist():
        if ns[name] > NAMED_RATIO * whole:
            calls = took[name_of == name]
            longest = int(calls.max(initial=0))
            many = len(calls) >= FEWEST_CALLS and 2 * longest >= ns[name]
            single = f" ({time(longest)} of it in one of {len(calls):,} calls)" if many else ""
            shares.append(f"{percent(float(ns[name]) / whole)} in {short(trace.strings[name])}{single}")
    return shares

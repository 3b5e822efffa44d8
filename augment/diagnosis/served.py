"""What an inference engine did, in a sentence: phase, batch, time from token to token, use of memory bandwidth."""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.arrays import Places, median
from augment.core import GraphCapture, Trace
from augment.core.text import counted, percent, time
from augment.diagnosis.judging import measure
from augment.diagnosis.rule import NotApplicable
from augment.facts.operators.step_time_parts import largest_names

NO_ENGINE = NotApplicable("no steps of an inference engine were recorded")
LEAST_COVERED = 0.3  #: of the busy time, to tell how much of memory bandwidth is used
NAMED = 0.1  #: of the work: the least share of a kernel without a formula that is named
LEAST_GAP = 0.02  #: of the time from step to step: shorter gaps are not told, nor is time before the first work
VERBS = {"prefill": "prefills", "decode": "decodes", "mixed": "prefills and decodes", "denoise": "denoises"}
_ORDER = ("decode", "mixed", "prefill", "denoise", "step")


def served_sentence(trace: Trace) -> str:
    """The sentence, of the first device; empty without an engine's steps."""
    if (phases := _phases(trace)) is None:
        return ""
    steps, by_phase = phases
    steady = sum(map(len, by_phase.values()))
    engine = steps.batches[int(min(places[0] for places in by_phase.values()))].engine or "The engine"
    lead_in_ns = measure(trace).lead_in_ns  # of the first step: idle time that may belong to each
    parts = [_phase(steps, phase, places, steady, lead_in_ns * (places[0] == 0)) for phase, places in by_phase.items()]
    main = next(iter(by_phase.values()))
    gaps, wall = steps.gap_ns[main], steps.wall_ns[main]
    gap = median(gaps[gaps >= 0]) if (gaps >= 0).any() else 0.0
    if gap >= LEAST_GAP * median(wall):
        parts.append(
            f"the device idles {time(gap)} ({percent(gap / max(median(wall), 1))}) before the next step's work"
        )
    bandwidth = ""
    if "decode" in by_phase and not _unknown_bandwidth(trace, steps, main):  # which alone the bandwidth limits
        used, covered = percent(median(steps.mbu_ratio[main])), percent(median(steps.covered_ratio[main]))
        known = f"bytes are known for {covered} of the busy time"
        # the kernels without a formula that take most of the device's time, if that is a good part of it
        work, operators, on_roof = facts.gpu.work(trace), facts.operators.work(trace), facts.operators.bounds(trace)
        device = work.devices[steps.device]
        owner = operators.owner[device.start : device.stop]
        computes = work.type[device.start : device.stop] == facts.names.KernelType.COMPUTATION
        lacking = np.append(np.isnan(on_roof.bytes) | on_roof.beyond, True)[owner] & computes
        names = " and ".join(largest_names(trace, steps.device, lacking, NAMED))
        known += f", not of {names}" if names else ""
        bandwidth = f". The decodes use at least {used} of the memory bandwidth (MBU): {known}"
    return f"{engine} {'; '.join(parts)}{bandwidth}."


def unknown_bandwidth(trace: Trace) -> str:
    """Why it is not known how much of memory bandwidth decodes use; empty if it is, or without any."""
    phases = _phases(trace)
    why = _unknown_bandwidth(trace, phases[0], phases[1]["decode"]) if phases and "decode" in phases[1] else ""
    return f"The decodes' use of memory bandwidth (MBU) is unknown: {why}." if why else ""


def _phases(trace: Trace) -> tuple[facts.operators.ServedSteps, dict[str, Places]] | None:
    """The steps of the first device, and the steady ones of each phase, the main one first."""
    if not (known := steady_steps(trace)):
        return None
    steps, steady = known
    by_phase = {phase: steady[[steps.batches[place].phase == phase for place in steady.tolist()]] for phase in _ORDER}
    by_phase = {phase: places for phase, places in by_phase.items() if len(places)}
    return None if not by_phase or set(by_phase) == {"step"} else (steps, by_phase)


def _phase(steps: facts.operators.ServedSteps, phase: str, places: Places, whole: int, lead_in_ns: int) -> str:
    """What the steps of a phase do, in the median. Tokens a second are an upper bound if the time before the first
    work, which is left out, is not short."""
    batches = [steps.batches[place] for place in places.tolist()]
    requests = [batch.requests for batch in batches if batch.requests >= 0]
    tokens = [batch.prefill_tokens for batch in batches if batch.prefill_tokens > 0]
    cached = [batch.cached_tokens for batch in batches if batch.cached_tokens > 0]
    text = VERBS.get(phase, "takes steps")
    if requests:
        text += f" {counted(round(median(np.array(requests))), 'sequence')}"
    about = [f"{median(np.array(tokens)):,.0f} new tokens"] if tokens and phase != "decode" else []
    about += [f"{median(np.array(cached)):,.0f} tokens in the KV cache"] if cached else []
    text += f" ({', '.join(about)})" if about else ""
    wall, kept = steps.wall_ns[places], steps.accepted[places]
    drafts = [batch.decode_tokens / batch.decode_requests for batch in batches if batch.decode_requests > 0]
    drafted = phase == "decode" and bool(drafts) and min(drafts) > 1
    if drafted:
        text += f", {median(np.array(drafts)) - 1:.3g} drafted tokens each"
    single = phase == "decode" and all(batch.decode_tokens == batch.decode_requests > 0 for batch in batches)
    least, most = ("at least ", "at most ") if lead_in_ns > LEAST_GAP * int(wall.sum()) else ("", "")
    text += f" in {least}{time(median(wall))}{' a step' * single}"
    some = f"{len(places)} of " * (len(places) < whole)
    text += "" if whole == 1 else f" ({some}{whole} steps)"
    if drafted and (known := kept >= 0).any():
        sequences = int(np.array([batch.decode_requests for batch in batches], np.int64)[known].sum())
        tokens_kept = int(kept[known].sum())
        rate = tokens_kept / max(int(wall[known].sum()), 1) * 1e9
        return text + f"; a step yields {tokens_kept / sequences:.2f} tokens of each, {most}{rate:,.0f} tokens/s"
    if not single:
        return text
    rate = sum(batch.decode_tokens for batch in batches) / max(int(wall.sum()), 1) * 1e9
    return text + f", {most}{rate:,.0f} tokens/s"


def _unknown_bandwidth(trace: Trace, steps: facts.operators.ServedSteps, places: Places) -> str:
    if steps.lacking:
        return steps.lacking
    covered = median(steps.covered_ratio[places])
    if covered >= LEAST_COVERED or trace.context.attached(GraphCapture) is not None:
        return ""
    graphs = (
        "; record the engine's start, too, when it captures its graphs: augment diagnose TRACE --graph-capture FILE"
        * bool((steps.graph_ratio[places] > 0).any())
    )
    return f"bytes are known for only {percent(covered)} of the busy time{graphs}"


# What engines call the options that rules advise.

_OPTIONS: dict[str, dict[str, str]] = {
    "prefill": {
        "vLLM": "lower --max-num-batched-tokens (prompts are computed in chunks beside decodes), or "
        "--long-prefill-token-threshold",
        "SGLang": "--chunked-prefill-size lower, with --enable-mixed-chunk",
        "TensorRT-LLM": "enable_chunked_prefill: true, max_num_tokens lower",
        "": "compute prompts in chunks beside decodes",
    },
    "eager": {
        "vLLM": "--cudagraph-capture-sizes 1 2 4 8 and so on, up to --max-num-seqs",
        "SGLang": "--cuda-graph-max-bs, --cuda-graph-bs",
        "TensorRT-LLM": "cuda_graph_config: batch_sizes, max_batch_size",
        "ATOM": "--cudagraph-capture-sizes",
        "": "capture graphs for these sizes, too",
    },
    "eager_prefill": {
        "vLLM": "--max-cudagraph-capture-size, at least the tokens of a step, here {tokens}",
        "": "capture graphs for the tokens of a step, here {tokens}",
    },
    "launch": {
        "vLLM": "start it without --enforce-eager",
        "SGLang": "start it without --disable-cuda-graph",
        "": "see its options",
    },
    "draft": {
        "vLLM": "num_speculative_tokens of --speculative-config",
        "SGLang": "--speculative-num-steps, --speculative-num-draft-tokens",
        "TensorRT-LLM": "max_draft_len of speculative_config",
        "": "the number of tokens that a draft proposes",
    },
    "all_reduce": {
        "vLLM": "fuse_allreduce_rms of --compilation-config's pass_config",
        "SGLang": "--enable-flashinfer-allreduce-fusion, --enable-nccl-nvls",
        "TensorRT-LLM": "allreduce_strategy",
        "": "one-shot or NVLS all-reduce",
    },
    "gap": {
        "vLLM": "--async-scheduling",
        "SGLang": "the overlap schedule (without --disable-overlap-schedule)",
        "TensorRT-LLM": "the overlap scheduler (disable_overlap_scheduler: false)",
        "": "see its options for asynchronous scheduling",
    },
}


def option_of(cause: str, engine: str) -> str:
    """What an engine calls the option against a cause, a key of ``_OPTIONS``."""
    return _OPTIONS[cause].get(engine, _OPTIONS[cause][""])


def steady_steps(trace: Trace) -> tuple[facts.operators.ServedSteps, Places] | None:
    """The engine's steps on the first device, and the places of the steady ones; None without an engine."""
    if not (served := facts.operators.served_steps(trace)):
        return None
    return served[0], np.flatnonzero(np.isin(served[0].windows.begin, measure(trace).windows.begin))

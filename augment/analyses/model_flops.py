"""What is the MFU by a convention of your own: by the model's parameters, or by operations that you know?

A row for each step and device. Without an option, ``source`` is ``shapes``: the operations of
[step_efficiency](#step_efficiency), forward and backward without recomputation. With
options:

- ``flops_per_step_count``: the operations of a step on this rank, as you know them; ``source`` is ``given``.
- ``parameters_count`` and ``tokens_per_step_count``: 6 N a token, forward and backward; ``source`` is ``parameters``.
  With ``layers_count``, ``hidden_count`` (heads times the size of a head) and ``sequence_count``, attention adds
  12 · layers · hidden · sequence a token: the convention of PaLM (arXiv 2204.02311, appendix B), in which the half that
  a causal mask leaves out counts, too.

Parameters and tokens are those of this rank's share: what the rank computes in a step, whatever the parallelism. The
denominator is one device's peak for ``peak_number``, and the step's window. Where that gives more than 100 %, the
numbers do not fit, and there is no MFU: ``lacking`` says by how much, and the diagnostic ``mfu_above_peak`` counts it.
So ``mfu_ratio`` holds all operations against one peak, where step_efficiency holds each type of number against its own.
From shapes there is an MFU only where step_efficiency gives one: where the operations of 90 % of the time of matrix
products are counted.

**What to do**: compare with published figures of the same model only if the convention and the peak are the same.

Options:
    flops_per_step_count: operations of a step on this rank; 0 is not given.
    parameters_count: parameters that a token goes through on this rank; 0 is not given.
    tokens_per_step_count: tokens of a step on this rank; 0 is not given.
    layers_count: layers of attention on this rank; 0 leaves attention out.
    hidden_count: heads times the size of a head, on this rank.
    sequence_count: tokens of a sequence.
    peak_number: the type of number whose dense peak counts.
"""

from __future__ import annotations

from typing import Annotated

from augment import facts
from augment.core import GPU_WORK, Diagnostic, Findings, OfDevice, Skipped, Trace, column, text

NAME = "model_flops"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One step of one device."""

    step: Annotated[int | None, column("The number of the step; null of a recording without steps.")]
    source: Annotated[str, column("Where the operations come from: shapes, given or parameters.")]
    convention: Annotated[str, column("How they were counted.")]
    model_flops: Annotated[int, column("Operations of the model in the step.", "FLOP")]
    wall_ns: Annotated[int, column("Length of the step's window.", "ns")]
    achieved_tflops: Annotated[float | None, column("Operations by the step.", "TFLOP/s")]
    peak_tflops: Annotated[float | None, column("The dense peak of the device.", "TFLOP/s")]
    peak_number: Annotated[str, column("The type of number that it is of.")]
    mfu_ratio: Annotated[float | None, column("Operations by what the peak allows in the step.", "ratio")]
    lacking: Annotated[str | None, column("Why there is no MFU, and what gives it.")]


def analyze(
    trace: Trace,
    *,
    flops_per_step_count: int = 0,
    parameters_count: int = 0,
    tokens_per_step_count: int = 0,
    layers_count: int = 0,
    hidden_count: int = 0,
    sequence_count: int = 0,
    peak_number: str = "bf16",
) -> Findings | Skipped:
    """Hold the model's operations of each step against one peak."""
    windows = facts.steps.recorded_windows(trace)
    if peak_number not in facts.operators.NUMBERS:
        return Skipped(f"peak_number must be one of {', '.join(facts.operators.NUMBERS)}, not {peak_number}")
    attention = 12 * layers_count * hidden_count * sequence_count
    given = flops_per_step_count or (6 * parameters_count + attention) * tokens_per_step_count
    source = "given" if flops_per_step_count else "parameters" if given else "shapes"
    if source == "shapes" and not facts.operators.work(trace).recorded:
        option = text.recording_words(trace.source.metadata).shapes
        return Skipped(
            f"shapes were not recorded: record with {option}, or give the option "
            "flops_per_step_count, or parameters_count and tokens_per_step_count"
        )
    convention = _CONVENTIONS[source] + ("and whole attention" if source == "parameters" and attention else "")
    rows = []
    for place, (figures, efficiency) in enumerate(facts.operators.efficiencies(trace)):
        device = facts.gpu.work(trace).devices[place]
        peak = facts.operators.limits(trace)[device.device]
        rate = None if peak is None else peak.tflops.get(peak_number)
        counted = efficiency.model_flops
        lacking = facts.operators.why_no_mfu(trace, place) if source == "shapes" else None
        if not rate and not lacking:  # no dense peak of this type of number
            known = ", ".join(peak.tflops if peak else ())
            name = facts.operators.name_of(trace, device.device)
            lacking = f"{name} has no peak of {peak_number}: set peak_number to one of {known}"
            lacking = lacking if known else facts.operators.why_unknown(trace, device.device)
        for step in range(len(windows)):
            flops, wall = given or round(float(counted[step])), int(figures.wall_ns[step])
            achieved = flops / wall / 1e3 if wall else None
            mfu = achieved / rate if rate and achieved is not None else None
            beyond = f"{mfu:,.1f} times what the device can do at most: {_WRONG[source]}" if mfu and mfu > 1 else None
            rows.append(
                Row(
                    rank=device.rank,
                    device=device.device,
                    step=int(windows.number[step]) if windows.number[step] >= 0 else None,
                    source=source,
                    convention=convention,
                    model_flops=flops,
                    wall_ns=wall,
                    achieved_tflops=achieved,
                    peak_tflops=rate,
                    peak_number=peak_number,
                    mfu_ratio=None if lacking or beyond else mfu,
                    lacking=lacking or beyond,
                )
            )
    above = sum(bool(row.peak_tflops and (row.achieved_tflops or 0) > row.peak_tflops) for row in rows)
    return Findings(rows, diagnostics=[Diagnostic("mfu_above_peak", above, _ABOVE)] if above else [])


_ABOVE = "steps with more operations than the device's peak allows: no MFU is given; see the column lacking"
_OTHER_PEAK = "or the peak is that of another type of number (peak_number)"
_WRONG = {
    "shapes": f"operations are counted too high, {_OTHER_PEAK}",
    "given": f"give the operations of this rank in one step, {_OTHER_PEAK}",
    "parameters": f"give this rank's share of parameters and tokens, of one step, {_OTHER_PEAK}",
}


_CONVENTIONS = {
    "shapes": "operations from shapes, without recomputation, masked pairs not counted",
    "given": "operations as given",
    "parameters": "6 N a token ",
}

"""The rows of a comparison. Times of both sides are sums over all compared steps unless a mean is stated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from augment.core import column

Change = Literal["added", "deleted", "increased", "decreased", "unchanged"]
PartChange = Literal["added", "deleted", "renamed", "increased", "decreased", "unchanged"]
Verdict = Literal["regression", "improvement", "different", "within_noise", "unknown"]


class FigureRow(Struct, frozen=True):
    """One figure of the whole run."""

    figure: Annotated[str, column("The name of the figure.")]
    unit: Annotated[str, column("The unit: ns, count, ratio or bytes.")]
    better: Annotated[Literal["lower", "higher", "neither"], column("Which change is an improvement.")]
    control: Annotated[float, column("Mean over the steps, ranks and devices of the control.")]
    test: Annotated[float, column("Mean over the steps, ranks and devices of the test.")]
    delta: Annotated[float, column("Test minus control.")]
    change_ratio: Annotated[float | None, column("The difference divided by the control's mean.", "ratio")]
    step_count: Annotated[int, column("Steps on each side: the samples for the noise.", "count")]
    low: Annotated[float | None, column("Lower end of the 95 % confidence interval of the difference, by a t-test.")]
    high: Annotated[float | None, column("Upper end of that interval.")]
    bootstrap_low: Annotated[float | None, column("Lower end of the interval by resampling the steps.")]
    bootstrap_high: Annotated[float | None, column("Upper end of the interval by resampling the steps.")]
    is_paired: Annotated[
        bool | None, column("Whether steps are compared in pairs, because they are alike; else as independent samples.")
    ]
    p: Annotated[
        float | None, column("Probability of such a difference by chance (t-test), corrected for all figures (Holm).")
    ]
    verdict: Annotated[
        Verdict,
        column("Whether the difference exceeds the noise; different: neither way is better; unknown: not judged."),
    ]
    control_peak: Annotated[str | None, column("The peaks behind MFU and HFU of the control.")]
    test_peak: Annotated[str | None, column("Those of the test; where they differ, neither way is better.")]


class PartRow(Struct, frozen=True):
    """One part of the difference of step time; all parts add up to it."""

    kind: Annotated[
        str, column("computation, exposed_communication, exposed_memory, host_wait, kernel_wait, other or host.")
    ]
    change: Annotated[
        PartChange, column("How the time differs; renamed: other kernels of the same operator or family.")
    ]
    operator: Annotated[str, column("The operator or annotation that launched the work, or that the host was in.")]
    path: Annotated[str, column("Its call path; of several, the one with the largest difference.")]
    control_names: Annotated[list[str], column("Kernels in the control, or activities of the host, the longest first.")]
    test_names: Annotated[list[str], column("The same for the test.")]
    control_ns: Annotated[int, column("Time that the part owned in the control, over all steps.", "ns")]
    test_ns: Annotated[int, column("Time that the part owned in the test.", "ns")]
    delta_ns: Annotated[int, column("Test minus control.", "ns")]
    delta_per_step_ns: Annotated[float, column("The difference per step, rank and device.", "ns")]
    share_ratio: Annotated[float | None, column("The share of the total difference of step time.", "ratio")]
    p: Annotated[
        float | None, column("Probability of such a difference by chance (t-test), corrected for all parts (Holm).")
    ]
    verdict: Annotated[Verdict, column("Whether the difference exceeds the noise.")]


class KindRow(Struct, frozen=True):
    """One kind of work on the devices, or of waiting; the times owned add up to the steps."""

    kind_of_work: Annotated[
        str, column("The family of kernels; host_wait, kernel_wait, other_wait or host without GPU work.")
    ]
    control_count: Annotated[int, column("Kernels, copies and memsets launched in the steps of the control.", "count")]
    test_count: Annotated[int, column("The same in the test.", "count")]
    control_sum_ns: Annotated[int, column("Sum of their durations in the control.", "ns")]
    test_sum_ns: Annotated[int, column("The same in the test.", "ns")]
    control_ns: Annotated[int, column("Time that the kind owned in the control, over all steps.", "ns")]
    test_ns: Annotated[int, column("Time that the kind owned in the test.", "ns")]
    delta_ns: Annotated[int, column("Test minus control.", "ns")]
    delta_per_step_ns: Annotated[float, column("The difference per step, rank and device.", "ns")]
    share_ratio: Annotated[float | None, column("The share of the total difference of step time.", "ratio")]
    p: Annotated[
        float | None, column("Probability of such a difference by chance (t-test), corrected for all kinds (Holm).")
    ]
    verdict: Annotated[Verdict, column("Whether the difference exceeds the noise.")]


class LineRow(Struct, frozen=True):
    """One line of the program, or several that a compiler fused into one kernel."""

    source: Annotated[str | None, column("File and line, as in source_lines; none for work of unknown origin.")]
    control_count: Annotated[int, column("Kernels, copies and memsets launched in the steps of the control.", "count")]
    test_count: Annotated[int, column("The same in the test.", "count")]
    control_ns: Annotated[int, column("Sum of their durations in the control.", "ns")]
    test_ns: Annotated[int, column("The same in the test.", "ns")]
    delta_ns: Annotated[int, column("Test minus control.", "ns")]
    delta_per_step_ns: Annotated[float, column("The difference per step and rank.", "ns")]
    p: Annotated[
        float | None, column("Probability of such a difference by chance (t-test), corrected for all lines (Holm).")
    ]
    verdict: Annotated[Verdict, column("Whether the difference exceeds the noise.")]


class StepRow(Struct, frozen=True):
    """One pair of steps."""

    control_step: Annotated[int | None, column("The number of the control's step; null for a whole recording.")]
    test_step: Annotated[int | None, column("The number of the test's step.")]
    control_ns: Annotated[int, column("Length of the control's window, summed over ranks and devices.", "ns")]
    test_ns: Annotated[int, column("Length of the test's window.", "ns")]
    delta_ns: Annotated[int, column("Test minus control.", "ns")]


class NameRow(Struct, frozen=True):
    """One name of operators, calls or GPU work."""

    side: Annotated[Literal["cpu", "gpu"], column("Whether it runs on the host (cpu) or on a device (gpu).")]
    name: Annotated[str, column("The name, without parts that differ between runs.")]
    change: Annotated[Change, column("How the count differs, as in HTA.")]
    control_count: Annotated[int, column("How often it occurs in the control.", "count")]
    test_count: Annotated[int, column("How often it occurs in the test.", "count")]
    delta_count: Annotated[int, column("Test minus control.", "count")]
    control_ns: Annotated[int, column("Sum of durations in the control.", "ns")]
    test_ns: Annotated[int, column("Sum of durations in the test.", "ns")]
    delta_ns: Annotated[int, column("Test minus control.", "ns")]
    control_mean_ns: Annotated[float | None, column("Mean duration in the control.", "ns")]
    test_mean_ns: Annotated[float | None, column("Mean duration in the test.", "ns")]
    delta_mean_ns: Annotated[float | None, column("Test minus control.", "ns")]
    p: Annotated[float | None, column("Probability of such sums by chance (t-test), corrected for all names (Holm).")]
    verdict: Annotated[Verdict, column("Whether the difference of the sums exceeds the noise.")]


class PathRow(Struct, frozen=True):
    """One call path: an operator within its enclosing operators."""

    path: Annotated[str, column("The names from the outermost call inwards.")]
    change: Annotated[Change, column("How the count differs.")]
    control_count: Annotated[int, column("Calls in the control.", "count")]
    test_count: Annotated[int, column("Calls in the test.", "count")]
    matched_count: Annotated[int, column("Aligned pairs of calls.", "count")]
    control_cpu_ns: Annotated[int, column("Time on the host in the control, including calls inside.", "ns")]
    test_cpu_ns: Annotated[int, column("The same in the test.", "ns")]
    delta_cpu_ns: Annotated[int, column("Test minus control.", "ns")]
    control_cpu_self_ns: Annotated[int, column("Time on the host in the control, without calls inside.", "ns")]
    test_cpu_self_ns: Annotated[int, column("The same in the test.", "ns")]
    control_gpu_ns: Annotated[int, column("Durations of its GPU work in the control, including calls inside.", "ns")]
    test_gpu_ns: Annotated[int, column("The same in the test.", "ns")]
    delta_gpu_ns: Annotated[int, column("Test minus control.", "ns")]
    control_gpu_self_ns: Annotated[int, column("Durations of its own GPU work in the control.", "ns")]
    test_gpu_self_ns: Annotated[int, column("The same in the test.", "ns")]
    control_kernels: Annotated[list[str], column("Its own kernels in the control, the longest first.")]
    test_kernels: Annotated[list[str], column("The same in the test.")]


class HeldRow(Struct, frozen=True):
    """What one line of code held at the peak of a device, of two memory snapshots."""

    device: Annotated[int, column("The device, of the test.")]
    line: Annotated[str, column("The innermost line of the user's own code, and its function.")]
    control_bytes: Annotated[int, column("Held in the control.", "bytes")]
    test_bytes: Annotated[int, column("Held in the test.", "bytes")]
    delta_bytes: Annotated[int, column("The test's minus the control's.", "bytes")]
    control_count: Annotated[int, column("Number of allocations in the control.", "count")]
    test_count: Annotated[int, column("Number of allocations in the test.", "count")]


#: the rows of each table
ROWS: dict[str, type[Any]] = {
    "diff_figures": FigureRow,
    "diff_phases": FigureRow,
    "diff_waterfall": PartRow,
    "diff_kinds": KindRow,
    "diff_source_lines": LineRow,
    "diff_efficiency": FigureRow,
    "diff_steps": StepRow,
    "diff_names": NameRow,
    "diff_call_paths": PathRow,
    "diff_memory": HeldRow,
}

"""The rows of a comparison. Times of both sides are sums over all compared steps unless a mean is stated."""

from __future__ import annotations

from typing import Any, Literal

from augment.findings import column
from augment.records import dataclass

Change = Literal["added", "deleted", "increased", "decreased", "unchanged"]
PartChange = Literal["added", "deleted", "renamed", "increased", "decreased", "unchanged"]
Verdict = Literal["regression", "improvement", "different", "within_noise", "unknown"]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of the whole run."""

    figure: str = column("The name of the figure.")
    unit: str = column("The unit: ns, count, ratio or bytes.")
    better: Literal["lower", "higher", "neither"] = column("Which change is an improvement.")
    control: float = column("Mean over the steps, ranks and devices of the control.")
    test: float = column("Mean over the steps, ranks and devices of the test.")
    delta: float = column("Test minus control.")
    change_ratio: float | None = column("The difference divided by the control's mean.", "ratio")
    step_count: int = column("Steps on each side: the samples for the noise.", "count")
    low: float | None = column("Lower end of the 95 % confidence interval of the difference, by a t-test.")
    high: float | None = column("Upper end of that interval.")
    bootstrap_low: float | None = column("Lower end of the interval by resampling the steps.")
    bootstrap_high: float | None = column("Upper end of the interval by resampling the steps.")
    is_paired: bool | None = column(
        "Whether steps are compared in pairs, because they are alike; else as independent samples."
    )
    p: float | None = column("Probability of such a difference by chance (t-test), corrected for all figures (Holm).")
    verdict: Verdict = column(
        "Whether the difference exceeds the noise; different: neither way is better; unknown: one step per side."
    )


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the difference of step time; all parts add up to it."""

    kind: str = column("computation, exposed_communication, exposed_memory, host_wait, kernel_wait, other or host.")
    change: PartChange = column("How the time differs; renamed: other kernels of the same operator or family.")
    operator: str = column("The operator or annotation that launched the work, or that the host was in.")
    path: str = column("Its call path; of several, the one with the largest difference.")
    control_names: list[str] = column("Kernels in the control, or activities of the host, the longest first.")
    test_names: list[str] = column("The same for the test.")
    control_ns: int = column("Time that the part owned in the control, over all steps.", "ns")
    test_ns: int = column("Time that the part owned in the test.", "ns")
    delta_ns: int = column("Test minus control.", "ns")
    delta_per_step_ns: float = column("The difference per step, rank and device.", "ns")
    share_ratio: float | None = column("The share of the total difference of step time.", "ratio")
    p: float | None = column("Probability of such a difference by chance (t-test), corrected for all parts (Holm).")
    verdict: Verdict = column("Whether the difference exceeds the noise.")


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of work on the devices, or of waiting; the times owned add up to the steps."""

    kind_of_work: str = column("The family of kernels; host_wait, kernel_wait, other_wait or host without GPU work.")
    control_count: int = column("Kernels, copies and memsets launched in the steps of the control.", "count")
    test_count: int = column("The same in the test.", "count")
    control_sum_ns: int = column("Sum of their durations in the control.", "ns")
    test_sum_ns: int = column("The same in the test.", "ns")
    control_ns: int = column("Time that the kind owned in the control, over all steps.", "ns")
    test_ns: int = column("Time that the kind owned in the test.", "ns")
    delta_ns: int = column("Test minus control.", "ns")
    delta_per_step_ns: float = column("The difference per step, rank and device.", "ns")
    share_ratio: float | None = column("The share of the total difference of step time.", "ratio")
    p: float | None = column("Probability of such a difference by chance (t-test), corrected for all kinds (Holm).")
    verdict: Verdict = column("Whether the difference exceeds the noise.")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One pair of steps."""

    control_step: int | None = column("The number of the control's step; null for a whole recording.")
    test_step: int | None = column("The number of the test's step.")
    control_ns: int = column("Length of the control's window, summed over ranks and devices.", "ns")
    test_ns: int = column("Length of the test's window.", "ns")
    delta_ns: int = column("Test minus control.", "ns")


@dataclass(frozen=True, slots=True)
class NameRow:
    """One name of operators, calls or GPU work."""

    side: Literal["cpu", "gpu"] = column("Whether it runs on the host (cpu) or on a device (gpu).")
    name: str = column("The name, without parts that differ between runs.")
    change: Change = column("How the count differs, as in HTA.")
    control_count: int = column("How often it occurs in the control.", "count")
    test_count: int = column("How often it occurs in the test.", "count")
    delta_count: int = column("Test minus control.", "count")
    control_ns: int = column("Sum of durations in the control.", "ns")
    test_ns: int = column("Sum of durations in the test.", "ns")
    delta_ns: int = column("Test minus control.", "ns")
    control_mean_ns: float | None = column("Mean duration in the control.", "ns")
    test_mean_ns: float | None = column("Mean duration in the test.", "ns")
    delta_mean_ns: float | None = column("Test minus control.", "ns")
    p: float | None = column("Probability of such sums by chance (t-test), corrected for all names (Holm).")
    verdict: Verdict = column("Whether the difference of the sums exceeds the noise.")


@dataclass(frozen=True, slots=True)
class PathRow:
    """One call path: an operator within its enclosing operators."""

    path: str = column("The names from the outermost call inwards.")
    change: Change = column("How the count differs.")
    control_count: int = column("Calls in the control.", "count")
    test_count: int = column("Calls in the test.", "count")
    matched_count: int = column("Aligned pairs of calls.", "count")
    control_cpu_ns: int = column("Time on the host in the control, including calls inside.", "ns")
    test_cpu_ns: int = column("The same in the test.", "ns")
    delta_cpu_ns: int = column("Test minus control.", "ns")
    control_cpu_self_ns: int = column("Time on the host in the control, without calls inside.", "ns")
    test_cpu_self_ns: int = column("The same in the test.", "ns")
    control_gpu_ns: int = column("Durations of its GPU work in the control, including calls inside.", "ns")
    test_gpu_ns: int = column("The same in the test.", "ns")
    delta_gpu_ns: int = column("Test minus control.", "ns")
    control_gpu_self_ns: int = column("Durations of its own GPU work in the control.", "ns")
    test_gpu_self_ns: int = column("The same in the test.", "ns")
    control_kernels: list[str] = column("Its own kernels in the control, the longest first.")
    test_kernels: list[str] = column("The same in the test.")


#: the rows of each table
ROWS: dict[str, type[Any]] = {
    "diff_figures": FigureRow,
    "diff_waterfall": PartRow,
    "diff_kinds": KindRow,
    "diff_efficiency": FigureRow,
    "diff_steps": StepRow,
    "diff_names": NameRow,
    "diff_call_paths": PathRow,
}

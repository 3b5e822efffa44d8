"""The rows of a comparison. Times of both sides are of all compared steps together unless a mean is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from augment.findings import column

Change = Literal["added", "deleted", "increased", "decreased", "unchanged"]
PartChange = Literal["added", "deleted", "renamed", "increased", "decreased", "unchanged"]
Verdict = Literal["regression", "improvement", "different", "within_noise", "unknown"]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of the whole."""

    figure: str = column("What is compared.")
    unit: str = column("Its unit: ns, count, ratio or bytes.")
    better: Literal["lower", "higher", "neither"] = column("Which change is an improvement.")
    control: float = column("Mean over the control's steps, and its ranks and devices.")
    test: float = column("Mean over the test's.")
    delta: float = column("Test less control.")
    change_ratio: float | None = column("The difference over the control's mean.", "ratio")
    step_count: int = column("Steps on each side: the samples of the noise.", "count")
    low: float | None = column("Least difference in its 95 % confidence interval, by a t-test.")
    high: float | None = column("Greatest difference in it.")
    bootstrap_low: float | None = column("The same, by resampling the steps.")
    bootstrap_high: float | None = column("The same, by resampling the steps.")
    is_paired: bool | None = column(
        "Whether steps are compared in pairs, as they are alike; else as independent samples."
    )
    p: float | None = column("Probability of such a difference by chance (t-test), corrected for all figures (Holm).")
    verdict: Verdict = column(
        "Whether the difference is beyond the noise; different: neither way is better; unknown: one step a side."
    )


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the difference of step time; all parts add up to it."""

    kind: str = column("computation, exposed_communication, exposed_memory, host_wait, kernel_wait, other or host.")
    change: PartChange = column("How the time differs; renamed: other kernels of the same operator.")
    operator: str = column("The operator or annotation that launched the work, or in which the host was.")
    path: str = column("Its call path; of several, that with the largest difference.")
    control_names: list[str] = column("What ran there in the control, or what the host did, the longest first.")
    test_names: list[str] = column("The same of the test.")
    control_ns: int = column("Time that it owned in the control, all steps together.", "ns")
    test_ns: int = column("Time that it owned in the test.", "ns")
    delta_ns: int = column("Test less control.", "ns")
    delta_per_step_ns: float = column("The difference for a step, of one rank and device.", "ns")
    share_ratio: float | None = column("The difference over the whole difference of step time.", "ratio")
    p: float | None = column("Probability of such a difference by chance (t-test), corrected for all parts (Holm).")
    verdict: Verdict = column("Whether the difference is beyond the noise.")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One pair of steps."""

    control_step: int | None = column("The number of the control's step; null of a whole recording.")
    test_step: int | None = column("The number of the test's step.")
    control_ns: int = column("Length of the control's window, all ranks and devices together.", "ns")
    test_ns: int = column("Length of the test's.", "ns")
    delta_ns: int = column("Test less control.", "ns")


@dataclass(frozen=True, slots=True)
class NameRow:
    """One name."""

    side: Literal["cpu", "gpu"] = column("Whether it runs on the host or on a device.")
    name: str = column("The name, without what differs from run to run.")
    change: Change = column("How the count differs, as in HTA.")
    control_count: int = column("How often it occurs in the control.", "count")
    test_count: int = column("How often it occurs in the test.", "count")
    delta_count: int = column("Test less control.", "count")
    control_ns: int = column("Sum of durations in the control.", "ns")
    test_ns: int = column("Sum of durations in the test.", "ns")
    delta_ns: int = column("Test less control.", "ns")
    control_mean_ns: float | None = column("Mean duration in the control.", "ns")
    test_mean_ns: float | None = column("Mean duration in the test.", "ns")
    delta_mean_ns: float | None = column("Test less control.", "ns")
    p: float | None = column("Probability of such sums by chance (t-test), corrected for all names (Holm).")
    verdict: Verdict = column("Whether the sums differ beyond the noise.")


@dataclass(frozen=True, slots=True)
class PathRow:
    """One call path: an operator within its operators."""

    path: str = column("The names from the outermost call inwards.")
    change: Change = column("How the count differs.")
    control_count: int = column("Calls in the control.", "count")
    test_count: int = column("Calls in the test.", "count")
    matched_count: int = column("Pairs of calls that were aligned.", "count")
    control_cpu_ns: int = column("Time on the host in the control, with all calls in it.", "ns")
    test_cpu_ns: int = column("The same in the test.", "ns")
    delta_cpu_ns: int = column("Test less control.", "ns")
    control_cpu_self_ns: int = column("Time on the host in the control, less the calls in it.", "ns")
    test_cpu_self_ns: int = column("The same in the test.", "ns")
    control_gpu_ns: int = column("Durations of GPU work that it launched in the control, with all calls in it.", "ns")
    test_gpu_ns: int = column("The same in the test.", "ns")
    delta_gpu_ns: int = column("Test less control.", "ns")
    control_gpu_self_ns: int = column("Durations of GPU work that it launched itself in the control.", "ns")
    test_gpu_self_ns: int = column("The same in the test.", "ns")
    control_kernels: list[str] = column("What it launched itself in the control, the longest first.")
    test_kernels: list[str] = column("The same in the test.")

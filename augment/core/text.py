"""All text that is made of figures: units, numbers of digits, lists, and the words that fit a run.

A figure in a table has three decimals, a size has one; a figure in a sentence has two digits in all. Figures become
text here and at the edges (terminal, pages, timelines, files) alone: no text is compared, split or rewritten.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Scales = tuple[tuple[float, str], ...]  #: the size of each unit, descending, and its sign

TIMES: Scales = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
SIZES: Scales = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
BINARY: Scales = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
OPERATIONS: Scales = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP"))
LEAST_SHARE = 0.0005  #: of a step, that is worth a figure
LONGEST_NAME = 60  #: letters of a name in a sentence
_MOST_NPUS = 64  #: of a host
_ROLLS_OVER = 0.9995  #: from this share of a unit on, what is rounded in the smaller unit has four digits
_LENGTH = re.compile(r"[1-9][0-9]{0,3}")  #: of the next part of a mangled name
_DIGITS = {TIMES: 3, SIZES: 1, OPERATIONS: 3}
_HOW = "torch.compile(mode='reduce-overhead') or torch.cuda.graph)"
OPEN_TRACE = "augment open TRACE"  #: in a verdict, which does not know where its trace is
_SPELLED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def scale_of(value: float, scales: Scales) -> tuple[float, str]:
    """The unit that shows ``value`` with at least one digit before the point, and the unit's size."""
    return next((entry for entry in scales if abs(value) >= entry[0]), scales[-1])


def exact(value: float, scales: Scales) -> str:
    """``384.634 ms``, ``13.8 MB``: for tables."""
    scale, sign = scale_of(value, scales)
    return f"{value / scale:,.{_DIGITS[scales]}f} {sign}" if scale > 1 else f"{value:,.0f} {sign}"


def exact_time(ns: float) -> str:
    """``384.634 ms``."""
    return exact(ns, TIMES)


def exact_size(count: float) -> str:
    """``13.8 MB``."""
    return exact(count, SIZES)


def rounded(value: float, scales: Scales) -> str:
    """``380 ms``, ``3.1 ms``: two digits, or as many as there are before the point; for sentences."""
    scale, sign = next((entry for entry in scales if abs(value) >= _ROLLS_OVER * entry[0]), scales[-1])
    scaled = value / scale  # 999.6 ms are 1.0 s, not 1,000 ms
    return f"{scaled:,.0f} {sign}" if abs(scaled) >= 9.95 or scale == 1 else f"{scaled:.1f} {sign}"


def time(ns: float) -> str:
    """``3.1 ms``: two digits, or as many as there are before the point."""
    return rounded(ns, TIMES)


def size(count: float) -> str:
    """``25 MB``."""
    return rounded(count, SIZES)


def sizes(count: float) -> str:
    """``5.3 GB (4.94 GiB)``, the latter as PyTorch's messages say it; ``512 B``."""
    scale, sign = scale_of(count, BINARY)
    return size(count) if scale == 1 else f"{size(count)} ({count / scale:.2f} {sign})"


def four_digits(value: float, scales: Scales) -> str:
    """``62.41 ms``, ``13.34 s``: for names of slices that differ little."""
    scale, sign = scale_of(value, scales)
    scaled = value / scale
    return f"{scaled:,.0f} {sign}" if abs(scaled) >= 1000 else f"{scaled:.4g} {sign}"


def three_digits(ns: float) -> str:
    """``30.7 ms``, ``1.00 s``: for the times of jobs, of which differences matter."""
    scale, sign = next((entry for entry in TIMES[:3] if ns >= _ROLLS_OVER * entry[0]), TIMES[2])
    scaled = ns / scale
    return f"{scaled:,.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {sign}"


def time_unit(ns: float) -> tuple[float, str]:
    """The unit to show ``ns`` in, and its length in ns; seconds only where milliseconds would be many."""
    return scale_of(ns if ns >= 100e9 else min(ns, 999e6), TIMES)


def period(start_ns: int, dur_ns: int) -> str:
    """``84.779-88.415``: as ``augment open --at`` takes it, ms since the first event; of a moment, only this."""
    digits = 6 if 0 < dur_ns < 10_000 else 3  # to the ns where rounding would lose a good part of it
    return f"{start_ns / 1e6:.{digits}f}{f'-{(start_ns + dur_ns) / 1e6:.{digits}f}' * (dur_ns > 0)}"


def opening(sentences: Sequence[str], path: str | None) -> list[str]:
    """The sentences with the path of their trace in their commands, if that is known."""
    return [each.replace(OPEN_TRACE, shlex.join(["augment", "open", path])) if path else each for each in sentences]


def value_text(value: float, unit: str) -> str:
    """A figure of a table with its unit, one of :data:`augment.core.findings.UNITS`."""
    if unit == "ratio":
        return f"{100 * value:.1f} %"
    if unit == "count":
        return f"{value:,.1f}"
    return exact(value, {"ns": TIMES, "FLOP": OPERATIONS}.get(unit, SIZES))


def signed_text(value: float, unit: str) -> str:
    """A difference of two such figures with its sign; ratios in percentage points."""
    if unit == "ratio":
        return f"{100 * value:+.{1 if abs(value) >= 0.001 else 2}f} points"
    return f"{'+' if value > 0 else ''}{value_text(value, unit)}"


def rough_time(ns: float) -> str:
    """``+12.3 ms``: a difference of times with its sign, three digits."""
    scale, sign = scale_of(ns, TIMES)
    return f"{ns / scale:+.3g} {sign}" if ns else "0"


def rough_interval(low_ns: float, high_ns: float, plus: Literal["+", "-"] = "+") -> str:
    """``-1.20 to +0.09 ms``: an interval of times in one unit, three digits of the greater; ``-``: without ``+``."""
    greatest = max(abs(low_ns), abs(high_ns))
    scale, sign = scale_of(greatest, TIMES)
    digits = next((digits for digits, most in ((2, 10), (1, 100)) if greatest < most * scale), 0)
    return f"{low_ns / scale:{plus}.{digits}f} to {high_ns / scale:{plus}.{digits}f} {sign}"


def percent(ratio: float) -> str:
    """``12 %``; one digit after the point below 10 %, and where all but a little is meant: ``99.6 %``. What is not
    quite nothing is ``<0.1 %``."""
    if abs(ratio) < 0.0005:
        return "<0.1 %" if ratio else "0 %"
    is_fine = abs(ratio) < 0.0995 or 0.99 < abs(ratio) < 0.9995
    return f"{100 * ratio:.{int(is_fine)}f} %"


def percents(least: float, most: float) -> str:
    """``32 to 75 %``; ``12 %`` where both are."""
    low, high = percent(least), percent(most)
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def share(part: float, whole: float) -> str:
    """``12.3 %``, for tables; a dash if ``whole`` is 0."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def counted(count: float, noun: str, nouns: str = "") -> str:
    """``1 call``, ``12 calls``, ``2.5 calls``. ``nouns`` is the plural if it is not formed with an s."""
    rounded = round(count, 1)
    text = f"{count:,.0f}" if count >= 10 or (rounded == round(count) and (rounded or not count)) else f"{rounded:,.1f}"
    return f"{text} {noun}" if text == "1" else f"{text} {nouns or noun + 's'}"


def devices_text(devices: Sequence[dict[str, Any]], ranks: int = 1) -> str:
    """``1 of 8 × NVIDIA A100``: the devices that a trace describes, and on how many of them it has work. Of several
    ranks that is the first: ``4 ranks, the first on 1 of 8 × NVIDIA A100``."""
    listed = []
    for name in dict.fromkeys(each["name"] for each in devices):
        alike = [each.get("works") is not False for each in devices if each["name"] == name]
        count = f"{len(alike)} × " if len(alike) > 1 else ""
        of, idle = (f"{sum(alike)} of ", "") if any(alike) else ("", " (no GPU work recorded)")
        listed.append(f"{'' if all(alike) else of}{count}{name or 'unnamed'}{idle}")
    return f"{f'{ranks} ranks, the first on ' * (ranks > 1 and bool(listed))}{', '.join(listed)}"


def device_label(gpu: str, device: object, is_only: bool) -> str:
    """``GPU 0``. An Ascend device is recorded by the number of a process, which is none of the device: ``NPU``, or
    ``NPU of process 800`` of several."""
    if gpu != "NPU" or (isinstance(device, int) and device < _MOST_NPUS):
        return f"{gpu} {device}"
    return gpu if is_only else f"{gpu} of process {device}"


def spelled(number: int) -> str:
    """Small numbers as words."""
    return _SPELLED[number] if number < len(_SPELLED) else f"{number:,}"


def unmangled(name: str) -> str:
    """A name as it is shown: of one that C++ mangled (``_ZN5aiter4gemmILi8EEvv``) the qualified name, with the rest as
    it was recorded (``aiter::gemm<Li8EEvv>``), so that different kernels have different names."""
    if not name.startswith("_Z"):
        return name
    at, parts = 3 if name[2:3] == "N" else 2, list[str]()
    while length := _LENGTH.match(name, at):
        parts.append(name[length.end() : length.end() + int(length[0])])
        at = length.end() + int(length[0])
    if not parts or at > len(name):
        return name
    whole = "::".join("(anonymous)" if part.startswith("_GLOBAL__N") else part for part in parts)
    rest = name[at:]
    return f"{whole}<{rest[1:]}>" if rest.startswith("I") else f"{whole}({rest.removeprefix('E')})"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits a sentence; of a node of autograd, what it is a node of."""
    name = " ".join(unmangled(name).split()).removeprefix("autograd::engine::evaluate_function: ")
    return name if len(name) <= longest else name[: longest - 1] + "…"


#: what a terminal would obey: control codes, and those that turn the direction of text
_CONTROL = {code: f"\\x{code:02x}" for code in range(32)}
_CONTROL |= {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_IN_LINES = {code: escape for code, escape in _CONTROL.items() if chr(code) not in "\n\t"}


def printable(text: str, *, several_lines: bool = False) -> str:
    """A text that no terminal obeys, in one line or as many as it has; JSON remains the same JSON."""
    return text.translate(_IN_LINES if several_lines else _CONTROL)


def capitalized(sentence: str) -> str:
    """The same, its first letter a capital."""
    return sentence[:1].upper() + sentence[1:]


#: headings of columns that do not follow from their names
COLUMN_WORDS = {
    "matrix_used_ns": "on matrix units", "matrix_not_used_ns": "without these",
    "matrix_eligible_ns": "could use them as they are",
    "robust_z": "deviation (robust z)", "median_ratio": "of the median", "ts_ns": "start", "p": "p-value",
    "full_queue_ns": "at 1024 or more", "launch_delay_outlier_count": "long waits, also in the queue",
    "meanwhile": "did meanwhile", "meanwhile_ratio": "share of that", "after_the_others_ns": "others waited",
}  # fmt: skip
_ABBREVIATIONS = re.compile(r"(?i)\b(?:gpu|cpu|cupti|ddp|mfu|hfu|mbu|sm)\b")


def spaced(name: str) -> str:
    """The name of a table or column as people write it: ``GPU time by phase``."""
    return _ABBREVIATIONS.sub(lambda each: each[0].upper(), name.replace("_", " ")).replace("flops", "FLOPs")


def listed(names: Sequence[str], most: int = 3, conjunction: str = "and") -> str:
    """``a, b and c``; of more than ``most``, the first and how many more."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    mark = ("; " if any(", " in name for name in shown) else ", ").join(shown[:-1])
    return f" {conjunction} ".join(filter(None, (mark, shown[-1]))) if shown else ""


_PARALLEL = {
    "dp": "data", "dp_shard": "sharded data", "dp_replicate": "replicated data", "tp": "tensor", "pp": "pipeline",
    "cp": "context", "sp": "sequence", "ep": "expert",
}  # fmt: skip


def job_lines(sentences: Sequence[str], cures: Sequence[str]) -> list[str]:
    """The verdict of a job as lines: its sentences, then with arrows what would cure it."""
    return [*sentences, *(f"→ {cure}" for cure in cures)]


def parallelism(dimension: str) -> str:
    """``data parallelism`` of ``dp``; any other name as it is."""
    return f"{_PARALLEL[dimension]} parallelism" if dimension in _PARALLEL else dimension


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """The first and last of consecutive numbers, of ascending ones."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans


def ranges_text(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: ``0-3, 8``."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(numbers))


def first_of(names: Sequence[str], most: int) -> str:
    """``a, b, …``: the first names, where a list is cut."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def called_from(lines: Sequence[str]) -> str:
    """`` (called from a and b)``, to end an advice with; empty without ``lines``."""
    return f" (called from {listed(lines)})" if lines else ""


class Words(NamedTuple):
    """The words that fit a run: what its device's vendor calls things, and what a figure is a share of: a steady step
    of ``length_ns``, or the whole ``recording``. They are chosen before names of the user's program are filled in."""

    unit: Literal["step", "recording"] = "step"
    length_ns: int = 0
    gpu: str = "GPU"
    waiting: str = "counts as busy, but "  #: a device that waits for other ranks, in a collective
    graphs: str = "CUDA graphs"
    use_graphs: str = "Launch many kernels at once with CUDA graphs (" + _HOW
    no_graph_waits: str = "; a graph cannot hold calls that wait for the {gpu}: move these out first"  #: if it has any
    graph_logs: str = "TORCH_LOGS=cudagraphs,recompiles"
    matrix_units: str = "tensor cores"
    clock_tool: str = "nvidia-smi -q -d CLOCK,PERFORMANCE"
    process_tool: str = "nvidia-smi"
    allocator: str = "PYTORCH_CUDA_ALLOC_CONF"
    torch: str = "torch.cuda"
    fuse: str = "fuse small kernels with torch.compile"
    reuse: str = ""  #: what a program does that asks the driver itself: PyTorch has an allocator of its own
    more_work: str = "batch size, split-K, FlashDecoding"  #: how a kernel gets it
    channels_last: str = "Use memory_format=torch.channels_last for the model and its input"
    pinned: str = "Use pin_memory=True in the DataLoader (or tensor.pin_memory()) and .to(device, non_blocking=True)"
    # what records more, as the recorder calls it
    shapes: str = "record_shapes=True"
    memory: str = "profile_memory=True"
    stacks: str = "with_stack=True"
    calls: str = "ProfilerActivity.CPU, too"
    kernels: str = (
        "ProfilerActivity.CUDA, a CUPTI that fits the driver, and no other profiler beside it, such as nsys or dcgm"
    )
    everything: str = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    warmup: str = "give the profiler's schedule a warmup step"
    schedule: str = "a warmup in the profiler's schedule"
    less: str = "record fewer steps without with_stack and profile_memory, after a warmup step"
    steps: int = 1  #: that figures are means of

    def fill(self, template: str, **values: str) -> str:
        """A text of ours with its ``{gpu}`` and other words, and ``values``, which may be of the user's program."""
        return template.format_map({**self._asdict(), **values})

    @property
    def per_step(self) -> str:
        """``per step``, or ``in the recording``."""
        return "per step" if self.unit == "step" else "in the recording"

    def often(self, count: float, noun: str, nouns: str = "", *, of: str = "") -> str:
        """``12 calls per step``, or ``2 calls in 5 steps`` where a step would have a fraction of a call."""
        if self.each(count):
            return f"{counted(round(count * self.steps), noun, nouns)}{of} in {self.steps} steps"
        return f"{counted(count, noun, nouns)}{of} {self.per_step}"

    def each(self, count: float) -> str:
        """`` per step``, to be said of other figures beside :meth:`often` where this says a number of steps."""
        return f" {self.per_step}" if self.steps > 1 and count < 10 and count != round(count) else ""

    @property
    def a_step(self) -> str:
        """``a step``, or ``the recording``."""
        return "a step" if self.unit == "step" else "the recording"

    def ratio(self, ns: float) -> float:
        """The share of a step."""
        return ns / self.length_ns if self.length_ns else 0.0

    def share(self, ns: float, bound: str = "") -> str:
        """``2.3 % of a step``, after a ``bound`` such as "at most "; ``next to nothing`` where that would be 0.0 %."""
        ratio = self.ratio(ns)
        return f"{bound}{percent(ratio)} of {self.a_step}" if ratio >= LEAST_SHARE else "next to nothing"

    def saving(self, saved_ns: int) -> str:
        """``3.1 ms per step (12 %)``, ``3.1 ms in the recording (12 % of 26 ms)``."""
        of_what = f" of {time(self.length_ns)}" * (self.unit != "step")
        return f"{time(saved_ns)} {self.per_step} ({percent(self.ratio(saved_ns))}{of_what})"


#: how vendors differ from NVIDIA, in whose words the defaults are
_VENDORS: dict[str, dict[str, str]] = {
    "nvidia": {},
    "amd": {
        "graphs": "HIP graphs",
        "use_graphs": "Launch many kernels at once with HIP graphs (" + _HOW,
        "clock_tool": "amd-smi metric --clock --power --temperature",
        "process_tool": "amd-smi process",
        "allocator": "PYTORCH_HIP_ALLOC_CONF",
        "matrix_units": "matrix cores",
        "channels_last": "Use memory_format=torch.channels_last for the model and its input, and set "
        "PYTORCH_MIOPEN_SUGGEST_NHWC=1",
    },
    "ascend": {
        "gpu": "NPU",
        "matrix_units": "Cube units",
        "graphs": "graph mode (torchair)",
        "use_graphs": "Launch many kernels at once with graph mode (torchair)",
        "graph_logs": "TORCH_LOGS=recompiles",
        "clock_tool": "npu-smi info",
        "process_tool": "npu-smi info",
        "allocator": "PYTORCH_NPU_ALLOC_CONF",
        "torch": "torch.npu",
        "calls": "profiler_level=ProfilerLevel.Level1 (torch_npu), which has the calls of CANN",
    },
    "intel": {
        "graphs": "torch.compile",
        "use_graphs": "Use fewer and larger operators",
        "no_graph_waits": "",
        "graph_logs": "TORCH_LOGS=recompiles",
        "clock_tool": "xpu-smi stats",
        "process_tool": "xpu-smi ps",
        "allocator": "PYTORCH_ALLOC_CONF",
        "matrix_units": "matrix engines",
        "torch": "torch.xpu",
    },
    "mtia": {
        "gpu": "MTIA device",
        "matrix_units": "matrix units",
        "graphs": "a larger batch",
        "use_graphs": "Use fewer and larger operators",
        "no_graph_waits": "",
        "clock_tool": "the vendor's tool",
        "process_tool": "the vendor's tool",
        "torch": "torch.mtia",
    },
}
VENDORS = tuple(_VENDORS)
_OF_TORCH = {"memory": "torch.profiler's profile_memory=True", "stacks": "torch.profiler's with_stack=True"}
#: how recorders differ from PyTorch's profiler, by the member ``recorder`` of what they recorded
_RECORDERS: dict[str, dict[str, str]] = {
    "Nsight Systems": {
        **_OF_TORCH,
        "shapes": "torch.autograd.profiler.emit_nvtx(record_shapes=True)",
        "calls": "--trace=cuda,nvtx,osrt",
        "kernels": "--trace=cuda,nvtx,osrt, without another profiler in the process, such as torch.profiler or dcgm",
        "everything": "--trace=cuda,nvtx,osrt",
        "warmup": "call torch.cuda.profiler.start() after a warmup step (nsys profile --capture-range=cudaProfilerApi)",
        "less": "record fewer steps without --cuda-memory-usage and --python-backtrace, after a warmup step",
    },
    "rocprofv3": {
        **_OF_TORCH,
        "shapes": "torch.profiler's record_shapes=True",
        "calls": "--sys-trace",
        "kernels": "--sys-trace, and name the database or the _kernel_trace.csv beside the calls",
        "everything": "--sys-trace",
        "warmup": "begin after a warmup step (rocprofv3 --collection-period, or roctxProfilerResume)",
        "less": "record fewer steps, and kernels without all calls (--kernel-trace), after a warmup step",
    },
}


#: of programs that Nsight Systems recorded and that are not of PyTorch
_OF_CUDA = {
    "use_graphs": "Launch many kernels at once with CUDA graphs (cudaStreamBeginCapture, cudaGraphLaunch)",
    "fuse": "fuse small kernels",
    "reuse": "Allocate once, before what is timed, and reuse that; cudaMallocAsync keeps what is freed in a pool, "
    "with a cudaMemPoolAttrReleaseThreshold also beyond the next synchronization",
    "more_work": "more blocks and threads, which share its loops",
    "pinned": "Allocate what is copied with cudaMallocHost (or cudaHostRegister), and copy with cudaMemcpyAsync",
    "stacks": "nsys profile --sample=process-tree --backtrace=dwarf",
    "memory": "nsys profile --cuda-memory-usage=true",
    "warmup": "call cudaProfilerStart() after some steps (nsys profile --capture-range=cudaProfilerApi)",
    "schedule": "cudaProfilerStart() after them, nsys profile --capture-range=cudaProfilerApi",
    "less": "record fewer steps without --cuda-memory-usage",
}


def words_of(
    vendor: str,
    unit: Literal["step", "recording"] = "step",
    length_ns: int = 0,
    recorder: object = None,
    *,
    is_torch: bool = True,
    steps: int = 1,
) -> Words:
    """The words for the device of a vendor, one of :data:`VENDORS`, for the member ``recorder`` of a trace, and for a
    program of PyTorch or of another kind."""
    name = str(recorder.get("name")) if isinstance(recorder, dict) else ""
    of_program = {} if is_torch or vendor != "nvidia" or name != "Nsight Systems" else _OF_CUDA
    return Words(unit, length_ns, steps=steps, **{**_VENDORS[vendor], **_RECORDERS.get(name, {}), **of_program})


def recording_words(metadata: Mapping[str, object]) -> Words:
    """The words for what a trace with these members lacks."""
    return words_of("nvidia", recorder=metadata.get("recorder"))

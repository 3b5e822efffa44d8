"""Do matrix products and convolutions run without matrix units, although the device has them?

On NVIDIA devices since Volta, tensor cores multiply FP16 (since Ampere BF16 and TF32, too) many times as fast as other
units multiply FP32. The names of kernels tell which units they use. The prediction lets these kernels take half of
their time, which is less than what the peaks promise (8 times on A100); where these promise no more, the saving is a
limit. A type of number that the device multiplies no faster is not advised: on GeForce cards TF32 is as fast as FP32,
and 16-bit numbers are twice as fast. The evidence says
how much of that time has sizes that fit: TF32 and 16-bit numbers need multiples of 8 for the fast kernels, and
multiples of 64 fill them best. The capability tells it of a device whose peak is not known. Products of 16-bit numbers
that no matrix unit does, as of matrices with few columns, and convolutions of narrow groups (depthwise ones) are left
out: another type would not help. Where the host decides how long a step is, little would be saved now: the finding says
what would be saved once it no longer does.

**What to do**: ``torch.set_float32_matmul_precision("high")`` lets FP32 products use TF32; ``torch.autocast`` uses BF16
or FP16. Convolutions use TF32 by default (``torch.backends.cudnn.allow_tf32``), but cuDNN has FP32 kernels for some:
``torch.backends.cudnn.benchmark=True`` and ``channels_last`` may change that, BF16 does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule, wording

NAME = "matrix_units"
FASTER = 2.0  #: so many times as fast products are assumed to become, at most
_FAR = 4.0  #: peaks that promise so much make them at least as fast
_LEAST = 1.5  #: a type of number that is less than so many times as fast as FP32 is not advised
#: the type of number that a device of unknown peak, of NVIDIA's capability, multiplies at least twice as fast as FP32;
#: of 7.5, some have no tensor cores. CUDA C++ Programming Guide, table of arithmetic instructions
_BY_CAPABILITY: dict[tuple[int, ...], tuple[str, float]] = {
    (7, 0): ("fp16", 8.0),
    **dict.fromkeys(((8, 0), (9, 0), (10, 0), (10, 3)), ("tf32", 8.0)),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)), ("bf16", FASTER)),
}
_WORKSTATION = re.compile(r"(?<!GeForce )RTX (?:A|PRO )?\d{3,4}\b")  #: twice as fast in TF32, too
LEAST_KIND = 0.02  #: of the time, for products or convolutions to be named
_LEAST_KNOWN = 0.05  #: of the products' time: of less, sizes say nothing
_TF32 = "plain FP32 kernels on this device mean that TF32 is off for these products"
#: in names of kernels that multiply FP32; but ``cublasGemm`` is a type in names of any kernel of cuBLAS
_PLAIN = re.compile(r"(?<!bla)sgemm|fp32|f32f32_f32f32|ffma|scudnn", re.IGNORECASE)
#: cuDNN's convolutions of FP32 that it also takes for some shapes where TF32 is allowed
_IS_TF32 = re.compile("tf32", re.IGNORECASE)
_ENGINES = re.compile(r"(fprop|dgrad|wgrad)\w*_engine<float", re.IGNORECASE)
#: numbers of 16 bits and less, which such kernels may read, too, and convert
_SHORT = re.compile(r"bfloat16|half|b?f16|fp(?:16|8|4)|int8|e[2-5]m[1-3]", re.IGNORECASE)


class MatrixUnitsUse(rule.Seen, frozen=True):
    """FP32 products and convolutions without matrix units."""

    product_ns: int  #: per step
    later_ns: int  #: of a step, what would be saved once the device no longer waits for the host
    kernels: list[str]  #: most of the time first
    number: str  #: the type of number to use: tf32, bf16 or fp16
    faster: float  #: so many times as fast as FP32
    peak_ratio: float  #: so many times as fast by the peaks of the device, 0 where these are unknown
    fit: facts.operators.TileFit
    is_later: bool = False  #: next to nothing would be saved before
    is_chosen: bool = False  #: by cuDNN, which runs other convolutions in TF32
    kinds: Sequence[str] = ("matrix products", "convolutions")  #: of what takes the time

    @property
    def at_least(self) -> bool:
        return self.peak_ratio >= _FAR

    @property
    def is_limit(self) -> bool:
        return not self.at_least

    def title(self, words: text.Words) -> str:
        often = f"{text.time(self.product_ns)} {words.per_step}"
        later = f". {text.capitalized(self._later(words, self.cure(words)))}" if self.is_later else ""
        return f"FP32 {text.listed(self.kinds)} run without {words.matrix_units} for {often}{later}"

    def _later(self, words: text.Words, cure: str) -> str:
        return f"once the host is faster, {cure} would save up to {words.saving(self.later_ns)}"

    def cure(self, words: text.Words) -> str:
        return f"running them {'twice' if self.faster == FASTER else f'{self.faster:.1f} times'} as fast"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"{words.matrix_units} for FP32 products and convolutions would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        if self.is_chosen:
            other = "or torch.backends.cudnn.benchmark=True and channels_last"
            return f"Use torch.autocast with BF16, {other}: TF32 is on, but cuDNN took kernels of FP32"
        if self.number == "tf32":
            return 'Call torch.set_float32_matmul_precision("high") for TF32, or use torch.autocast with BF16'
        if self.number == "bf16":
            return f"Use torch.autocast with BF16: this device's {words.matrix_units} are faster in 16-bit types only"
        units = f"this device has {words.matrix_units} for it, but not for FP32"
        return f"Use torch.autocast with FP16 (and a GradScaler): {units}"

    def evidence(self, words: text.Words) -> Sequence[str]:
        waits = [self._later(words, "this")] if self.later_ns and not self.is_later else []
        fit = [self.fit.text(words)] * (self.fit.known_ratio >= _LEAST_KNOWN)
        off = [_TF32] * (self.number == "tf32" and not self.is_chosen)
        return [*waits, text.listed(self.kernels), *off, *fit]


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose products use matrix units."""
    work, families = facts.gpu.work(trace), facts.gpu.families(trace)
    inside = judging.work_in_steps(trace)
    products = inside & (families.matrix_units != facts.gpu.MatrixUnits.NO_QUESTION)
    if not products.any():
        return rule.NotApplicable("no matrix product runs in the steps")
    fp32, untold = facts.operators.plain_products(trace), rule.NoData(*facts.operators.UNTOLD_UNITS)
    unnamed = work.where(fp32 & inside & (families.matrix_units == facts.gpu.MatrixUnits.UNTOLD))
    unnamed_ns, whole_ns = (int((work.end[some] - work.ts[some]).sum()) for some in (unnamed, inside))
    is_untold = unnamed_ns > rule.WARNING_RATIO * whole_ns
    limits = facts.operators.limits(trace)
    peaks = [peak for peak in limits.values() if peak is not None]
    ratios: dict[str, float] = {}  # how many times as fast as FP32 the devices multiply a type of number, 0: cannot
    for number in ("tf32", "bf16", "fp16") if peaks else ():
        rates = [(peak.tflops.get(number, 0.0), peak.tflops.get("fp32")) for peak in peaks]
        ratios[number] = min(FASTER if plain is None and rate else rate / (plain or 1.0) for rate, plain in rates)
    if not peaks:
        kinds_of = {_BY_CAPABILITY.get(facts.operators.capability_of(trace, device) or ()) for device in limits}
        of_workstations = [_WORKSTATION.search(facts.operators.name_of(trace, each)) for each in limits]
        if kinds_of == {("bf16", FASTER)} and all(of_workstations):
            kinds_of = {("tf32", FASTER)}
        if wording.vendor(trace) != "nvidia" or len(kinds_of) != 1 or None in kinds_of:
            unknown = rule.NoData("whether the {gpu} has matrix units is unknown", facts.operators.peak_options(trace))
            return untold if is_untold else unknown
        ratios = dict(kind for kind in kinds_of if kind)
    if not (number := next((number for number, ratio in ratios.items() if ratio >= _LEAST), "")):
        return rule.NotApplicable("the {gpu} has no units that multiply faster than those of FP32")
    faster, tf32 = min(ratios[number], FASTER), number == "tf32"
    named, of_row = facts.names.matching, trace.events.name[work.row]
    plain = named(trace, _PLAIN) | named(trace, _ENGINES) & (not tf32)
    places = work.where(products & (families.matrix_units == facts.gpu.MatrixUnits.NOT_USED))
    places = places[(plain[of_row[places]] | fp32[places]) & ~named(trace, _SHORT)[of_row[places]]]
    places = places[~facts.operators.in_narrow_groups(trace, places)]
    dur = np.maximum(work.end[places] - work.ts[places], 0)
    cut = facts.critical.without_work(trace, places, dur - (dur / faster).astype(np.int64))
    saved = judging.saved_a_step(trace, cut)
    convolves = families.is_any(("convolution",))
    is_chosen = tf32 and bool((inside & convolves & named(trace, _IS_TF32)[of_row]).any())
    convolving = int(dur[convolves[places]].sum())
    is_chosen = is_chosen and bool(2 * convolving > dur.sum())
    kinds = {"matrix products": int(dur.sum()) - convolving, "convolutions": convolving}
    spent = arrays.sums(of_row[places], dur, len(trace.strings))
    order = np.argsort(-spent, kind="stable")
    windows, launch = judging.measure(trace).windows, facts.gpu.work(trace).launch
    tracks = arrays.distinct(trace.events.track[launch[launch != arrays.NO_INDEX]].astype(np.int64)).astype(np.int32)
    start, end = (np.tile(side, len(tracks)) for side in (windows.begin, windows.finish))
    host = judging.host_cut(trace, np.repeat(tracks, len(windows)), start, end)
    both = facts.critical.joined([host, cut])  # so the threads that launch take no time in the steps, either
    later = judging.saved_a_step(trace, both) - judging.saved_a_step(trace, host) if len(places) else 0
    seen = MatrixUnitsUse(
        product_ns=int(dur.sum()) // judging.measure(trace).count,
        later_ns=later if judging.measure(trace).ratio(later - saved) >= rule.LEAST_RATIO else 0,
        kernels=[text.short(trace.strings[code]) for code in order[spent[order] > 0].tolist()],
        number=number,
        faster=faster,
        peak_ratio=ratios[number],
        fit=facts.operators.fit_of(trace, places, dur),
        is_chosen=is_chosen,
        kinds=[kind for kind, ns in kinds.items() if ns >= LEAST_KIND * dur.sum()],
    )
    spans = rule.Spans(work.ts[places], work.end[places], work.row[places])
    confidence: rule.Confidence = "high" if tf32 and not is_chosen else "medium"
    if seen.later_ns and judging.measure(trace).ratio(saved) < rule.LEAST_RATIO:
        return rule.Found(msgspec.structs.replace(seen, is_later=True), spans, "medium", cut=cut)
    if is_untold and judging.measure(trace).ratio(saved) < rule.LEAST_RATIO:
        return untold
    return judging.judged(trace, seen, saved, spans=spans, confidence=confidence, cut=cut, at_most=seen.is_limit)

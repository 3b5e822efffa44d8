"""Is the first step an outlier, by the rule of the analysis ``steps``? Then it says nothing about the other steps."""

from __future__ import annotations

import numpy as np

from augment.arrays.statistics import OUTLIER, robust_z
from augment.compare.totals import Samples
from augment.core.text import value_text

_FEWEST = 3  #: minimum of steps per side for leaving one out


def outlying_first_step(control: Samples, test: Samples) -> str:
    """The reason to leave the first step out on both sides, in a sentence; empty if there is none."""
    sides = [("control", control["wall_ns"]), ("test", test["wall_ns"])]
    if min(len(steps) for _, steps in sides) < _FEWEST:
        return ""
    reasons = []
    for side, steps in sides:
        z = robust_z(np.rint(steps).astype(np.int64))
        if z is not None and abs(z[0]) > OUTLIER:
            lengths = f"{value_text(float(steps[0]), 'ns')}, the median {value_text(float(np.median(steps)), 'ns')}"
            reasons.append(f"in the {side} it takes {lengths}")
    return f"the first step is an outlier and left out on both sides: {'; '.join(reasons)}" if reasons else ""


def without_outlying_first_step(control: Samples, test: Samples) -> tuple[Samples, Samples, str]:
    """Both sides without their first steps if one is an outlier, and the reason."""
    why = outlying_first_step(control, test)
    if not why:
        return control, test, ""
    control, test = ({name: values[1:] for name, values in side.items()} for side in (control, test))
    return control, test, why

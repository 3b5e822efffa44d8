"""Whether both sides of a comparison ran on the same type of device: if not, that alone changes times."""

from __future__ import annotations

from collections.abc import Iterable


def difference(control: Iterable[str], test: Iterable[str]) -> str | None:
    """A sentence if the types of devices differ, by their names; None if they are equal, or unknown on a side."""
    before, after = (sorted(set(filter(None, names))) for names in (control, test))
    if not before or not after or before == after:
        return None
    names = f"{', '.join(before)} in the control, {', '.join(after)} in the test"
    return f"The devices differ ({names}), which alone changes times."

"""Selects some of the inputs: certain ranks, or one process's share."""

from __future__ import annotations

from collections.abc import Sequence

from augment.batch import locations
from augment.batch.inputs import Input
from augment.errors import InputError

AT_ONCE = 16  #: remote files inspected at once


def of_ranks(inputs: Sequence[Input], ranks: Sequence[range]) -> list[Input]:
    """The inputs whose rank is in any of ``ranks``, by their first bytes, else by their names.

    Raises:
        InputError: there are none.
    """
    from augment.batch.peek import identify

    paths = [item.path for item in inputs]
    if any(map(locations.protocol, paths)):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as threads:
            identities = list(threads.map(identify, paths))
    else:
        identities = list(map(identify, paths))
    kept = [
        item
        for item, identity in zip(inputs, identities, strict=True)
        if identity.rank is not None and any(identity.rank in some for some in ranks)
    ]
    if inputs and not kept:
        there = sorted({identity.rank for identity in identities if identity.rank is not None})
        where = f"of ranks {spans(there)}" if there else "of unknown rank"
        raise InputError("--ranks", f"no trace of these ranks among {len(inputs)} files {where}")
    return kept


def share(inputs: Sequence[Input], number: int, of: int) -> list[Input]:
    """Every ``of``-th of ``inputs``, starting at ``number``: the share of one of ``of`` processes."""
    return list(inputs[number::of])


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: ``0-3, 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

"""Some of the inputs: of certain ranks, or one process's share."""

from __future__ import annotations

from collections.abc import Sequence

from augment.batch import locations
from augment.batch.inputs import Input
from augment.errors import InputError

AT_ONCE = 16  #: remote files that are looked into together


def of_ranks(inputs: Sequence[Input], ranks: Sequence[range]) -> list[Input]:
    """Those whose rank is in any of ``ranks``; it is told from their first bytes, else from their names.

    Raises:
        InputError: there is none.
    """
    from augment.batch.peek import identify

    paths = [one.path for one in inputs]
    if any(map(locations.protocol, paths)):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as threads:
            identities = list(threads.map(identify, paths))
    else:
        identities = list(map(identify, paths))
    kept = [
        one
        for one, identity in zip(inputs, identities, strict=True)
        if identity.rank is not None and any(identity.rank in some for some in ranks)
    ]
    if inputs and not kept:
        there = sorted({identity.rank for identity in identities if identity.rank is not None})
        found = f"of ranks {spans(there)}" if there else "of unknown rank"
        raise InputError("--ranks", f"no trace of these ranks among {len(inputs)} files {found}")
    return kept


def share(inputs: Sequence[Input], number: int, of: int) -> list[Input]:
    """Every ``of``-th of ``inputs``, from ``number`` on: what one of ``of`` processes has to do."""
    return list(inputs[number::of])


def spans(numbers: Sequence[int]) -> str:
    """``0-3, 8`` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

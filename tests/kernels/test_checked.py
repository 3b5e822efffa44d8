"""Every kernel as plain Python that touches no memory but that of its columns; it writes what machine code writes."""

from __future__ import annotations

import pickle
from contextlib import ExitStack, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from augment import AugmentedTrace, augment, read
from augment.arrays import joined
from augment.facts.source.event_args import IDENTIFIERS, args_of_rows
from augment.job.answer import answer
from augment.job.ranks import summarize
from augment.kernels.catalogue import KERNELS
from augment.kernels.dictionary import Dictionary
from augment.kernels.memory import load_word, store_byte
from augment.kernels.native import address
from augment.readers.attachments.snapshot_file import Pickled
from augment.writers import write_all
from oracles import Checked, Memory, plain_kernels
from simulator import JobOptions, simulate
from traces import event, write_trace

JOB = JobOptions(ranks=2, steps=1, layers=1, memory=True, causes=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A small job; a trace of many places, where slices cross."""
    folder = tmp_path_factory.mktemp("job")
    ranks = [path for path, _ in simulate(JOB, folder)]
    many = [event("cpu_op", f"op{i}", 3 * i, 2, 1, i // 2) for i in range(80)]
    return [*ranks, write_trace(folder / "many.json", *many, event("cpu_op", "across", 1, 3, 1, 0))]


def small_tables() -> ExitStack:
    """Have every table begin so small that it must grow, and few rows drawn."""
    stack = ExitStack()
    for name, value in {
        "augment.readers.event_scanner.LEAST_ROOM": 8,
        "augment.readers.event_scanner.LEAST_PLACES": 2,
        "augment.readers.perfetto.scan._FIRST_ROOM": 8,
        "augment.kernels.wanted_args.Dictionary": lambda table, room, pool: Dictionary(
            table, min(room, 4), min(pool, 64)
        ),
        "augment.kernels.dictionary.FIRST_KNOWN": 4,
        "augment.kernels.dictionary.FIRST_POOL": 64,
        "augment.facts.source.event_args.LEAST_ROOM": 1,
        "augment.writers.perfetto.source._OUT_BYTES": 256,
        "augment.writers.perfetto.packets._OUT_BYTES": 256,
        "augment.writers.templates._BUFFER_BYTES": 256,
        "augment.core.bounds.LEAST_ROWS": 30,
        "augment.core.bounds.SMALL_ROWS": 30,
        "augment.arrays.ordering._FEW": 8,
    }.items():
        stack.enter_context(patch(name, value))
    return stack


def work(job: list[Path], out: Path) -> list[bytes]:
    """Whatever calls kernels: the bytes that it writes."""
    files, summaries = [], []
    for path in job:
        trace = read(str(path))
        args_of_rows(trace, np.arange(len(trace.events)), IDENTIFIERS)
        summaries.append(summarize(AugmentedTrace(trace, {})))
        files += write_all(augment(trace), out / path.name, ["chrome", "perfetto"])
    for native in [path for path in files if path.suffix == ".pftrace"]:
        files += write_all(augment(read(str(native))), out / "again" / native.name, ["perfetto"])
    kinds = np.arange(64, dtype=np.int32) % 3
    recorded = {"segments": [{"address": 1 << 40, "frames": ({"line": place},), "x": None} for place in range(300)]}
    (out / "a.pickle").write_bytes(pickle.dumps([recorded, 1.5, True, -(1 << 62), "text"], 4))
    values = Pickled(str(out / "a.pickle"))
    times = joined(np.arange(64) * 8, np.full(64, 8), kinds, 10).times(np.full(64, 8), kinds, 3)
    return [
        times.tobytes(),
        repr(values.plain(values.root)).encode(),
        repr(answer(summaries[:2], ["0", "1"]).outcomes).encode(),
        *(path.read_bytes() for path in files),
    ]


def test_kernels_stay_within_their_columns_and_write_what_machine_code_writes(job: list[Path], tmp_path: Path) -> None:
    results = []
    for way in (plain_kernels(), nullcontext()):
        with small_tables(), way as memory:
            results.append(work(job, tmp_path))
        if memory is not None:
            assert memory.called == set(KERNELS)
    assert results[0] == results[1]


def test_what_a_kernel_may_not_touch() -> None:
    with plain_kernels() as memory:
        column, other = np.zeros(3, np.int64), np.zeros(3, np.int64)
        place = address(column)
        memory.begin_call("")
        assert load_word(place + 16) == 0
        for wrong, message in ((place + 17, "1 bytes beyond"), (place - 1, "before all"), (other.ctypes.data, "be")):
            with pytest.raises(AssertionError, match=message):
                load_word(wrong)
        with pytest.raises(AssertionError, match="beyond"):
            store_byte(place + 24, 0)
        del column
        memory.begin_call("")
        with pytest.raises(AssertionError, match="before all"):
            load_word(place)
    checked = other.view(Checked)
    for index in (-1, 3):
        with pytest.raises(AssertionError):
            checked[index]
        with pytest.raises(AssertionError):
            checked[index] = 0
    assert Memory().called == set()

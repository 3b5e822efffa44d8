"""Args of packets as columns: by compiled code and by Python, against each other and against the Chrome source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import Trace, augment, read
from augment.core.args import WANTED
from augment.facts.source.event_args import OF_FRAMES, ArgColumns, ArgValues, args_of_rows
from augment.writers import write_all
from oracles import with_unknown_decoder
from perfetto_messages import BEGIN, CLEARED, END, NEEDED, Messages, operators
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

ARGS = {of_frame.name: of_frame for of_frame in (*OF_FRAMES, *WANTED)}


def by(engine: str, trace: Trace) -> dict[str, ArgValues]:
    """The args, by the kernel, or each event decoded as a whole."""
    if engine == "plain":
        trace = with_unknown_decoder(trace)
    return args_of_rows(trace, np.arange(len(trace.events)), list(ARGS.values()))


def values_of_args(trace: Trace, result: dict[str, ArgValues]) -> dict[str, list[Any]]:
    """Of each arg, when and in what it was found, its value, and how many were of each kind."""
    columns, seen = ArgColumns(result), {}
    for name, arg in ARGS.items():
        column = columns.ints(name)
        values: list[Any] = column.values.tolist()
        if arg.is_text:
            texts = columns.texts(name)[1]
            values = [texts.values[code] for code in texts.codes.tolist()]
        events = zip(trace.events.ts[column.rows].tolist(), trace.names_of(column.rows), values, strict=True)
        seen[name] = [*sorted(events), *result[name].counts[2:]]
    return seen


def both(trace: Trace) -> dict[str, list[Any]]:
    compiled, plain = (values_of_args(trace, by(engine, trace)) for engine in ("compiled", "plain"))
    assert compiled == plain
    return compiled


def test_a_simulated_job_has_the_args_of_its_chrome_file(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, memory=True), tmp_path)
    source = read(str(path))
    seen = both(read(str(write_all(augment(source, only=["steps"]), tmp_path / "out", ["perfetto"])[0])))
    assert seen == values_of_args(source, by("plain", source))
    assert sum(len(each) > 100 for each in seen.values()) > 4


VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(0, 300), st.booleans(), st.floats(allow_nan=False),
    st.sampled_from(["", "7", "0x10", " 8", "99999999999999999999", "[[2, 3], []]", "text"]),
    st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), max_size=2),
)  # fmt: skip
NAMES = st.sampled_from(["External id", "external id", "Input Dims", "wait_on_stream", "Other", "Addr"])
CATEGORIES = ("cpu_op", "cpu_op", "cuda_sync", "kernel")


@given(operators(25, st.lists(NAMES, max_size=4), VALUES, *CATEGORIES))
def test_both_ways_agree(tmp_path_factory: pytest.TempPathFactory, made: Messages) -> None:
    both(made.read(tmp_path_factory.mktemp("made")))


def test_strings_hold_until_they_are_cleared(tmp_path: Path) -> None:
    made = Messages()
    made.thread(5, 42, 43, "main")
    for number, (key, text) in enumerate([("Input Dims", "[[1]]"), ("Input type", "['float']"), ("Input Dims", "[]")]):
        packet = made.packet(1, timestamp=10 * number, sequence_flags=CLEARED)
        packet.interned_data.debug_annotation_names.add(iid=1, name=key)
        packet.interned_data.debug_annotation_string_values.add(iid=1, str=text.encode())
        event = packet.track_event
        event.type, event.name, event.track_uuid = BEGIN, f"op {number}", 5
        event.categories.append("cpu_op")
        event.debug_annotations.add(name_iid=1, string_value_iid=1)
        made.packet(1, timestamp=10 * number + 5, sequence_flags=NEEDED).track_event.type = END
    seen = both(made.read(tmp_path))
    assert [dim[1:] for dim in seen["Input Dims"][:-2]] == [("op 0", "[[1]]"), ("op 2", "[]")]
    assert [each[1:] for each in seen["Input type"][:-2]] == [("op 1", "['float']")]

"""What the event scanner takes of ``traceEvents``: as ``oracles.py`` reads every element by itself."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from augment import AugmentedTrace, MalformedTrace, Trace, read
from augment.readers.event_scanner import EventScanner
from augment.readers.events import read_row
from augment.readers.limits import LEAST_NESTING, NESTING, Limits
from augment.readers.members import PADDING
from augment.writers import chrome
from oracles import elements_of, events_one_by_one, handed_on
from traces import SIMULATED, by_folder

pytestmark = pytest.mark.slow

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
FILES = [*SIMULATED, *sorted(path for path in SHARED.rglob("*") if path.is_file() and path.name != "SOURCES.md")]


def scanned(text: bytes, start: int, chunk: int = 1 << 22) -> dict[str, Any]:
    """What is taken of the array whose first element begins from ``start`` on, ``chunk`` bytes more at a time."""
    scanner = EventScanner(NESTING)
    at, end = start, start
    closed = False
    while not closed and end < len(text):
        end = min(end + chunk, len(text))
        taken, closed = scanner.scan(np.frombuffer(text[at:end] + bytes(PADDING), np.uint8), 0, end - at, at)
        at += taken
    return handed_on(scanner)


def described(trace: Trace) -> dict[str, Any]:
    """Everything of a trace, ready to be compared."""
    events = trace.events
    for column in (events.name, events.category_name):
        used = set(column.tolist())
        assert len({trace.strings[code] for code in used}) == len(used), "analyses tell names apart by their numbers"
    flows = [value if value > -2 else trace.strings[-2 - value] for value in events.flow_id.values.tolist()]
    return {
        "ts": events.ts.tolist(),
        "dur": events.dur.tolist(),
        "phase": events.phase.tolist(),
        "category": events.category.tolist(),
        "category_name": [trace.strings[code] for code in events.category_name.tolist()],
        "name": [trace.strings[code] for code in events.name.tolist()],
        "track": [trace.tracks[code] for code in events.track.tolist()],
        "correlation": events.correlation.tolist(),
        "offset": events.offset.tolist(),
        "length": events.length.tolist(),
        "bytes": (events.bytes.rows.tolist(), events.bytes.values.tolist()),
        "flow_id": (events.flow_id.rows.tolist(), flows),
        "ends": (events.ends.rows.tolist(), events.ends.values.tolist()),
        "insert": (trace.source.insert_at, trace.source.insert_comma, trace.source.closing),
        "count": trace.source.event_count,
        "metadata": trace.source.metadata,
        "diagnostics": trace.diagnostics,
        "partial": trace.partial,
    }


@pytest.mark.parametrize("path", FILES, ids=by_folder)
def test_on_every_whole_trace(path: Path) -> None:
    if path.stat().st_size > 300_000:
        pytest.skip("larger than the budget of the suite; the figures of every file are compared elsewhere")
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    if text.lstrip()[:1] not in (b"{", b"[") or (b"traceEvents" not in text[:1_000_000] and text.lstrip()[:1] == b"{"):
        pytest.skip("no Chrome JSON")
    try:
        elements = elements_of(text)
    except ValueError:
        pytest.skip("broken JSON")
    if not elements:
        pytest.skip("no events")
    assert scanned(text, elements[0][0]) == events_one_by_one(elements, NESTING)


numbers = st.one_of(
    st.integers(-(10**16), 10**16).map(str),
    st.decimals(-(10**15), 10**15, places=3).map(str),
    st.decimals(-(10**12), 10**12, places=7).map(lambda number: f"{number:f}"),
    st.sampled_from(["1e3", "-2.5E-2", "1E+15", "0", "-0.0", "9223372036854775.807", "99999999999999999999", "null"]),
)
quoted = st.text(max_size=12).map(lambda text: json.dumps(text, ensure_ascii=False))
escaped = st.text(max_size=12).map(json.dumps)
strings = st.one_of(
    quoted, escaped, st.sampled_from(['"a\\/b"', '"\\u00e9\\ud83d\\ude00"', '"\\ud83d"', '"tab\there"'])
)
values = st.one_of(
    numbers, strings, st.sampled_from(["true", "false", "null", "[]", "{}", '[[1,"}"],{"a":"]"}]', "NaN"])
)
blanks = st.sampled_from(["", " ", "\n    ", "      ", "\t\r\n"])
keys = st.sampled_from(["ph", "ts", "dur", "name", "cat", "pid", "tid", "id", "args", "bp", "s", "extra"])
arg_keys = st.sampled_from(["correlation", "device", "stream", "bytes", "External id", "correlatiox", "a\\u0062c"])


@st.composite
def objects(draw: st.DrawFn, names: st.SearchStrategy[str], members: st.SearchStrategy[str]) -> str:
    parts = [
        f'{draw(blanks)}"{draw(names)}"{draw(blanks)}:{draw(blanks)}{draw(members)}{draw(blanks)}'
        for _ in range(draw(st.integers(0, 8)))
    ]
    return "{" + ",".join(parts) + "}"


@st.composite
def plausible(draw: st.DrawFn) -> str:
    """An event that is mostly in order, in Kineto's layout or in any other."""
    args = draw(objects(arg_keys, st.one_of(numbers, values)))
    gap = draw(st.sampled_from([" ", "\n    "]))
    name, category = draw(strings), draw(st.sampled_from(["cpu_op", "kernel", "gpu_memcpy", "Kernel", "cuda_runtime"]))
    phase = draw(st.sampled_from(["X", "X", "X", "B", "E", "i", "s", "f", "M", "C", "?", "XX"]))
    pid, tid = draw(st.sampled_from(["1", '"1"', "-3", "7.0", "null"])), draw(st.sampled_from(["7", '"stream 7"', "8"]))
    return (
        f'{{\n    "ph": "{phase}", "cat": "{category}", "name": {name}, "pid": {pid}, "tid": {tid},{gap}'
        f'"ts": {draw(numbers)}, "dur": {draw(numbers)},{gap}"args": {args}\n  }}'
    )


elements = st.one_of(plausible(), plausible(), objects(keys, values), st.sampled_from(["null", "[1]", "12", '"text"']))


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes]], list[int]]:
    """A text, its whole elements with their offsets, and which of them no comma divides from the one before."""
    events = [first.encode(), *(row.encode("utf-8", "surrogatepass") for row in draw(st.lists(elements, max_size=12)))]
    some = st.sampled_from(draw(st.sampled_from([[","], [",\n  "], [" , ", " ", "\n", ",,"]])))
    text, whole, undivided = b"[", [], []
    for number, event in enumerate(events):
        between = draw(some) if number else ""
        text += between.encode()
        if number and "," not in between:
            undivided.append(len(text))
        whole.append((len(text), event))
        text += event
    text += b'], "traceName": "x"}'
    cut = draw(st.one_of(st.none(), st.none(), st.integers(2, len(text))))
    if cut is not None:  # a bare value may go on behind the cut
        whole = [(at, row) for at, row in whole if at + len(row) < cut or (row[-1] in b"]}" and at + len(row) == cut)]
        undivided = [at for at in undivided if any(at == begins for begins, _ in whole)]
    return text[:cut], whole, undivided


first = '{"ph": "X", "name": "first", "pid": 1, "tid": 2, "ts": 1, "dur": 1}'


@settings(suppress_health_check=list(HealthCheck))
@given(made=texts(), chunk=st.sampled_from([1 << 22, 1, 7, 64]))
def test_on_texts_that_nobody_would_write(made: tuple[bytes, list[tuple[int, bytes]], list[int]], chunk: int) -> None:
    text, whole, undivided = made
    expected = events_one_by_one(whole, NESTING)
    for at in undivided:
        expected["tally"].add("missing_comma", at)
    assert scanned(text, 1, chunk) == expected


def spans(events: list[str]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The text of an array, and its elements with their offsets."""
    text, whole = b"[", []
    for event in events:
        whole.append((len(text), event.encode()))
        text += event.encode() + b","
    return text + b"null]", [*whole, (len(text), b"null")]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("chunk", [1 << 22, 97])
def test_what_stands_where_something_like_it_stood(chunk: int) -> None:
    head = '{"ph": "X", "name": "n", "pid": 1, "tid": 2, "ts": 1000000000000.001, "dur": 12345678.5'
    args = [
        '"device"', '"device":1', '"device": 1', '"device" :1', '"devic":1', '"device\\"":1', '"Input Dims":[1]', "",
        '"Input Dims":[1 ]', '"Input DimsX":[1]', '"Addr":12345678901', '"Addr":1234567890123456789', '"Addr":-7',
        '"Addr":12.5', '"Addr":""', '"Addr":{"device":3}', ',"device":1', '"device":1,',
    ]  # fmt: skip
    events = [
        f'{head}, "args": {{{arg}{comma}{other}{close}'
        for arg in args
        for other in args[1::6]
        for comma, close in ((",", "}}"), (", ", "\n}\n}"), (" ", "}}"))
    ]
    some = ("0", "-1", "7" * 18, "7" * 19)
    events += [f'{head},\n "args": {{"device":{digits}}}, "id":{digits}}}' for digits in some]
    text, whole = spans(events + events[::-1])
    assert scanned(text, 1, chunk) == events_one_by_one(whole, NESTING)


def test_more_keys_than_are_remembered() -> None:
    events = [f'{{"ph":"X","ts":{k},"dur":1,"args":{{"key{k}":1,"device":{k}}}}}' for k in range(1500)]
    text, whole = spans(events + events[::-1])
    assert scanned(text, 1) == events_one_by_one(whole, NESTING)


@pytest.mark.parametrize(("last", "count"), [
    ('"text"', 1), ('"text"]', 2), ('"te', 1), ("12", 1), ("null", 1), ("[1]", 2), ('["\\q"]', 2), ("[1", 1),
])  # fmt: skip
def test_a_text_that_ends_with_a_bare_value(last: str, count: int) -> None:
    assert scanned(f"[{first}, {last}".encode(), 1)["event_count"] == count


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_commas_that_are_missing(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted wherever a chunk ends, between whatever elements, and not across arrays."""
    monkeypatch.setattr("augment.readers.chrome.CHUNK_BYTES", size)
    path = tmp_path / "trace.json"
    events = f'{first}{first} , {first}\n12 , 13 "," [1]{first},,{first},'
    path.write_text(f'{{"traceEvents": [{events}], "traceEvents": [ {first} {first}]}}')
    trace = read(str(path))
    assert trace.source.event_count == 11
    (missing,) = [diagnostic for diagnostic in trace.diagnostics if diagnostic.code == "missing_comma"]
    assert missing.count == 6
    assert f"the first at byte {len(first) + 17}; read as if" in missing.message


def test_wherever_a_chunk_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements, members and strings may be cut by the end of what was read so far."""
    event = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 3}
    events = [event | {"name": f'k"{i}\\', "ts": i + 0.125, "args": {"correlation": i}} for i in range(40)]
    path = tmp_path / "trace.json"
    members = {"deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": events, "end": [1, 2]}
    path.write_text(json.dumps(members, indent=1))
    whole = described(read(str(path)))
    assert whole["count"] == 40
    for size in (1, 2, 3, 7, 61, 256):
        monkeypatch.setattr("augment.readers.chrome.CHUNK_BYTES", size)
        assert described(read(str(path))) == whole


@pytest.mark.parametrize("chunk", [40, 64, 333])
def test_blanks_that_fill_chunks(chunk: int) -> None:
    """What lies beyond the end of what was read so far may be blanks, too: those of an earlier chunk."""
    for text, count in ((f"[{' ' * 999}", 0), (f"[{first},{' ' * 999}{first}{' ' * 401}]{' ' * 57}", 2)):
        assert scanned(text.encode(), 1, chunk)["event_count"] == count


def test_tables_grow(tmp_path: Path) -> None:
    """More distinct strings, places and rows than there is room for at first."""
    count = 70_000
    lines = (
        f'{{"ph":"X","cat":"c{i % 300}","name":"distinct {i}","pid":{i % 700},"tid":"t{i % 50}","ts":{i},"dur":1}}'
        for i in range(count)
    )
    path = tmp_path / "trace.json"
    path.write_text("[" + ",".join(lines) + "]")
    trace = read(str(path))
    assert len(trace.events) == count
    assert trace.names_of(np.array([0, count - 1])) == ["distinct 0", f"distinct {count - 1}"]
    text = path.read_bytes()
    assert scanned(text, 1) == events_one_by_one(elements_of(text), NESTING)


def test_odd_events_share_the_names_of_others(tmp_path: Path) -> None:
    """An event without oddity, one with odd args, and the same name and category written otherwise."""
    head = '"cat": "kernel", "pid": 0, "tid": 7, "dur": 1'
    texts = [r'"name": "a/b\u00e9"', r'"name": "a\/b\u00e9"', '"name": "a/bé"']
    lines = [f'{{"ph": "X", {head}, {text}, "ts": {k}}}' for k, text in enumerate(texts)]
    lines += [f'{{"ph": "X", {head}, {text}, "ts": {k}, "args": null}}' for k, text in enumerate(texts, 3)]
    lines += [f'{{"ph": "s", {head}, {texts[0]}, "ts": 9, "id": {flow}}}' for flow in ("-5", 2**64 - 1, '"a/bé"', 7)]
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(lines) + "]", encoding="utf-8")
    trace = read(str(path))
    assert len(set(trace.events.name.tolist())) == len(set(trace.events.category_name.tolist())) == 1
    assert described(trace)["flow_id"][1] == ["-5", str(2**64 - 1), "a/bé", 7]
    chrome.write(AugmentedTrace(trace, {}), tmp_path / "out.json.gz")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("most", [LEAST_NESTING, NESTING])
@pytest.mark.parametrize("beyond", [0, 1, 2000])
def test_nesting(tmp_path: Path, most: int, beyond: int) -> None:
    """An event that nests as deep as is allowed is read; of one that goes deeper nothing is, in whichever member."""
    head = '{"ph": "X", "name": "deep", "pid": 1, "tid": 2, "ts": 5, "dur": 1, '
    inner = most + beyond
    events = [
        first,
        head + f'"other": {nested(inner - 1)}}}',
        head + f'"args": {{"x": {nested(inner - 2)}, "correlation": 3}}}}',
        head + f'"args": {{"x": {{"a": {nested(inner - 3)}}}, "correlation": 4}}}}',
        f'{{"ph": "M", "name": "process_name", "pid": 1, "args": {{"name": "p", "x": {nested(inner - 2)}}}}}',
        nested(inner),
        first,
    ]
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [\n' + ",\n".join(events) + "]}")
    trace = read(str(path), limits=Limits(nesting=most))
    codes = {diagnostic.code: diagnostic.count for diagnostic in trace.diagnostics}
    assert trace.source.event_count == 7
    if beyond:
        assert len(trace.events) == 2
        assert codes == {"nested_too_deeply": 5}
    else:
        assert trace.events.correlation.tolist() == [-1, -1, -1, 3, 4]
        assert codes == {"malformed_event": 1}


def test_nesting_around_the_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for depth in (NESTING, NESTING + 1):
        path.write_text(f'{{"x": {nested(depth)}, "traceEvents": [{first}], "y": {nested(depth)}}}')
        if depth == NESTING:
            assert read(str(path)).partial is None
        else:
            with pytest.raises(MalformedTrace, match="byte 6: this value is nested deeper than 128"):
                read(str(path))


# Mutated traces, the same at each run: see fuzzing.py. In a process of its own, which forbidden memory ends.
SCRIPT = Path(__file__).parents[1] / "support" / "fuzzing.py"


@pytest.mark.skipif(sys.platform == "win32", reason="pages are guarded by mprotect")
def test_mutated_traces() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--count", "16"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-500:]}"


def test_names_that_come_again_and_again_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some profilers write a thread's name for each of its events; a name that came before may be the last, too."""
    path, count = tmp_path / "t.json", 0
    first, second, other = (
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
        for tid, name in ((1, "first"), (1, "second"), (2, "other"))
    )
    one_event = {"ph": "X", "name": "x", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return read_row(*arguments)

    monkeypatch.setattr("augment.readers.event_scanner.read_row", counted)
    for names, last, reads in (
        ([first, other] * 500, "first", 2),
        ([first, first, other, second, first], "first", 4),
        ([first, second, other, other, second], "second", 4),
    ):
        path.write_text(json.dumps({"traceEvents": [*names, one_event, {**one_event, "tid": 2}]}))
        count = 0
        assert [track.thread_name for track in read(str(path)).tracks] == [last, "other"]
        assert count == reads

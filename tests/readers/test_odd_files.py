"""What real files are like: each oddity is read, counted, or refused in one line that says where and what to do."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from augment import InputError, LimitExceeded, MalformedTrace, Trace, UnknownFormat, augment, read
from augment.core import Category
from augment.job.ranks import summary_of
from augment.readers.events import ns_of
from augment.readers.limits import Limits
from augment.readers.members import nested_end
from augment.writers import write_all
from perfetto_messages import diagnostic_counts

FIRST = {"ph": "X", "cat": "cpu_op", "name": "first", "pid": 1, "tid": 2, "ts": 10, "dur": 5}


@pytest.fixture
def reading(tmp_path: Path) -> Any:
    def read_text(text: str | bytes, name: str = "trace.json") -> Trace:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read(str(path))

    return read_text


def events(*some: Any, **members: Any) -> str:
    return json.dumps({**members, "traceEvents": [FIRST, *some]})


@pytest.mark.parametrize(("text", "ns"), [
    ("1712195495406752.797", 1712195495406752797),
    ("1759276800000001.1235", 1759276800000001124),  # a half to even
    ("0.0005", 0),
    ("0.0015", 2),
    ("1e3", 1_000_000),
    ('"1704161511420306.491"', 1704161511420306491),  # as Ascend writes them
    ("-83.561", -83561),
    ("9223372036854775.807", 9223372036854775807 - 5000),
])  # fmt: skip
def test_times_are_exact(reading: Any, text: str, ns: int) -> None:
    if ns > 9 * 10**18:  # its end would not fit
        text = "9223372036854770.807"
    trace = reading(f'[{{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": {text}, "dur": 5}}]')
    assert trace.events.ts.tolist() == [ns]


def test_the_base_time_makes_times_absolute_and_is_kept(reading: Any) -> None:
    trace = reading(events(baseTimeNanoseconds=1759276800000000000))
    assert trace.events.ts.tolist() == [1759276800000010000]
    assert trace.source.base_ns == 1759276800000000000


def test_rows_ascend_and_ties_keep_the_order_of_the_file(reading: Any) -> None:
    trace = reading(
        events({**FIRST, "name": "early", "ts": 1}, {**FIRST, "name": "tie"}, {**FIRST, "name": "late", "ts": 99})
    )
    assert trace.names_of(np.arange(4)) == ["early", "first", "tie", "late"]


def test_string_pids_and_tids_are_tracks_of_their_own(reading: Any) -> None:
    trace = reading(events({**FIRST, "tid": "2"}, {**FIRST, "tid": "stream 7"}, {**FIRST, "pid": "Spans", "tid": ""}))
    assert [(track.pid, track.tid) for track in trace.tracks] == [(1, 2), (1, "2"), (1, "stream 7"), ("Spans", "")]


def test_device_and_stream_come_from_args_else_from_pid_and_tid(reading: Any) -> None:
    kernel = {**FIRST, "cat": "kernel", "pid": 0, "tid": 7}
    trace = reading(
        events(
            {**kernel, "args": {"device": 3, "stream": 1 << 62}},
            {**kernel, "args": {"stream": "copy"}},
            kernel,
            {**FIRST, "args": {"device": 0, "stream": 0}},  # a host event that speaks of a stream lies on none
        )
    )
    assert [(track.device, track.stream) for track in trace.tracks] == [(None, None), (3, 1 << 62), (0, "copy"), (0, 7)]


@pytest.mark.parametrize(("name", "category"), [
    ("Kernel", Category.KERNEL),
    ("Memcpy", Category.GPU_MEMCPY),
    ("Runtime", Category.CUDA_RUNTIME),
    ("Operator", Category.CPU_OP),
    ("hip_runtime", Category.CUDA_RUNTIME),
    ("mtia_ccp_events", Category.KERNEL),
    ("mlu_memcpy", Category.GPU_MEMCPY),
    ("hpu_op", Category.CUDA_RUNTIME),
    ("something new", Category.OTHER),
])  # fmt: skip
def test_old_and_foreign_categories(reading: Any, name: str, category: Category) -> None:
    trace = reading(events({**FIRST, "cat": name, "ts": 11}))
    assert trace.events.category.tolist() == [Category.CPU_OP, category]
    assert trace.strings[trace.events.category_name[1]] == name


def test_waits_of_streams_of_an_mtia_device_are_no_work(reading: Any) -> None:
    device = {**FIRST, "cat": "mtia_ccp_events", "ts": 11}
    trace = reading(
        events({**device, "name": "event_wait"}, {**device, "name": "merge"}, {**FIRST, "name": "event_wait"})
    )
    of_name = dict(zip(trace.names_of(range(len(trace.events))), trace.events.category.tolist(), strict=True))
    assert (of_name["merge"], trace.events.category.tolist().count(Category.CUDA_SYNC)) == (Category.KERNEL, 1)


def test_ascend_kernels_have_no_category(reading: Any) -> None:
    trace = reading(
        json.dumps([
            {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "Ascend Hardware"}},
            {"ph": "X", "name": "MatMul", "pid": 9, "tid": 3, "ts": "1.5", "dur": "2"},
        ])
    )  # fmt: skip
    assert trace.events.category.tolist() == [Category.KERNEL]
    assert (trace.tracks[0].stream, trace.tracks[0].process_name) == (3, "Ascend Hardware")


@pytest.mark.parametrize(("name", "members", "rank", "source"), [
    ("trace.json", {"distributedInfo": {"rank": 5}}, 5, "distributedInfo"),
    ("rank-34_of_300.pt.trace.json", {}, 34, "file name"),
    ("rank7.json", {"distributedInfo": {"backend": "nccl"}}, 7, "file name"),
    ("rank7.json", {"distributedInfo": {"rank": -1}}, 7, "file name"),
    ("trace.json", {"distributedInfo": {"rank": 10**30}}, None, None),
    ("rank_20240102123456789.json", {}, None, None),
    ("frank7.json", {}, None, None),
    ("node1_local_rank0_rank8.json", {}, 8, "file name"),
    ("rank8-local-rank_0.json", {}, 8, "file name"),
    ("local_rank3.json", {}, 3, "file name"),
    ("rank_3/trace.json", {}, 3, "folder name"),
    ("rank_3/rank7.json", {}, 7, "file name"),
    ("trace.json", {}, None, None),
    ("obs.et", {}, None, None),  # what an ending says of a file counts for no JSON
    ("rank_3/trace.tgz", {}, 3, "folder name"),
])  # fmt: skip
def test_where_the_rank_comes_from(reading: Any, name: str, members: Any, rank: int | None, source: str | None) -> None:
    trace = reading(events(**members), name)
    assert (trace.rank, trace.source.rank_from) == (rank, source)


def test_what_cannot_be_used_is_counted(reading: Any) -> None:
    trace = reading(
        events(
            {},
            {**FIRST, "ts": None},
            {k: v for k, v in FIRST.items() if k != "dur"},
            {**FIRST, "ph": "?"},
            None,
            [1, 2],
            {**FIRST, "dur": 9.2e15},  # its end is beyond 64 bits
            baseTimeNanoseconds=1759276800000000000,
        )
    )
    assert len(trace.events) == 1
    assert trace.source.event_count == 8
    assert diagnostic_counts(trace) == {
        "event_without_phase": 1,
        "event_without_time": 1,
        "slice_without_duration": 1,
        "unknown_phase": 1,
        "malformed_event": 2,
        "time_out_of_range": 1,
    }


@pytest.mark.parametrize(
    ("base", "usable"),
    [(10**30, False), (-(2**63), False), ("x", False), ([1], False), (True, False), (-(2**62), True), ("1000", True)],
)
def test_an_odd_base_time(reading: Any, base: Any, usable: bool) -> None:
    trace = reading(events(baseTimeNanoseconds=base))
    assert trace.events.ts.tolist() == [10_000 + int(base) if usable else 10_000]
    assert diagnostic_counts(trace) == ({} if usable else {"unusable_base_time": 1})


def test_times_whose_differences_would_not_fit(reading: Any) -> None:
    odd = [{"ts": -5e15}, {"dur": -9.2e15}, {"ts": -4.6e15, "dur": -1e14}, {"ts": 9.2e15, "dur": 9.2e15}]
    trace = reading(events(*({**FIRST, **each} for each in odd)))
    assert trace.events.ts.tolist() == [10_000]
    assert diagnostic_counts(trace) == {"time_out_of_range": 4}


def test_what_lasts_more_than_a_year_is_left_out(reading: Any) -> None:
    year = 366 * 86_400 * 10**6
    trace = reading(events({**FIRST, "dur": 7.5e15}, {**FIRST, "dur": year + 1}, {**FIRST, "dur": year}))
    assert trace.events.dur.max() == year * 1000
    assert len(trace.events) == 2
    assert diagnostic_counts(trace) == {"time_out_of_range": 2}


def test_a_broken_event_costs_itself_alone(reading: Any) -> None:
    """Kineto has written names with unescaped quotes."""
    broken = '{"ph": "X", "name": "say "hello"", "ts": 1, "dur": 1}'
    trace = reading(f"[{broken}, {json.dumps(FIRST)}, {json.dumps({**FIRST, 'ts': float('nan')})}]")
    assert trace.names_of(np.arange(1)) == ["first"]
    assert diagnostic_counts(trace) == {"malformed_event": 1, "event_without_time": 1}
    assert "byte 1;" in trace.diagnostics[1].message


@pytest.mark.parametrize("args", [
    '"Process Group Description": , "Seq": 1',  # Kineto, where there is none
    '"blocks per SM": inf, "warps per SM": -nan',
    r'"file": "C:\Users\me"',
    '"grid": [1,,2]',
])  # fmt: skip
def test_work_with_broken_args_is_still_work(tmp_path: Path, args: str) -> None:
    head = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 2'
    lines = [f'{head}, "ts": {k}.125, "args": {{"correlation": {k}, {args if k % 2 else ""}}}}}' for k in range(8)]
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ",\n".join(lines).replace(", }", "}") + '], "traceName": "x"}')
    trace = read(str(path))
    assert trace.events.ts.tolist() == [1000 * k + 125 for k in range(8)]
    assert trace.events.correlation.tolist() == list(range(8))
    if "[" not in args:  # what is nested is not looked at until it is asked for
        assert diagnostic_counts(trace) == {"mended_event": 4}
    assert [each["correlation"] for each in augment(trace).trace.args_of(np.arange(8))] == list(range(8))


def test_invalid_utf8_and_control_characters_and_half_surrogates(reading: Any) -> None:
    names = [b"caf\xe9", b"tab\there", rb"\ud83d", rb"\ud83d\ude00"]
    trace = reading(b"[" + b",".join(b'{"ph":"i","name":"%s","pid":1,"tid":2,"ts":1}' % name for name in names) + b"]")
    assert trace.names_of(np.arange(4)) == ["caf�", "tab\there", "�", "\U0001f600"]


@pytest.mark.parametrize("cut", [1, 30, 74, 76, 100])
def test_a_truncated_file_gives_what_is_whole(reading: Any, cut: int) -> None:
    text = events({**FIRST, "name": "second"}, {**FIRST, "name": "third"})
    trace = reading(text[:-cut])
    assert "byte" in trace.partial
    assert trace.names_of(np.arange(1)) == ["first"]
    assert trace.source.closing == b"]}"
    assert text[: trace.source.insert_at].endswith("}")
    assert diagnostic_counts(trace) == {"truncated_text": 1}


@pytest.mark.parametrize(("stated", "size"), [(8, 8), ("8", 8), (True, None), (-1, None), ("many", None), ([8], None)])
def test_the_size_of_the_job(tmp_path: Path, stated: Any, size: int | None) -> None:
    path = tmp_path / "trace.json"
    path.write_text(events(distributedInfo={"rank": 0, "world_size": stated}))
    assert (trace := read(str(path))).source.world_size == size
    assert summary_of(augment(trace)).world == (size or -1)


@pytest.mark.parametrize(("member", "known"), [
    ('"distributedInfo": {"backend": "nccl", "rank": , "world_size": 2}', {"backend": "nccl", "rank": None}),
    ('"distributedInfo": {"rank": 3, "pg_config": [{"pg_desc": , "ranks": }]}', {"rank": 3}),
    ('"distributedInfo": {"rank": 3, "x": -nan},', {"rank": 3}),
    ("\"distributedInfo\": {'rank': 3}", {}),  # a dict of Python's as text
    ('"note": "say /"hi/""', {}),  # as Kineto writes add_metadata("note", 'say "hi"')
    ('"note": not json', {}),
    ('"note": ', {}),
    ('"note": "odd /" quote", "list": [1, 2', {}),
    ('"note": [' + 70 * " " + '"odd " quote", {"traceEvents" : 3}]', {}),
])  # fmt: skip
def test_a_broken_member_before_the_events_does_not_cost_them(
    tmp_path: Path, member: str, known: dict[str, Any]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'{{"schemaVersion": 1, {member}, "traceEvents"\n: [{json.dumps(FIRST)}], "traceName": "x"}}')
    trace = read(str(path))
    assert (len(trace.events), trace.partial, diagnostic_counts(trace)) == (1, None, {"broken_member": 1})
    assert trace.source.metadata["schemaVersion"] == 1
    assert trace.source.metadata["traceName"] == "x"
    info = trace.source.metadata.get("distributedInfo", {})
    assert {name: info.get(name) for name in known} == known


def test_what_breaks_after_the_events_does_not_cost_them(reading: Any) -> None:
    text = events()[:-1] + ', "traceName" "x"}'
    trace = reading(text)
    assert len(trace.events) == 1
    where = text.index('"x"')
    assert trace.partial == f"after traceEvents, at byte {where}: expected ':' after \"traceName\""


@pytest.mark.parametrize(("text", "error", "says"), [
    ("", UnknownFormat, "the file is empty"),
    ("   \n", UnknownFormat, "not a trace: it starts with "),
    ("hello", UnknownFormat, "not a trace: it starts with "),
    ('{"a\\nb": 1}', UnknownFormat, "(its members: a b)"),
    ('{"nodes": []}', UnknownFormat, "(its members: nodes); an execution trace? --execution-trace"),
    ("[[1, 2]]", UnknownFormat, "not of events; a memory timeline? --memory-timeline"),
    ("[1, 2]", UnknownFormat, "a JSON array, but not of events"),
    ('{"schemaVersion": 1, "trace', MalformedTrace, "byte 27: the text ends before traceEvents"),
    ('{"schemaVersion" 1}', MalformedTrace, "byte 17: expected ':'"),
    ('{"device\\iProperties": []}', MalformedTrace, "byte 1: this name is no JSON"),
    ('{"traceEvents": [garbage, {"ph": "M"}]}', MalformedTrace, "byte 17: expected an event"),
    ('{"traceEvents": [{"ph": "M"}, garbage, {"ph": "M"}]}', MalformedTrace, "byte 30: expected an event"),
    ('{"traceEvents": [{"ph": "M"}, }, {"ph": "M"}]}', MalformedTrace, "byte 30: expected an event"),
    ('{"traceEvents": [{"ph": "M"}, "text"garbage]}', MalformedTrace, "byte 30: expected an event"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(
    reading: Any, text: str, error: type[InputError], says: str
) -> None:
    with pytest.raises(error) as refused:
        reading(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "trace.json" in str(refused.value)


def test_an_event_without_end_in_a_large_file_is_refused(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_EVENT_BYTES", "CHUNK_BYTES"):
        monkeypatch.setattr(f"augment.readers.chrome.{limit}", 1000)
    value = json.dumps(FIRST)
    with pytest.raises(MalformedTrace, match="an event here is larger than"):
        reading(f'{{"traceEvents": [{value}, {{"ph": "X", "name": "it"s", "x": "{"y" * 5000}"}}, {value}]}}')


def test_zeros_between_events_are_blanks(reading: Any) -> None:
    value = json.dumps(FIRST)
    trace = reading(f'{{"traceEvents": [{value},\0\0\0{value}\0]}}')
    assert (len(trace.events), trace.partial) == (2, None)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no such file"):
        read("nowhere.json")


def test_members_before_and_after_and_twice(reading: Any) -> None:
    text = '{"a": [1, {"b": "]}"}], "traceEvents": [%s], "c": "x", "traceEvents": [%s], "d": null}\n'
    trace = reading(text % (json.dumps(FIRST), json.dumps({**FIRST, "ts": 11})))
    assert trace.source.metadata == {"a": [1, {"b": "]}"}], "c": "x", "d": None}
    assert len(trace.events) == 2
    assert diagnostic_counts(trace) == {"repeated_trace_events": 2}


def test_a_byte_order_mark_and_text_after_the_end(reading: Any) -> None:
    trace = reading(b"\xef\xbb\xbf" + events().encode() + b"\n garbage")
    assert len(trace.events) == 1
    assert set(diagnostic_counts(trace)) == {"byte_order_mark", "trailing_text"}


def test_args_can_be_asked_for_later(reading: Any) -> None:
    trace = reading(events({**FIRST, "ts": 1, "args": {"Input Dims": [[2, 3]]}}, {**FIRST, "ts": 0}))
    assert trace.args_of(np.array([1, 2, 0, 1])) == [{"Input Dims": [[2, 3]]}, {}, {}, {"Input Dims": [[2, 3]]}]


def test_an_arrow_from_a_thread_without_slices(reading: Any) -> None:
    """It was filtered, cut or lost: nobody waits for the backward thread, and nothing breaks."""
    arrow = {"id": 2, "pid": 1, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"}
    backward = {**FIRST, "name": "AddmmBackward0", "tid": 3, "ts": 150, "dur": 60}
    trace = reading(
        events({**arrow, "ph": "s", "tid": 7, "ts": 100}, {**arrow, "ph": "f", "tid": 3, "ts": 150}, backward)
    )
    assert augment(trace).trace is trace


def test_times_whose_difference_no_integer_holds(reading: Any) -> None:
    """Each is an int64 of nanoseconds; what begins more than 2^63 ns after the first event is left out, and counted."""
    trace = reading(events({**FIRST, "ts": -1621401187231073}, {**FIRST, "ts": 9007199254740993}))
    assert len(trace.events) == 2
    assert sum(diagnostic_counts(trace).values()) == 1, diagnostic_counts(trace)
    augment(trace)


def checkpoint() -> bytes:
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("model/data.pkl", b"x")
        archive.writestr("model/version", b"3")
    return text.getvalue()


@pytest.mark.parametrize(("name", "content", "words"), [
    ("x.json.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    ("x.json", b"\n<!DOCTYPE html><html>Log in</html>", "web page"),
    ("x.json", gzip.compress(b"<html>"), "web page"),
    ("x.json", b'{"rocprofiler-sdk-tool": [{}]}', "--output-format pftrace"),
    ("x.pt", checkpoint(), "checkpoint of torch.save"),
    ("t.json", b'[{"id":1,"model_name":"simple","model_version":1},', "Triton Inference Server"),
    ("t.json", b'[{"id": 3, "timestamps": [{"name": "HTTP_RECV_START", "ns": 1}]}]', "Triton Inference Server"),
    ("proton.hatchet", b'[\n  {\n    "children": [\n      {"children": [], "frame": {}', "Triton's Proton"),
    ("x.pickle", pickle.dumps([1, 2]), "pickles are never loaded"),
    ("x.sqlite", b"SQLite format 3\0" + bytes(100), "SQLite"),
    ("x.nsys-rep", b"QDSTRM" + bytes(100), "Nsight"),
    ("x.xplane.pb", b"\n\x0c/host:CPU", "trace.json.gz beside it"),
    ("ranks.tar.gz", b"rank0.json\0\0\0", "unpack it"),
    ("results.csv", b'"Index","KernelName","gpu-id"\n', "rocprof"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_each_kind_of_file_is_called_by_its_name(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match="(?s)" + words) as caught:
        read(str(path))
    assert "\n" not in str(caught.value)


def test_a_damaged_gzip_says_gzip(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": []}')[:12])
    with pytest.raises(InputError, match="gzip"):
        read(str(path))


SIZES = [0, 1, 4080, 4090, 4093, 4094, 4095, 4096, 16_380, 16_384, 70_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("filling", ["x", "\\", '"', "é", "]"])
def test_an_end_is_found_beyond_any_length(size: int, filling: str) -> None:
    value = json.dumps({"a": [{"b": filling * size}, "}"], "c": {}}, ensure_ascii=False).encode()
    whole = np.frombuffer(value + b', "next": [{}]}' + b" " * 5000, np.uint8)
    assert nested_end(whole) == len(value)
    for end in (0, 1, len(value) // 2, len(value) - 1):
        assert nested_end(whole[:end]) == -1


# A value that no profiler writes costs one diagnostic, at once, never the file: in both scanners, and in
# analyses.
NO_TIMES = [
    "1e999990", "-1e999999", "1e99999999999999999999", "1e16", '"--5"', '"²"', '"٥"', '""', '"\\u0035"', "9" * 5000,
    "NaN", "-Infinity", "true", "null", "[]", "{}",
]  # fmt: skip
KERNEL = '{{"ph":"X","cat":"kernel","name":"k{0}","pid":0,"tid":7,"ts":{1},"dur":5,"args":{{"device":0,"stream":7}}}}'


@pytest.mark.parametrize(("text", "ns"), [
    ("0e999999", 0),
    ("1e-999990", 0),
    ("9.2e15", 9_200_000_000_000_000_000),
    ("0." + "5" * 5000, 556),
    ("1759276800000001.1235" + "0" * 40 + "1", 1759276800000001124),
    ("9223372036854775.8074", (1 << 63) - 1),
    ("9223372036854775.8075", None),
    *((text, None) for text in NO_TIMES),
])  # fmt: skip
def test_times(text: str, ns: int | None) -> None:
    assert ns_of(text.encode()) == ns


@pytest.mark.parametrize("text", NO_TIMES, ids=lambda text: text[:20])
def test_one_event_without_a_time(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    events = KERNEL.format(0, 10), KERNEL.format(1, text), KERNEL.format(2, 30)
    path.write_text(f'{{"traceEvents":[{",".join(events)}]}}', encoding="utf-8")
    trace = read(str(path))
    assert trace.events.ts.tolist() == [10_000, 30_000]
    assert [diagnostic.count for diagnostic in trace.diagnostics] == [1]


@pytest.mark.parametrize(
    "args", ['"args":5', '"args":"text"', '"args":[1]', '"args":{"device":0,"stream":7},"args":1', '"args":null']
)
def test_args_that_are_no_object(tmp_path: Path, args: str) -> None:
    path = tmp_path / "trace.json"
    odd = f'{{"ph":"X","cat":"kernel","name":"odd","pid":0,"tid":7,"ts":30,"dur":5,{args}}}'
    path.write_text(f'{{"traceEvents":[{KERNEL.format(0, 10)},{odd}]}}')
    trace = read(str(path))
    assert [diagnostic.code for diagnostic in trace.diagnostics] == ([] if "null" in args else ["args_without_names"])
    augmented = augment(trace)
    assert [row.busy_ns for row in augmented.outcomes["temporal_breakdown"].rows] == [10_000]
    written = write_all(augmented, tmp_path / "out", ["chrome", "perfetto"])
    events = json.loads(gzip.decompress(written[0].read_bytes()))["traceEvents"]
    assert {"k0", "odd"} <= {event.get("name") for event in events}


def test_halves_of_surrogate_pairs_in_metadata(tmp_path: Path) -> None:
    """They reach the sidecar and the native file by the names of devices and processes."""
    path, half = tmp_path / "trace.json", r'"\ud800 x"'
    process = f'{{"ph":"M","name":"process_name","pid":0,"args":{{"name":{half}}}}}'
    devices = f'[{{"id":0,"name":{half}}}]'
    path.write_text(f'{{"deviceProperties":{devices},"traceEvents":[{process},{KERNEL.format(0, 10)}],"host":{half}}}')
    written = write_all(augment(read(str(path))), tmp_path / "out", ["chrome", "perfetto"])
    assert json.loads(written[-1].read_bytes())["source"]["devices"][0]["name"] == "\ufffd x"


def test_sizes_beyond_int64(tmp_path: Path) -> None:
    args = '"In msg nelems":9223372036854775807,"Out msg nelems":9223372036854775807,"dtype":"Float","Group size":2'
    collective = f'"device":0,"stream":7,"Collective name":"allreduce",{args}'
    event = (
        KERNEL.format(0, 10).replace('"k0"', '"ncclDevKernel_AllReduce"').replace('"device":0,"stream":7', collective)
    )
    (tmp_path / "trace.json").write_text(f"[{event}]")
    assert [row.bytes for row in augment(read(str(tmp_path / "trace.json"))).outcomes["collectives"].rows] == [None]


@pytest.mark.parametrize("text", ["nan(" * 200_000, "[" + ", " * 200_000 + "]", " :" * 200_000])
def test_what_is_mended_costs_its_length(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(f'[{KERNEL.format(0, 10)},{{"ph":"X","ts":1,"dur":1,"name":"x","a":{text}}}]')
    assert read(str(tmp_path / "trace.json")).events.ts[-1] == 10_000


TEXT = json.dumps(
    {"traceEvents": [{"ph": "i", "name": f"n{i}", "pid": 1, "tid": 2, "ts": i} for i in range(5000)]}
).encode()


def zipped(*names: str, text: bytes = TEXT, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in names:
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.mark.parametrize("data", [
    TEXT,
    gzip.compress(TEXT),
    gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
    gzip.compress(TEXT) + bytes(512),
    gzip.compress(gzip.compress(TEXT)),
    zstandard.compress(TEXT),
    zstandard.compress(TEXT[:1000]) + zstandard.compress(TEXT[1000:]),
    zipped("folder/trace.json"),
    zipped("trace.json", "__MACOSX/._trace.json"),
], ids=["plain", "gzip", "members", "padded", "gzip twice", "zstd", "frames", "zip", "mac zip"])  # fmt: skip
def test_content_tells_the_container_not_the_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "misleading.txt"
    path.write_bytes(data)
    trace = read(str(path))
    assert len(trace.events) == 5000
    assert b"".join(bytes(chunk) for chunk in trace.source.text.chunks()) == TEXT


def test_a_cut_gzip_stream_is_partial(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(TEXT)[:-2000])
    trace = read(str(path))
    assert 0 < len(trace.events) < 5000
    assert trace.partial


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1  # of the checksum: the text is whole, but not as it was written
    path = tmp_path / "flipped.json.gz"
    path.write_bytes(data)
    assert "damaged" in str(read(str(path)).partial)


@pytest.mark.parametrize("names", [(), ("a.json", "b.json")])
def test_a_zip_must_hold_one_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "some.zip"
    path.write_bytes(zipped(*names))
    with pytest.raises(UnknownFormat, match=f"a zip of {len(names)} files"):
        read(str(path))


def test_a_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.readers.limits.SMALL_TEXT", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"[" + b" " * (200 << 20))))
    with pytest.raises(LimitExceeded, match="2000 times its size"):
        read(str(path))


EVENT = b'{"ph": "X", "name": "%s", "ts": 1, "dur": 2}'


def of_events(*names: bytes) -> bytes:
    return b'{"traceEvents": [' + b", ".join(EVENT % name for name in names) + b"]}"


@pytest.mark.parametrize(("limits", "said"), [
    (Limits(text_bytes=1000), "more than 1000 bytes"),
    (Limits(events=99), "more than 99 events"),
    (Limits(name_bytes=19), "a name of 20 characters"),
])  # fmt: skip
def test_limits_are_kept(tmp_path: Path, limits: Limits, said: str) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(of_events(*[b"k" * 20] * 100)))
    enough = Limits(text_bytes=10_000, events=100, name_bytes=20)
    assert len(read(str(path), limits=enough).events) == 100
    with pytest.raises(LimitExceeded, match=said):
        read(str(path), limits=limits)


@pytest.mark.parametrize(("limits", "said"), [
    (Limits(devices=2), "has work on 3 devices, more than 2; split it by rank or by time"),
    (Limits(streams=5), "has work on 6 streams of devices, more than 5; split it by rank or by time"),
])  # fmt: skip
def test_devices_and_streams(tmp_path: Path, limits: Limits, said: str) -> None:
    event = '{"ph": "X", "cat": "%s", "name": "k", "pid": %d, "tid": %d, "ts": 1, "dur": 1}'
    events = [event % ("kernel", device, stream) for device in range(3) for stream in (7, 20)]
    events += [event % ("cpu_op", process, 1) for process in range(100, 110)]  # no devices
    path = tmp_path / "a.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    assert len(read(str(path), limits=Limits(devices=3, streams=6)).events) == 16
    with pytest.raises(LimitExceeded, match=said):
        read(str(path), limits=limits)


def test_a_damaged_zip_is_read_up_to_the_damage(tmp_path: Path) -> None:
    names = [b"name%d" % i for i in range(30_000)]
    data = zipped("a.json", text=of_events(*names), method=zipfile.ZIP_STORED).replace(b"name7", b"same7", 1)
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    trace = read(str(path))
    assert "the zip is damaged" in str(trace.partial)
    assert 0 < len(trace.events) < len(names)


def test_layers_have_an_end(tmp_path: Path) -> None:
    data = TEXT
    for _ in range(5):
        data = gzip.compress(data)
    path = tmp_path / "deep.gz"
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="layers of compression"):
        read(str(path))

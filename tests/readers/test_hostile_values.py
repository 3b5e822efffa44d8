"""A value that no profiler writes costs one diagnostic, at once, never the file: in both scanners, and in analyses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from augment.pipeline import augment
from augment.readers import read
from augment.readers.events import ns_of
from augment.writers import write_all

NO_TIMES = [
    "1e999990", "-1e999999", "1e99999999999999999999", "1e16", '"--5"', '"²"', '"٥"', '""', '"\\u0035"', "9" * 5000,
    "NaN", "-Infinity", "true", "null", "[]", "{}",
]  # fmt: skip
KERNEL = '{{"ph":"X","cat":"kernel","name":"k{0}","pid":0,"tid":7,"ts":{1},"dur":5,"args":{{"device":0,"stream":7}}}}'


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0e999999", 0),
        ("1e-999990", 0),
        ("9.2e15", 9_200_000_000_000_000_000),
        ("0." + "5" * 5000, 556),
        ("1759276800000001.1235" + "0" * 40 + "1", 1759276800000001124),
        ("9223372036854775.8074", (1 << 63) - 1),
        ("9223372036854775.8075", None),
        *((text, None) for text in NO_TIMES),
    ],
)
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
    temporal = augmented.outcomes["temporal_breakdown"]
    assert [row.busy_ns for row in temporal.rows] == [10_000]
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
    findings = augment(read(str(tmp_path / "trace.json"))).outcomes["collectives"]
    assert [row.bytes for row in findings.rows] == [None]


@pytest.mark.parametrize("text", ["nan(" * 200_000, "[" + ", " * 200_000 + "]", " :" * 200_000])
def test_what_is_mended_costs_its_length(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(f'[{KERNEL.format(0, 10)},{{"ph":"X","ts":1,"dur":1,"name":"x","a":{text}}}]')
    assert read(str(tmp_path / "trace.json")).events.ts[-1] == 10_000

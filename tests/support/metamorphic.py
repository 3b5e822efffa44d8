"""Changes of a trace whose effect on a figure is known: cut launches, cut milliseconds, stretch all times.

document = load(path)                               # exact: times are decimals of whole nanoseconds
save(stretched(document, 3), tmp_path / "slow.json")  # every time times 3
save(without_first_launches(document, 20), …)       # as if the recording began later: the work stays, its calls do not
save(without_first_ns(document, 5_000_000), …)      # the recording begins so much later

``REAL`` names real traces to try them on; ``real_trace(name)`` skips the test where they are absent.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pytest

Document = dict[str, Any]
Event = dict[str, Any]

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
REAL = (
    "h100_8rank_modded_nanogpt/rank1.json.gz",  # begins in a backlog
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
    "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz",
    "v100_2021_kineto_tb/resnet50_num_workers_0.1623143566756.pt.trace.json.gz",  # clocks of whole µs
)
_NS = Decimal("0.001")


def real_trace(name: str | Path) -> Path:
    """The path of a real trace, or of one that ships with the project (a whole path)."""
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"no real trace at {path}")
    return path


@lru_cache(maxsize=2)
def load(path: Path) -> Document:
    """A Kineto file, its times rounded to whole nanoseconds as our readers do it; not to be changed in place."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document: Document = msgspec.json.Decoder(float_hook=Decimal).decode(text)
    return document | {"traceEvents": [_of_whole_ns(event) for event in document["traceEvents"]]}


def _of_whole_ns(event: Event) -> Event:
    times = {key: event[key] for key in ("ts", "dur") if isinstance(event.get(key), Decimal | int)}
    event.update((key, Decimal(value).quantize(_NS, ROUND_HALF_EVEN)) for key, value in times.items())
    return event


def save(document: Document, path: Path) -> Path:
    """Write the document, every decimal with all its digits."""
    path.write_bytes(msgspec.json.Encoder(decimal_format="number").encode(document))
    return path


def stretched(document: Document, factor: int) -> Document:
    """All times since the first, and all durations, ``factor`` times as long."""
    first = _first(document)
    return document | {
        "traceEvents": [
            event
            | ({"ts": first + (event["ts"] - first) * factor} if "ts" in event else {})
            | ({"dur": event["dur"] * factor} if "dur" in event else {})
            for event in document["traceEvents"]
        ]
    }


def rewritten(document: Document) -> Document:
    """The same, but later, in another order, with other threads and streams, each operator within another one."""

    def other(value: Any) -> Any:
        return 2**31 - value if isinstance(value, int) else value

    events = list[Event]()
    for event in document["traceEvents"]:
        args = {key: other(value) if key == "stream" else value for key, value in (event.get("args") or {}).items()}
        moment = {"ts": event["ts"] + Decimal("7654321.598")} if "ts" in event else {}
        made = event | moment | {"tid": other(event.get("tid")), "args": args}
        events += [made | {"name": "outer", "args": {}}, made] if _is_operator(event) else [made]
    return document | {"traceEvents": sorted(events, key=lambda at: crc32(f"{at['tid']} {at.get('ts')}".encode()))}


def another_time(document: Document) -> Document:
    """The same, but later, its rows in any order and its arrows numbered differently."""
    number = {"correlation", "External id"}

    def other(event: Event) -> Event:
        later = {"ts": event["ts"] + Decimal("7654321.598")} if "ts" in event and event.get("ph") != "M" else {}
        arrow = {"id": event["id"] + 10_000_000} if event.get("cat") == "ac2g" else {}
        args = {k: v + 10_000_000 if k in number else v for k, v in (event.get("args") or {}).items()}
        return event | later | arrow | ({"args": args} if args else {})

    rows = [other(event) for event in document["traceEvents"]]
    Random(1).shuffle(rows)
    return document | {"traceEvents": rows}


def with_busy_thread(document: Document) -> Document:
    """Beside it, a thread that launches nothing runs an operator for half of each millisecond."""
    inside = [event for event in document["traceEvents"] if _is_operator(event)]
    begin, end = (int(choose(event["ts"] for event in inside)) for choose in (min, max))
    busy = inside[0] | {"tid": 77_777_777, "dur": Decimal(500), "args": {}}
    more = [busy | {"ts": Decimal(at)} for at in range(begin, end - 500, 1_000)]
    return document | {"traceEvents": [*document["traceEvents"], *more]}


def later_from(document: Document, moment: Decimal, chosen: Event, more: Decimal) -> Document:
    """``chosen``, and what lasts beyond ``moment``, takes ``more`` µs longer; what begins from then on begins later."""

    def changed(event: Event) -> Event:
        if "ts" not in event or event.get("ph") == "M":
            return event
        if event is not chosen and event["ts"] >= moment:
            return event | {"ts": event["ts"] + more}
        lasts = event.get("ph") == "X" and (event is chosen or event["ts"] + event["dur"] > moment)
        return event | {"dur": event["dur"] + more} if lasts else event

    return document | {"traceEvents": [changed(event) for event in document["traceEvents"]]}


def without_waiting_calls(document: Document, category: str = "") -> Document:
    """No call says that the host waits for a device: it is not recorded, or as a slice of another ``category``."""
    events = [event for event in document["traceEvents"] if event.get("cat") != "cuda_sync"]
    calls = [event for event in events if event.get("cat") in CALLS and "Synchronize" in event["name"]]
    others = [event | {"cat": category, "name": "c10d::wait_blocking", "args": {}} for event in calls if category]
    return document | {"traceEvents": [event for event in events if event not in calls] + others}


def without_first_launches(document: Document, count: int) -> Document:
    """Without the first ``count`` calls that launched recorded GPU work, and their arrows' starts; the work stays."""
    events = document["traceEvents"]
    work = {_correlation(event) for event in events if event.get("cat") in GPU_WORK}
    calls = [event for event in events if event.get("cat") in CALLS and _correlation(event) in work]
    gone = {_correlation(call) for call in sorted(calls, key=lambda item: item["ts"])[:count]}
    return document | {
        "traceEvents": [
            event
            for event in events
            if not (event.get("cat") in CALLS and _correlation(event) in gone)
            and not (event.get("cat") == "ac2g" and event.get("ph") == "s" and event.get("id") in gone)
        ]
    }


def without_first_ns(document: Document, ns: int) -> Document:
    """Without all that began in the first ``ns``, as if the recording began so much later; names stay."""
    begin = _first(document) + Decimal(ns) / 1000
    kept = [row for row in document["traceEvents"] if row.get("ph") == "M" or "ts" not in row or row["ts"] >= begin]
    return document | {"traceEvents": kept}


def _is_operator(event: Event) -> bool:
    return event.get("cat") in ("cpu_op", "Operator") and event["name"].startswith("aten::")


def _correlation(event: Event) -> Any:
    return (event.get("args") or {}).get("correlation")


def _first(document: Document) -> Decimal:
    """The start of the first slice."""
    first: Decimal = min(event["ts"] for event in document["traceEvents"] if event.get("ph") == "X")
    return first


def differences(
    before: list[Any], after: list[Any], change: Callable[[str, Any], Any] = lambda _, value: value
) -> list[str]:
    """Where the rows ``after`` are not those ``before`` with each value put through ``change(column, value)``."""
    wanted = [{column: change(column, value) for column, value in _columns(row)} for row in before]
    rows = [dict(_columns(row)) for row in after]
    if len(wanted) != len(rows):
        return [f"{len(rows)} rows, not {len(wanted)}"]
    return [
        f"row {place}: {column} is {each[column]!r}, not {value!r}"
        for place, (row, each) in enumerate(zip(wanted, rows, strict=True))
        for column, value in row.items()
        if each[column] != (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)
    ]


def _columns(row: Any) -> list[tuple[str, Any]]:
    return [(column, getattr(row, column)) for column in row.__struct_fields__]

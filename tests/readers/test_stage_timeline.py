"""Timelines of pipeline stages by Primus and MegatronApp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from augment.errors import MalformedTrace
from augment.readers import read, stage_timeline

PRIMUS = {
    "1": {
        "total": 9.5, "memory": 84.3,
        "fwd_start": [0.5, 2], "fwd_end": [1.5, 3], "bwd_start": [4, 6], "bwd_end": [5, 9],
    },
    "2": {"total": 2, "memory": 84.3, "fwd_start": [0], "fwd_end": [1], "bwd_start": [1], "bwd_end": [2]},
}  # fmt: skip
MEGATRON_APP = [
    {"name": "iteration", "ph": "B", "pad_before": 0},
    {"name": "forward", "ph": "B", "rel_ts": 10},
    {"name": "forward", "ph": "E", "rel_ts": 30, "microbatch": 0, "model_chunk": 1, "pp_rank": 2},
    {"name": "iteration", "ph": "E", "rel_ts": 100, "duration_wall": 101, "duration_cuda": 100},
    {"name": "iteration", "ph": "B", "pad_before": 5},
    {"name": "backward", "ph": "B", "rel_ts": 1},
    {"name": "backward", "ph": "E", "rel_ts": 2, "microbatch": 0, "model_chunk": 1, "pp_rank": 2},
    {"name": "iteration", "ph": "E", "rel_ts": 50, "duration_wall": 51, "duration_cuda": 50},
]


def slices(path: Path) -> list[tuple[str, int, int]]:
    events = read(str(path)).events
    names = read(str(path)).strings
    return [(names[code], ts, dur) for code, ts, dur in
            zip(events.name.tolist(), events.ts.tolist(), events.dur.tolist(), strict=True)]  # fmt: skip


def test_primus(tmp_path: Path) -> None:
    path = tmp_path / "pp_rank_3.json"
    path.write_text(json.dumps(PRIMUS))
    assert read(str(path)).rank == 3
    assert slices(path) == [
        ("ProfilerStep#1", 0, 9_500_000),
        ("Forward 0", 500_000, 1_000_000),
        ("Forward 1", 2_000_000, 1_000_000),
        ("Backward 0", 4_000_000, 1_000_000),
        ("Backward 1", 6_000_000, 3_000_000),
        ("ProfilerStep#2", 9_500_000, 2_000_000),
        ("Forward 0", 9_500_000, 1_000_000),
        ("Backward 0", 10_500_000, 1_000_000),
    ]


def test_megatron_app(tmp_path: Path) -> None:
    path = tmp_path / "pp_rank_0.json"
    path.write_text(json.dumps(MEGATRON_APP, indent=2))
    assert slices(path) == [
        ("ProfilerStep#0", 0, 100),
        ("Forward 0 of chunk 1", 10, 20),
        ("ProfilerStep#1", 105, 50),
        ("Backward 0 of chunk 1", 106, 1),
    ]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(PRIMUS)[:-9],
        json.dumps({"1": {"total": 1, "fwd_start": [1], "fwd_end": [2]}}),
        json.dumps({"1": {"total": 1, "fwd_start": ["x"], "fwd_end": [2], "bwd_start": [], "bwd_end": []}}),
        json.dumps([*MEGATRON_APP[:1], {"name": "forward", "ph": "E", "rel_ts": 1, "microbatch": 0}]),
        json.dumps([*MEGATRON_APP[:1], 7]),
    ],
)
def test_what_is_broken_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pp_rank_0.json"
    path.write_text(text)
    with pytest.raises(MalformedTrace, match="pipeline stage"):
        read(str(path))


@pytest.mark.parametrize(
    "text", [b'{"traceEvents": []}', b'[{"name": "iteration", "ph": "B", "ts": 1}]', b'{"1": {"a": 2}}', b""]
)
def test_other_files_are_left_to_other_readers(text: bytes) -> None:
    assert not stage_timeline.recognizes(text)

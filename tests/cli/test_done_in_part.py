"""What is not done, or only in part, is said in one line and shows in the exit code."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Augment, metrics

from simulator import JobOptions, simulate
from traces import write_trace

DONE_IN_PART = 5


def cut_off(path: Path) -> Path:
    """A trace whose text ends early."""
    text = gzip.decompress(write_trace(path.with_suffix(".json.gz")).read_bytes())
    path.write_bytes(text[: len(text) * 3 // 4])
    path.with_suffix(".json.gz").unlink()
    return path


def test_a_trace_that_is_cut_off(tmp_path: Path, augment: Augment) -> None:
    trace = cut_off(tmp_path / "a.json")
    ended = augment("run", trace, "-o", tmp_path / "o")
    assert (ended.code, "incomplete: the text ends inside the event" in ended.err) == (DONE_IN_PART, True)
    assert augment("diagnose", trace).code == DONE_IN_PART
    quiet = augment("run", trace, "-o", tmp_path / "o", "--quiet")
    assert quiet.code == DONE_IN_PART
    (line,) = quiet.err.splitlines()
    assert line.startswith(f"augment: {trace}: in part: the text ends inside the event")


def test_a_byte_that_was_changed_is_read_up_to(tmp_path: Path, augment: Augment) -> None:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1}
    events = [{**event, "name": f"aten::op{n}", "ts": n} for n in range(40_000)]
    made = bytearray(gzip.compress(json.dumps({"traceEvents": events}).encode(), 0))  # stored as it is
    at = made.index(b'{"ph"', made.index(b'"aten::op3000"'))
    made[at] ^= 0x01
    path = tmp_path / "a.json.gz"
    path.write_bytes(made)
    quiet = augment("run", path, "--quiet")
    assert quiet.code == DONE_IN_PART, quiet.err
    (line,) = quiet.err.splitlines()
    assert line.startswith(f"augment: {path}: in part: the gzip stream is damaged")
    assert line.endswith(": expected an event, ',' or ']'")
    assert metrics(tmp_path / "a.metrics.json")["source"]["events"] == 3001


def test_an_error_in_one_analysis_costs_that_analysis(
    tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr("augment.analyses.kernel_breakdown.analyze", fails)
    trace = write_trace(tmp_path / "a.json")
    ended = augment("run", trace, "--quiet", "--debug")
    assert ended.code == DONE_IN_PART
    why = "internal error, ZeroDivisionError: by chance; please report what augment run --debug shows"
    assert f"augment: {trace}: in part: kernel_breakdown: {why}" in ended.err
    assert "Traceback" in ended.err
    analyses = metrics(tmp_path / "a.metrics.json")["analyses"]
    assert analyses["kernel_breakdown"] == {"status": "failed", "reason": why, "rows": []}
    assert analyses["temporal_breakdown"]["status"] == "ok"
    assert "Failed" in augment("show", tmp_path / "a.metrics.json", "--all").out


def test_sizes_that_the_traces_contradict(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=4, steps=1, layers=1), tmp_path / "in")
    ended = augment("run", tmp_path / "in", "-o", tmp_path / "o", "--parallelism", "tp=3", "--quiet")
    assert ended.code == DONE_IN_PART
    assert ended.err.splitlines() == [
        "augment: --parallelism: the stated sizes tp=3 make 3 ranks, but rank 3 exists: they are not used"
    ]
    ended = augment("run", tmp_path / "in", "-o", tmp_path / "o", "--parallelism", "tp=2,dp=8", "--quiet")
    assert ended.err.splitlines() == [
        "augment: --parallelism: the stated sizes tp=2,dp=8 make 16 ranks, but the traces tell of 4: they are not used"
    ]
    assert augment("run", tmp_path / "in", "-o", tmp_path / "o", "--parallelism", "dp=4", "--quiet").code == 0


def test_of_two_traces_with_one_stem_the_second_has_its_whole_name(tmp_path: Path, augment: Augment) -> None:
    first, second = write_trace(tmp_path / "a.json"), write_trace(tmp_path / "a.json.gz")
    ended = augment("run", tmp_path)
    assert ended.code == 0, ended.err
    names = {path.name for path in tmp_path.iterdir()} - {first.name, second.name}
    assert {"a.augmented.pftrace", "a.metrics.json"} < names
    assert {"a.json.gz.augmented.pftrace", "a.json.gz.metrics.json"} < names
    assert metrics(tmp_path / "a.json.gz.metrics.json")["source"]["name"] == "a.json.gz"
    assert "2 done before" in augment("run", tmp_path).err


def test_a_long_name_is_shortened_before_the_work(tmp_path: Path, augment: Augment) -> None:
    names = ["x" * 235 + end for end in ("a", "b")]
    for name in names:
        write_trace(tmp_path / f"{name}.json")
    ended = augment("run", tmp_path, "-o", tmp_path / "o")
    assert ended.code == 0, ended.err
    made = sorted(path.name for path in (tmp_path / "o").glob("*.metrics.json"))
    assert len(made) == 2
    assert all(name.startswith("x" * 187 + "-") and len(name) == 200 + len(".metrics.json") for name in made)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_told(tmp_path: Path, augment: Augment, encoding: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes("\ufeff{}".encode(encoding))
    ended = augment("run", path)
    assert ended.code == 3
    assert "text in UTF-16" in ended.err


def test_one_form_at_a_time(tmp_path: Path, augment: Augment) -> None:
    ended = augment("show", write_trace(tmp_path / "a.json"), "steps", "--csv", "--json")
    assert ended.code == 2
    assert "--json and --csv: choose one" in ended.err


class _Stdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize(
    "args", [("run",), ("show",), ("doctor",), ("diagnose",), ("cut", "--time", "0-9", "-o", "c.json")]
)
def test_standard_input(
    tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Stdin(write_trace(tmp_path / "a.json.gz").read_bytes()))
    monkeypatch.chdir(tmp_path)
    ended = augment(*args, "-")
    assert ended.code == 0, ended.err
    assert (tmp_path / "stdin.augmented.pftrace").exists() == (args == ("run",))
    assert args[0] == "cut" or f"{os.sep}stdin" not in ended.out + ended.err, "of a file that is gone"
    assert ("standard input" in ended.out) == (args[0] in ("diagnose", "doctor"))
    assert ("augment open -" in ended.err) == (args == ("diagnose",))
    assert ("augment doctor -" in ended.err) == (args == ("run",))

"""``augment run``: what it takes, what it writes, what it says."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from running import Augment, metrics

from augment.readers import read
from traces import kernel, launch, write_trace


def files(folder: Path) -> list[str]:
    """All files but a batch's manifest, of which test_resume.py tells."""
    result = (path for path in folder.rglob("*") if path.is_file() and path.name != "augment-manifest.jsonl")
    return sorted(str(path.relative_to(folder)) for path in result)


def test_chrome_json_is_written_on_request(tmp_path: Path, augment: Augment) -> None:
    ended = augment("run", write_trace(tmp_path / "rank0.pt.trace.json.gz"), "--to", "chrome")
    assert ended.lines == [str(tmp_path / "rank0.augmented.json.gz"), str(tmp_path / "rank0.metrics.json")]
    assert gzip.decompress((tmp_path / "rank0.augmented.json.gz").read_bytes()).startswith(b'{\n"traceEvents"')


def test_outputs_lie_beside_the_input(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "rank0.pt.trace.json.gz")
    before = trace.read_bytes()
    ended = augment("run", trace)
    assert ended.code == 0
    assert ended.lines == [str(tmp_path / "rank0.augmented.pftrace"), str(tmp_path / "rank0.metrics.json")]
    assert files(tmp_path) == ["rank0.augmented.pftrace", "rank0.metrics.json", "rank0.pt.trace.json.gz"]
    assert trace.read_bytes() == before
    assert read(ended.lines[0]).source.format == "perfetto"
    assert "rank0.pt.trace.json.gz: 6 events, 100.000 µs, rank 0, 1 step" in ended.err
    assert "100.000 µs  20.0 %     10.0 %" in ended.err
    assert f"augment open {ended.lines[0]}; all figures: augment show {ended.lines[-1]}" in ended.err


def test_one_screen_has_one_figure_for_one_thing(shared_traces: Path, tmp_path: Path, augment: Augment) -> None:
    """Exposed communication in the verdict, in the table of devices, and in what takes the rest of the MFU."""
    said = augment("run", shared_traces / "h100_8rank_modded_nanogpt" / "rank0.json.gz", "-o", tmp_path).err
    busy, verdict = re.search(r"busy ([\d.]+) % of a mean step .*? ([\d.]+) % exposed communication", said).groups()  # type: ignore[union-attr]
    device = re.search(r"^  0 +[\d.]+ ms +([\d.]+) % +[\d.]+ % +([\d.]+) %", said, re.M)
    rest = re.search(r"^ +([\d.]+) +exposed communication", said, re.M)
    assert device
    assert rest
    assert float(device[1]) == pytest.approx(float(busy), abs=0.51)
    assert [float(device[2]), float(rest[1])] == pytest.approx([float(verdict)] * 2, abs=0.51)


def test_quiet_says_nothing(tmp_path: Path, augment: Augment) -> None:
    ended = augment("run", write_trace(tmp_path / "a.json"), "--quiet")
    assert (ended.code, ended.err, len(ended.lines)) == (0, "", 2)


def test_json_has_an_object_an_input(tmp_path: Path, augment: Augment) -> None:
    write_trace(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(b'{"settings": 1}')
    (tmp_path / "c.json").write_bytes(b'{"a": nope}')
    ended = augment("run", tmp_path, "--json")
    rows = {Path(line["input"]).name: line for line in map(json.loads, ended.lines)}
    assert {name: each["status"] for name, each in rows.items()} == {
        "a.json": "augmented", "b.json": "passed_over", "c.json": "failed"
    }  # fmt: skip
    assert rows["a.json"]["outputs"] == [str(tmp_path / "a.augmented.pftrace"), str(tmp_path / "a.metrics.json")]
    assert "byte" in rows["c.json"]["message"]
    assert ended.code == 1


def test_folder_is_kept_below_the_output_folder(tmp_path: Path, augment: Augment) -> None:
    for name in ("job/node0/rank0.json.gz", "job/node1/rank0.json", "job/top.json"):
        write_trace(tmp_path / name)
    for name in ("job/.hidden.json", "job/.cache/rank7.json"):
        write_trace(tmp_path / name)
    (tmp_path / "job" / "notes.txt").write_text("none")
    assert augment("run", tmp_path / "job", "-o", tmp_path / "out").code == 0
    assert files(tmp_path / "out") == [
        "job.job.metrics.json",
        "node0/rank0.augmented.pftrace", "node0/rank0.metrics.json", "node0/rank0.ranks.summary",
        "node1/rank0.augmented.pftrace", "node1/rank0.metrics.json", "node1/rank0.ranks.summary",
        "top.augmented.pftrace", "top.metrics.json", "top.ranks.summary",
    ]  # fmt: skip


def test_own_outputs_are_no_inputs(tmp_path: Path, augment: Augment) -> None:
    write_trace(tmp_path / "a.json")
    first = augment("run", tmp_path)
    content = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    assert augment("run", tmp_path).out == first.out
    assert augment("run", tmp_path / "*.*").out == first.out
    everything = augment("run", *(tmp_path / name for name in files(tmp_path)))
    assert (everything.out, everything.code) == (first.out, 0)
    assert "3 passed over" in everything.err
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == content
    alone = augment("run", tmp_path / "a.augmented.pftrace")
    assert alone.code == 3
    assert "was written by augment itself" in alone.err


def test_no_trace_in_a_folder_is_passed_over(tmp_path: Path, augment: Augment) -> None:
    write_trace(tmp_path / "a.json")
    (tmp_path / "config.json").write_bytes(b'{"learning_rate": 1}')
    folder = augment("run", tmp_path)
    assert folder.code == 0
    assert "1 augmented, 1 passed over, 0 failed" in folder.err
    named = augment("run", tmp_path / "config.json")
    assert named.code == 3
    assert named.err.splitlines()[-1].startswith(f"augment: {tmp_path / 'config.json'}: not a trace: JSON without")


def test_one_bad_file_never_stops_the_rest(tmp_path: Path, augment: Augment) -> None:
    for name in ("a.json", "c.json"):
        write_trace(tmp_path / name)
    (tmp_path / "b.json").write_bytes(b'{"a": nope}')
    ended = augment("run", tmp_path, tmp_path / "missing.json")
    assert ended.code == 1
    expected = ["a.metrics.json", "c.metrics.json"]
    assert [Path(line).name for line in ended.lines if line.endswith("metrics.json")] == expected
    failures = [line for line in ended.err.splitlines() if line.startswith("augment: ")]
    assert len(failures) == 2
    assert failures[0] == f"augment: {tmp_path / 'missing.json'}: no such file or folder"
    assert failures[1].startswith(f"augment: {tmp_path / 'b.json'}: byte ")


def test_the_only_input_is_missing(tmp_path: Path, augment: Augment) -> None:
    ended = augment("run", tmp_path / "no.json", "--quiet")
    assert (ended.code, ended.err) == (3, f"augment: {tmp_path / 'no.json'}: no such file or folder\n")


def test_glob_is_expanded_and_kept_below_the_output_folder(tmp_path: Path, augment: Augment) -> None:
    for name in ("0/rank0.json", "1/rank0.json", "1/rank1.json"):
        write_trace(tmp_path / name)
    assert augment("run", tmp_path / "*" / "rank0.json", "-o", tmp_path / "out").code == 0
    expected = ["0/rank0.metrics.json", "1/rank0.metrics.json"]
    assert [name for name in files(tmp_path / "out") if "metrics" in name] == expected
    assert augment("run", tmp_path / "*" / "rank7.json").code == 3
    deep = augment("run", tmp_path / "**", "-o", tmp_path / "deep")
    assert deep.code == 0
    assert len(deep.lines) == 7  # two of each trace, one of the two ranks in one folder


def test_a_file_named_twice_is_converted_once(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "a.json")
    (tmp_path / "link.json").symlink_to(trace)
    assert len(augment("run", trace, tmp_path, trace).lines) == 2


def test_lists_take_commas_and_repetition(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "a.json")
    names = ["kernel_breakdown", "temporal_breakdown", "queue_length"]
    augment("run", trace, "--only", f"{names[0]}, {names[1]}", "--only", names[2], "--skip", names[1])
    assert set(metrics(tmp_path / "a.metrics.json")["analyses"]) == {names[0], names[2]}


def test_options_reach_the_analyses(tmp_path: Path, augment: Augment) -> None:
    late = [launch(), kernel(), launch(ts=30, correlation=3), kernel(ts=38, correlation=3)]
    trace = write_trace(tmp_path / "a.json", *late)
    option = "idle_time_breakdown.consecutive_kernel_delay_ns"

    def counts(*args: str) -> dict[str, int]:
        assert augment("run", trace, *args).code == 0
        rows = metrics(tmp_path / "a.metrics.json")["analyses"]["idle_time_breakdown"]["rows"]
        return {row["category"]: row["gap_count"] for row in rows}

    assert counts() != counts("--option", f"{option}=1")


@pytest.mark.parametrize(("args", "said"), [
    (["--only", "temporal_breakdwn"], "did you mean temporal_breakdown?"),
    (["--skip", "nothing"], "no analysis is called 'nothing'"),
    (["--only", "queue_length", "--skip", "queue_length"], "no analysis is left"),
    (["--to", "cinema"], "no writer is called 'cinema'"),
    (["--option", "idle_time_breakdown"], "must be ANALYSIS.NAME=VALUE"),
    (["--option", "idle_time_breakdown.consecutive_kernel_delay_ns=long"], "must be of type int"),
    (["--option", "idle_time_breakdown.x=1"], "no option of idle_time_breakdown is called 'x'"),
    (["--option", "x.y=1"], "no analysis is called 'x'"),
    (["--jobs", "-1"], "--jobs"),
    (["--frobnicate"], "--frobnicate"),
])  # fmt: skip
def test_usage_errors_come_before_the_work(tmp_path: Path, augment: Augment, args: list[str], said: str) -> None:
    ended = augment("run", write_trace(tmp_path / "a.json"), *args)
    assert ended.code == 2
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1
    assert files(tmp_path) == ["a.json"]


def test_input_is_needed(augment: Augment) -> None:
    assert augment("run").code == 2
    assert augment("frobnicate").code == 2


@pytest.mark.parametrize("name", ["[red]a[bold].json", "a b é µ.json", "--a.json", "a\nb.json"])
def test_any_name_passes_through(tmp_path: Path, augment: Augment, name: str) -> None:
    trace = write_trace(tmp_path / name)
    ended = augment("run", trace)
    assert ended.code == 0
    assert ended.out.startswith(str(trace)[: -len(".json")])
    missing = trace.with_name(f"no{name}")
    lines = augment("run", missing).err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"augment: {missing}: ".replace("\n", "\\x0a"))


def test_output_folder_that_is_a_file(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "a.json")
    ended = augment("run", trace, "-o", trace, "--quiet")
    compared = augment("diff", trace, trace, "-o", trace, "--quiet")  # before it reads them
    for each in (ended, compared):
        assert (each.code, len(each.err.splitlines())) == (1, 1)
        assert f"{trace} is a file; choose another -o" in each.err


def test_output_folder_that_may_not_be_written_to(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "sealed" / "a.json")
    trace.parent.chmod(0o555)
    try:
        if os.access(trace.parent, os.W_OK):
            pytest.skip("root writes everywhere")
        ended = augment("run", trace, "--quiet")
    finally:
        trace.parent.chmod(0o755)
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert "is not writable; choose a folder with -o" in ended.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files")
def test_file_system_that_takes_no_files(tmp_path: Path, augment: Augment) -> None:
    ended = augment("run", write_trace(tmp_path / "a.json"), "-o", "/proc/augment/here", "--quiet")
    assert ended.code == 1
    assert len(ended.err.splitlines()) == 1
    assert "internal error" not in ended.err


def test_a_bug_is_one_line_unless_debugging(tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr("augment.pipeline.augment", fails)
    write_trace(tmp_path / "b.json")
    trace = write_trace(tmp_path / "a.json")
    plain = augment("run", trace, "--quiet")
    assert plain.code == 1
    assert len(plain.err.splitlines()) == 1
    assert f"{trace}: internal error, ZeroDivisionError: by chance" in plain.err
    assert "Traceback" in augment("run", trace, "--debug").err
    assert augment("run", tmp_path, "--quiet").err.count("\n") == 2
    assert files(tmp_path) == ["a.json", "b.json"]


def test_some_steps_alone(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "a.json")
    assert augment("run", trace, "--steps", "0").code == 0
    assert metrics(tmp_path / "a.metrics.json")["source"]["window"]["last_step"] == 0
    ended = augment("run", trace, "--steps", "4-7")
    assert (ended.code, "no step of 4 to 7; it has step 0" in ended.err) == (2, True)
    for wrong in ("x", "3-", "-3", "5-3", "1-2-3"):
        ended = augment("run", trace, f"--steps={wrong}")
        assert ended.code == 2
        assert f"--steps {wrong}: must be" in ended.err
    shown = augment("show", trace, "steps", "--steps", "0", "--json")
    assert json.loads(shown.out)["steps"]["rows"][0]["step"] == 0
    assert augment("show", tmp_path / "a.metrics.json", "--steps", "0").code == 2

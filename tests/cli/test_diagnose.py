"""``augment diagnose``: the quick health check."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Augment

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from simulator import JobOptions, simulate
from traces import kernel, launch, write_trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with a slow loader, and one in good health."""
    top = tmp_path_factory.mktemp("traces")
    job = JobOptions(ranks=1, steps=3, layers=2, collectives="none")
    simulate(job, top / "well")
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, collectives="none", host_stall_us=9000.0), top)
    assert path.name == "rank0.pt.trace.json.gz"
    return top


def test_it_says_what_is_wrong_and_writes_nothing(folder: Path, augment: Augment) -> None:
    before = sorted(folder.rglob("*"))
    ended = augment("diagnose", folder / "rank0.pt.trace.json.gz")
    assert ended.code == 0
    assert sorted(folder.rglob("*")) == before
    text = ended.out
    assert "The GPU is" in text
    assert "\n  The host fetches batches" in text  # the verdict says it; below it, the rule is named
    assert "! high: data_loading\n" in text
    assert text.count("The host fetches batches") == 1
    assert "→ The main process loads the data itself" in text
    assert "✓ pageable_copies: no step copies much from or to pageable memory" in text
    assert "– memory_capacity: no memory of the device was recorded; record with profile_memory=True" in text
    lines = [line.strip() for line in ended.lines]
    starts = [next(at for at, line in enumerate(lines) if line.startswith(sign)) for sign in "!✓–"]
    assert [lines[at - 1] for at in starts[1:]] == ["Checked, and fine:", "Cannot be told from this trace:"]
    assert starts == sorted(starts)


def test_the_exit_code_says_whether_anything_is_grave(folder: Path, augment: Augment) -> None:
    slow, well = folder / "rank0.pt.trace.json.gz", folder / "well"
    assert augment("diagnose", slow, "--fail-on", "high").code == 1
    assert augment("diagnose", well, "--fail-on", "high").code == 0
    assert augment("diagnose", folder, "--fail-on", "warning").code == 1
    assert augment("diagnose", folder / "no.json").code == 3


def test_json_and_markdown(folder: Path, augment: Augment) -> None:
    report = json.loads(augment("diagnose", folder / "rank0.pt.trace.json.gz", "--json").out)
    assert report["rows"][0]["rule"] == "data_loading"
    assert len(report["verdict"]) >= 2
    text = augment("diagnose", folder / "rank0.pt.trace.json.gz", "--markdown").out
    assert text.startswith("## ")
    assert "- **high**: Data loading. The main process loads the data itself" in text
    assert "- ✓ `pageable_copies`: no step copies" in text


def test_metrics_are_read_as_they_are(folder: Path, tmp_path: Path, augment: Augment) -> None:
    slow = folder / "rank0.pt.trace.json.gz"
    ended = augment("run", slow, "-o", tmp_path)
    assert "The host fetches batches" in ended.err
    (sidecar,) = tmp_path.glob("*.metrics.json")
    from_metrics = json.loads(augment("diagnose", sidecar, "--json").out)
    assert from_metrics["rows"] == json.loads(augment("diagnose", slow, "--json").out)["rows"]
    assert "The host fetches batches" in augment("show", sidecar, "steps").out


def test_a_trace_that_augment_wrote_is_judged_by_the_metrics_beside_it(
    folder: Path, tmp_path: Path, augment: Augment
) -> None:
    assert augment("run", *sorted(folder.glob("*.json*"))[:1], "-o", tmp_path / "out").code == 0
    (trace,) = (tmp_path / "out").glob("*.pftrace")
    (metrics,) = (tmp_path / "out").glob("*.metrics.json")
    assert augment("diagnose", trace).out == augment("diagnose", metrics).out
    metrics.unlink()
    assert augment("diagnose", trace).code == 3


def test_a_file_alone_is_diagnosed_and_what_comes_next_is_said(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "a b.json", launch(), kernel())
    ended = augment(trace)
    assert (ended.code, ended.out) == (0, augment("diagnose", trace).out)
    assert [line.partition(": ")[2].strip() for line in ended.err.splitlines() if line] == [
        f"augment open '{trace}'", f"augment report '{trace}'",
    ]  # fmt: skip
    assert augment("diagnose", trace, "--json").err == ""
    assert augment("run", trace, "--quiet").code == 0
    assert f"augment open '{tmp_path}/a b.augmented.pftrace'" in augment(tmp_path / "a b.metrics.json").err
    assert augment(tmp_path / "none.json").code == 3
    assert "No such command 'digest'" in augment("digest").err


def test_list_names_the_rules(augment: Augment) -> None:
    rules = json.loads(augment("list", "--json").out)["rules"]
    assert {"data_loading", "launch_bound"} <= {rule["name"] for rule in rules}


def test_of_several_ranks_the_job_comes_first(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=3, steps=3, layers=2, straggler=1, straggler_factor=1.6), tmp_path)
    lines = augment("diagnose", tmp_path).lines
    assert lines[0].startswith("job ")
    assert "Rank 1 delays the other two" in "\n".join(lines[:5])
    assert sum("rank0.pt.trace.json.gz" in line for line in lines) == 1
    assert not any("✓" in line for line in lines)

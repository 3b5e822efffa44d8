"""Which traces belong together, told from names and from what stands before the events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from augment.batch.conversion import Result, RunPlan
from augment.batch.execution import Run
from augment.batch.inputs import FileIdentity, Input, choose_inputs, identify
from augment.batch.job_question import conclude
from augment.batch.jobs import Job, group
from augment.pipeline.request import Request
from augment.readers import read
from traces import kernel, write_trace

MS = 1_700_000_000_000


def jobs_of(*names: str, out: str = "/out", **ranks: int) -> list[Job]:
    """The jobs of files that are not there; ``ranks`` are told by the files, by their names without suffix."""
    inputs, known = [], {}
    for name in names:
        folder, _, base = f"{out}/{name}".rpartition("/")
        source = Input(f"/in/{name}", folder, named=False)
        inputs.append(source)
        output = ranks.get(base.split(".")[0])
        known[source.path] = identify(source.path) if output is None else FileIdentity(output, len(ranks))
    return group(inputs, known)


def described(jobs: list[Job]) -> list[tuple[str, str, str, list[int | None]]]:
    return [(job.folder, job.name, job.window, [member.rank for member in job.members]) for job in jobs]


def test_iterations_are_windows() -> None:
    names = [f"iteration_{window}/rank{rank}_trace.json.gz" for window in (2, 10) for rank in (1, 0)]
    expected = [("/out/iteration_10", "trace", "10", [0, 1]), ("/out/iteration_2", "trace", "2", [0, 1])]
    assert described(jobs_of(*names)) == expected


def test_times_part_windows_even_if_traces_are_missing() -> None:
    rank0 = [f"host_1.{MS + window * 5000}.pt.trace.json.gz" for window in (0, 1, 2)]
    rank1 = [f"host_2.{MS + window * 5000 + 30}.pt.trace.json" for window in (0, 2)]
    jobs = jobs_of(*rank0, *rank1, host_1=0, host_2=1)
    assert described(jobs) == [
        ("/out", "in", str(MS), [0, 1]),
        ("/out", "in", str(MS + 5000), [0]),
        ("/out", "in", str(MS + 10000), [0, 1]),
    ]
    assert [job.stem for job in jobs] == [f"in.{MS + window * 5000}.job" for window in (0, 1, 2)]
    assert {job.world_size for job in jobs} == {2}


def test_traces_of_days_apart_are_different_windows() -> None:
    assert len(jobs_of(f"a.{MS}.pt.trace.json", f"b.{MS + 70_000_000}.pt.trace.json")) == 2
    nanoseconds = [f"{name}.{MS * 10**6 + late}.pt.trace.json" for name, late in (("a", 0), ("b", 10**8))]
    assert len(jobs_of(*nanoseconds)) == 1


def test_sglang() -> None:
    names = [f"1737.25-TP-{tp}-DP-0-EP-{tp}.trace.json.gz" for tp in (3, 0, 1, 2)]
    expected = [("/out", "DECODE", "1738.5", [0]), ("/out", "in", "1737.25", [0, 1, 2, 3])]
    assert described(jobs_of(*names, "1738.5-TP-0-DECODE.trace.json.gz")) == expected
    (staged,) = jobs_of("1737-TP-0-PP-0.trace.json.gz", "1737-TP-0-PP-1.trace.json.gz")
    assert [member.rank for member in staged.members] == [0, None]


def test_folders_of_torch_npu(tmp_path: Path) -> None:
    """A folder for each rank and recording, whose rank a file beside the exports names; odd dates are no windows."""
    for date in ("20261101235959", "20261102001500123", "20269901000000"):
        for rank in (1, 0):
            folder = tmp_path / f"node_{70 + rank}_{date}_ascend_pt"
            (folder / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
            (folder / f"profiler_info_{rank}.json").write_text("{}")
            (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text("[]")
    (tmp_path / "node_71_20261102001500123_ascend_pt" / "profiler_info_3.json").write_text("{}")  # which of two?
    inputs = [Input(str(path), str(path.parent), named=False) for path in sorted(tmp_path.rglob("trace_view.json"))]
    assert [(job.name, job.window, [member.rank for member in job.members]) for job in group(inputs)] == [
        (tmp_path.name, "1793577599", [0, 1]),
        (tmp_path.name, "1793578500", [0, None]),
        ("trace_view", "", [0]),
        ("trace_view", "", [1]),
    ]
    assert read(inputs[0].path).source.rank_from == "profiler_info_0.json"
    below = "20261101235959_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json"
    within = [Input(f"{tmp_path}/node{each}/h_{each}_{below}", "/out", named=False) for each in (0, 1)]
    assert [len(job.members) for job in group(within)] == [2]


def test_daemon() -> None:
    names = [f"libkineto_trace_{pid}.json" for pid in (7002, 7001)]
    (job,) = jobs_of(*names, libkineto_trace_7001=0, libkineto_trace_7002=1)
    assert [(member.rank, member.input.basename) for member in job.members] == [(0, names[1]), (1, names[0])]
    assert job.name == "libkineto_trace"
    (unknown,) = jobs_of(*names)
    assert [member.rank for member in unknown.members] == [None, None]


def test_names_that_differ_in_the_rank_alone() -> None:
    names = ["train_rank_0.json", "train_rank_1.json", "eval_rank_0.json", "eval_rank_1.json", "notes.json"]
    jobs = jobs_of(*names)
    assert [(job.name, len(job.members)) for job in jobs] == [("eval", 2), ("notes", 1), ("train", 2)]
    assert [job.stem for job in jobs] == ["eval.job", "notes.job", "train.job"]


def test_other_names_are_one_job_if_their_ranks_differ() -> None:
    assert described(jobs_of("pid9.json", "pid4.json", pid9=0, pid4=1)) == [("/out", "in", "", [0, 1])]
    assert len(jobs_of("control.json", "test.json", control=0, test=0)) == 2
    assert len(jobs_of("pid9.json", "pid4.json", pid9=0)) == 2


def test_folders_of_ranks_and_nodes_are_within_the_job() -> None:
    (job,) = jobs_of("run/rank_0/rank0.json", "run/rank_1/rank1.json")
    assert (job.folder, job.name, job.stem) == ("/out/run", "run", "job")
    for folder in ("kineto", "traces"):  # says what is in it
        (job,) = jobs_of(f"run/{folder}/rank0.json", f"run/{folder}/rank1.json", rank0=0, rank1=1)
        assert (job.folder, job.name) == (f"/out/run/{folder}", "run")
    (job,) = jobs_of("run/node0/rank0.json", "run/node1/rank1.json", out="s3://bucket/out")
    assert (job.folder, len(job.members)) == ("s3://bucket/out/run", 2)


def test_stems_in_a_folder_differ() -> None:
    jobs = jobs_of("a/rank0.json", "a/rank1.json", "b/rank0.json", "b/rank1.json")
    assert [(job.folder, job.stem) for job in jobs] == [("/out/a", "job"), ("/out/b", "job")]


@pytest.mark.parametrize("members", [
    {},
    {"distributedInfo": {"rank": 5, "world_size": 8}},
    {"distributedInfo": {"rank": "5", "world_size": "8"}},
    {"distributedInfo": {"backend": "nccl"}},
    {"distributedInfo": None, "deviceProperties": [{"id": 0, "name": "x" * 400_000}]},
])  # fmt: skip
@pytest.mark.parametrize("name", ["a.json", "rank3.json.gz", "1700-TP-2.trace.json.gz"])
def test_identities_are_those_of_the_reader(tmp_path: Path, name: str, members: dict[str, object]) -> None:
    path = str(write_trace(tmp_path / name, **members))
    assert identify(path).rank == read(path).rank


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"[{", b"{", b'{"a', b'{"a": nope}', b"\x1f\x8b", b"PK\x03\x04", b"\0\1"]
)
def test_what_is_no_trace_has_no_identity(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert identify(str(tmp_path / "a.json")) == FileIdentity()
    assert identify(str(tmp_path / "rank1.json")) == FileIdentity(1)


def test_recorded_groups(shared_traces: Path) -> None:
    folders = {"h100_8rank_modded_nanogpt": 8, "dlrm_8rank_v100_param/kineto": 8, "v100_4rank_pair_torchrec/control": 4}
    for folder, count in folders.items():
        (job,) = group(choose_inputs([str(shared_traces / folder)], None).inputs)
        assert [member.rank for member in job.members] == list(range(count))
        assert job.world_size == count


# What is asked of a whole job: summaries are kept, and jobs concluded from them alone.


COMPARED = RunPlan(compares=True)


def concluded(inputs: Sequence[Input], results: Mapping[str, Result]) -> list[str]:
    return [path for job in conclude(inputs, results, Request()) for path in job.written]


def batch(source: Path, out: Path) -> tuple[list[Result], list[str]]:
    run = Run(choose_inputs([str(source)], str(out)).inputs, COMPARED)
    return list(run.convert()), [path for job in run.conclude() for path in job.written]


def test_jobs_are_concluded_from_what_was_done_before_too(tmp_path: Path) -> None:
    for name in ("a_rank0.json", "a_rank1.json", "b_rank0.json", "b_rank1.json", "alone.json"):
        write_trace(tmp_path / "in" / name)
    (tmp_path / "in" / "b_rank1.json").write_bytes(b'{"a": nope}')
    out = tmp_path / "out"
    _, written = batch(tmp_path / "in", out)
    assert written == [str(out / "a.job.metrics.json")]  # b has one rank, and alone is alone
    write_trace(tmp_path / "in" / "b_rank1.json", kernel())
    results, written = batch(tmp_path / "in", out)
    assert [result.status for result in results].count("done_before") == 4
    assert written == [str(out / "a.job.metrics.json"), str(out / "b.job.metrics.json")]
    assert json.loads((out / "b.job.metrics.json").read_bytes())["source"]["ranks"] == [0, 1]


def test_a_summary_that_is_gone_is_made_again(tmp_path: Path) -> None:
    write_trace(tmp_path / "in" / "rank0.json")
    batch(tmp_path / "in", tmp_path / "in")
    (tmp_path / "in" / "rank0.ranks.summary").unlink()
    (result,), _ = batch(tmp_path / "in", tmp_path / "in")
    assert result.status == "augmented"
    assert [Path(path).name for path in result.outputs] == ["rank0.augmented.pftrace", "rank0.metrics.json"]


def test_of_jobs_in_the_cloud(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for rank in range(2):
        write_trace(tmp_path / "in" / f"rank{rank}.json")
    inputs = choose_inputs([str(tmp_path / "in")], "memory://stages/out").inputs
    results = {each.path: each for each in Run(inputs, COMPARED).convert()}
    assert concluded(inputs, results) == ["memory://stages/out/job.metrics.json"]
    fs = fsspec.filesystem("memory")
    assert json.loads(fs.cat_file("/stages/out/job.metrics.json"))["source"]["ranks"] == [0, 1]
    fs.rm("/stages", recursive=True)


def test_ranks_without_a_summary_are_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        write_trace(tmp_path / "in" / f"rank{rank}.json")
    inputs = choose_inputs([str(tmp_path / "in")], str(tmp_path / "out")).inputs
    results = {each.path: each for each in Run(inputs, COMPARED).convert()}
    bare = {path: replace(each, summaries=()) for path, each in results.items()}
    assert concluded(inputs, bare) == []
    first = inputs[0].path
    assert concluded(inputs, {**bare, first: results[first]}) == []

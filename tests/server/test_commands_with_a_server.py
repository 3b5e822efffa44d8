"""``augment run``, ``diff``, ``diagnose`` and ``report`` with ``--server``: the same files, words and exit codes."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from running import Augment, Ended
from serving_process import Server, serving  # noqa: F401 - the fixture ``server`` calls it

from augment.client import Client
from augment.client.connection import Deadline
from augment.pipeline.request import peaks_of
from augment.readers.containers import open_text
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2
from memory_snapshots import MIB, training, write_snapshot
from simulator import JobOptions, simulate
from traces import HOST, kernel, launch, op, step, write_trace

OUTPUTS = ("augmented.pftrace", "metrics.json", "ranks.summary")


@pytest.fixture
def run(augment: Augment) -> Augment:
    return lambda *args: augment("run", *args)


@pytest.fixture
def both(augment: Augment, server: Server, tmp_path: Path) -> Augment:
    """``augment run ARGS…`` with a server; it must say, return and write what it does without one."""
    return same(augment, server, tmp_path / "out", "run")


@pytest.fixture
def diff(augment: Augment, server: Server, tmp_path: Path) -> Augment:
    return same(augment, server, tmp_path / "out", "diff")


@pytest.fixture
def diagnose(augment: Augment, server: Server) -> Augment:
    return same(augment, server, None, "diagnose")


def same(augment: Augment, server: Server, out: Path | None, name: str) -> Augment:
    """The command with a server; it must say, return and write what it does without one."""

    def command(*args: object) -> Ended:
        results = []
        for there in ((), ("--server", server.address)):
            ended = augment(name, *args, *(("-o", out) if out else ()), *there)
            results.append(Ended(ended.code, ended.out, ended.err, files(out) if out else {}))
        assert results[0] == results[1]
        return results[0]

    return command


def files(folder: Path) -> dict[str, bytes]:
    """What is in ``folder``; taken away."""
    result = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        result[str(path.relative_to(folder))] = _timeless(content) if path.suffix == ".jsonl" else content
        path.unlink()
    return result


def _timeless(manifest: bytes) -> bytes:
    """The line of each input that counts, the last, without when it was written; and without what a run remembers of a
    job that it concluded itself."""
    read = (line for line in map(json.loads, manifest.splitlines()) if line["status"] != "concluded")
    last = {line["input"]: line for line in read}
    for line in last.values():
        del line["finished_ns"]
    return json.dumps(sorted(last.items())).encode()


def test_one_file(both: Augment, tmp_path: Path) -> None:
    ((trace, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1), tmp_path / "job")
    ended = both(trace, "--to", "chrome,perfetto")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 3
    assert "The GPU is busy" in ended.err


def drawn(folder: Path) -> set[str]:
    """The names of the outputs that show something of their job, as the manifest has it."""
    lines = [json.loads(line) for line in (folder / "augment-manifest.jsonl").read_bytes().splitlines()]
    last = {line["input"]: line for line in lines}.values()
    return {
        output["path"]
        for line in last
        for output in line["outputs"]
        if line.get("drawn") and output["sha256"] != output.get("undrawn_sha256", output["sha256"])
    }


def without_manifest(result: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in result.items() if not name.endswith(".jsonl")}


def test_ranks_of_a_job(both: Augment, server: Server, run: Augment, tmp_path: Path) -> None:
    """The job's own figures and tracks, too: of summaries and seams that the server tells of."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "job")
    ended = both(tmp_path / "job", "--jobs", 2, "--to", "chrome,perfetto,bundle", "--trust-clocks")
    assert "ranks 0-1 of 2" in ended.err
    assert ended.out.splitlines()[-1] == str(tmp_path / "out" / "job.metrics.json")
    assert both(tmp_path / "job", "--steps", "1", "--only", "collectives", "--to", "perfetto").code == 0
    assert run(tmp_path / "job", "-o", tmp_path / "out", "--server", server.address).code == 0
    outputs = ("augmented.pftrace", "metrics.json")
    assert drawn(tmp_path / "out") == {f"rank{rank}.{output}" for rank in (0, 1) for output in outputs}


def test_a_folder_is_one_job_of_the_server(
    both: Augment, server: Server, run: Augment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are compared and merged there; what is fetched is as if it had been made here, and is gone on with."""
    folder = tmp_path / "iteration_5"
    simulate(JobOptions(ranks=2, steps=2, layers=1), folder)
    args = (folder, "--merge", "--parallelism", "dp=2")
    both(*args)
    here = ("augment.job.answer.answer_of", "augment.batch.merged_timeline.merge", "augment.client.Client.augment")
    with monkeypatch.context() as patched:
        for name in here:
            patched.setattr(name, None)
        ended = run(*args, "-o", tmp_path / "out", "--server", server.address, "--json")
    assert ended.code == 0, ended.err
    job_files = ["job.metrics.json", "job.augmented.pftrace"]
    content = [json.loads(line) for line in ended.out.splitlines()]
    assert [each["outputs"] for each in content if each["status"] == "concluded"] == [
        [str(tmp_path / "out" / name)] for name in job_files
    ]
    again = run(*args, "-o", tmp_path / "out", "--server", server.address)
    assert "2 done before" in again.err
    with Client(server.address) as client:
        from augment.v1 import service_pb2 as calls

        assert not [job for job in client._stub.ListJobs(calls.ListJobsRequest()).jobs if job.spec.HasField("job")]


def test_ranks_of_which_some_are_done_here(run: Augment, server: Server, tmp_path: Path) -> None:
    """Those done here before, and those done there before, are drawn in again."""
    simulate(JobOptions(ranks=3, steps=1, layers=1), tmp_path / "job")
    args = (tmp_path / "job", "-o", tmp_path / "out", "--to", "chrome,perfetto,bundle")
    there = ("--server", server.address)
    run(*args)
    assert len(drawn(tmp_path / "out")) == 3 * 4
    kept = without_manifest(files(tmp_path / "out"))
    for first, then in (((), there), (there, ()), (there, there)):
        run(*args, *first, "--ranks", "0-1")
        ended = run(*args, *then)
        assert ended.out.splitlines()[-1].endswith("job.metrics.json")
        assert "2 done before" in ended.err
        again = run(*args, *then)
        assert "3 done before" in again.err
        assert without_manifest(files(tmp_path / "out")) == kept


@pytest.mark.parametrize(
    "content", [None, b"no list", b'[{"writer": "other"}, {"writer": "chrome", "of": "a later form"}]']
)
def test_a_server_of_another_version(
    run: Augment, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """It does no whole jobs, and tells of no seams, or of ones that are not ours: all is well, but nothing is drawn."""
    monkeypatch.setattr(Client, "most_job_inputs", lambda _: 0)
    if content is None:
        wait = Client._ended

        def older(*args: Any) -> Any:
            job = wait(*args)
            for place in [n for n, each in enumerate(job.artifacts) if "seams" in each.file_name]:
                del job.artifacts[place]
            return job

        monkeypatch.setattr(Client, "_ended", older)
    else:
        monkeypatch.setattr("augment.client.transfers.Download.content", lambda *_: content)
    simulate(JobOptions(ranks=2, steps=1, layers=1), tmp_path / "job")
    args = (tmp_path / "job", "-o", tmp_path / "out")
    ended = run(*args, "--server", server.address)
    assert (ended.code, drawn(tmp_path / "out")) == (0, set())
    (line,) = [line for line in ended.err.splitlines() if "not drawn" in line]
    assert "of 2 of them" in line
    assert "--force" in line
    monkeypatch.undo()
    result = without_manifest(files(tmp_path / "out"))
    assert sorted(result) == ["job.metrics.json", *(f"rank{n}.{output}" for n in (0, 1) for output in OUTPUTS)]


def test_a_folder_with_all_sorts_of_things(both: Augment, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    write_trace(folder / "a" / "rank0.json.gz")
    write_trace(folder / "b" / "rank1.json")
    (folder / "notes.json").write_text('{"not": "a trace"}')
    (folder / "broken.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1}, nonsense')
    ended = both(folder)
    assert ended.code == 1
    assert "2 augmented, 1 passed over, 1 failed" in ended.err
    again = both(folder, "--jobs", 3, "--json")
    assert again.code == 1
    assert again.out.count('"augmented"') == 2


@pytest.mark.parametrize("args", [["--only", "nothing"], ["--to", "nothing"], ["--option", "a.b=1"], ["--option", "a"]])
def test_usage_errors(both: Augment, tmp_path: Path, args: list[str]) -> None:
    assert both(write_trace(tmp_path / "a.json"), *args).code == 2


@pytest.mark.parametrize("content", [b"", b"no trace", b"[{", b"\x1f\x8b\x08garbage", b'{"traceEvents": ['])
def test_bad_inputs(both: Augment, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    both(path)


def test_an_input_that_is_not_there(both: Augment, tmp_path: Path) -> None:
    assert both(tmp_path / "gone.json").code == 3


def test_an_input_that_cannot_be_opened(both: Augment, tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("a.json")
    assert both(tmp_path / "a.json").code == 3


def test_a_place_that_cannot_be_written_to(run: Augment, server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    args = (write_trace(tmp_path / "a.json"), "-o", tmp_path / "file" / "out")
    assert run(*args, "--server", server.address) == run(*args)


def test_options_and_choices_go_there(both: Augment, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "a.json")
    option = "idle_time_breakdown.consecutive_kernel_delay_ns=1"
    assert both(trace, "--only", "idle_time_breakdown,queue_length", "--option", option).code == 0


def test_tables_peaks_and_regions_go_there(both: Augment, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text("[[kernel]]\nfamily = 'ours'\npattern = 'nccldevkernel'\n")
    (tmp_path / "second.toml").write_text("[[collectives]]\nkind = 'Broadcast'\npattern = 'ncclDevKernel_AllReduce'\n")
    tables = ["--tables", tmp_path / "first.toml", "--tables", tmp_path / "second.toml"]
    options = [*tables, "--peak", "bf16=1", "--peak", "bf16=2"]
    for inputs in (recorded / "rank1.json", recorded):
        ended = both(inputs, *options, "--region", "aten::mm")
        assert ended.code == 0
        assert b'"Broadcast"' in ended.written["rank1.metrics.json"]
    (tmp_path / "second.toml").write_text("[[nothing]]\n")
    assert both(recorded, *options).code == 2


@pytest.mark.parametrize("flag", ["--tls", "--token-file=x", "--tls-ca=x", "--patience=5"])
def test_what_means_nothing_without_a_server(run: Augment, tmp_path: Path, flag: str) -> None:
    ended = run(write_trace(tmp_path / "a.json"), flag)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "needs --server" in ended.err


def test_what_a_server_is_called(run: Augment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGMENT_TOKEN_FILE", str(tmp_path / "none"))  # of no consequence without a server
    path = write_trace(tmp_path / "a.json")
    assert run(path).code == 0
    ended = run(path, "--server", "https://localhost")
    assert (ended.code, "must be grpc://HOST:PORT" in ended.err) == (2, True)
    assert "none: no such file" in run(path, "--server", "grpcs://localhost:1").err


def test_no_server_there(run: Augment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.client.session._FIRST_PATIENCE_S", 0.2)
    path = write_trace(tmp_path / "a.json")
    ended = run(path, "--server", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.err.startswith(f"augment: {path}: 127.0.0.1:1: the server cannot be reached")
    assert ended.err.count("\n") == 1


def test_without_grpc(run: Augment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [module for module in sys.modules if module.startswith("augment.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    ended = run(write_trace(tmp_path / "a.json"), "--server", "127.0.0.1:1")
    assert ended.code == 2
    assert "pip install 'kineto-augment[client]'" in ended.err


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Control and test."""
    folder = tmp_path_factory.mktemp("traces")
    ((control, _),) = simulate(JobOptions(ranks=1, steps=2, layers=1), folder / "control")
    ((test, _),) = simulate(JobOptions(ranks=1, steps=2, layers=1, slow_kernel="nvjet"), folder / "test")
    return control, test


def test_tables_and_files_of_a_comparison(diff: Augment, traces: tuple[Path, Path]) -> None:
    ended = diff(*traces)
    assert (ended.code, "Where the difference comes from" in ended.out) == (0, True)
    assert "written: " in ended.err
    assert sorted(ended.written) == ["rank0.diff.metrics.json", "rank0.diff.pftrace"]


def test_every_option_of_a_comparison_goes_there(diff: Augment, traces: tuple[Path, Path]) -> None:
    options = ("--to", "chrome,perfetto", "--overlay", "--label", "before", "--min-delta-us", 5,
               "--step", "0:1", "--functions")  # fmt: skip
    ended = diff(*traces, *options, "--json")
    assert (ended.code, len(ended.written)) == (0, 4)
    assert ended.out.encode().rstrip() == ended.written["rank0.diff.metrics.json"].rstrip()
    assert diff(*traces, "--region", "nothing", "--quiet").code == 2


@pytest.mark.parametrize("broken_side", [0, 1])
def test_bad_sides(diff: Augment, traces: tuple[Path, Path], tmp_path: Path, broken_side: int) -> None:
    bad = tmp_path / "bad.json"
    for content in (None, "", "no trace", '{"traceEvents": [{"ph": "X", "ts": 1}, nonsense'):
        if content is not None:
            bad.write_text(content)
        sides = list(traces)
        sides[broken_side] = bad
        ended = diff(*sides)
        assert (ended.code, ended.written) == (3, {})
        assert str(bad) in ended.err


@pytest.mark.parametrize("args", [["--step", "9"], ["--step", "x"], ["--to", "nothing"]])
def test_usage_errors_of_a_comparison(diff: Augment, traces: tuple[Path, Path], args: list[str]) -> None:
    assert diff(*traces, *args).code == 2


def test_folders_are_compared(diff: Augment, tmp_path: Path) -> None:
    """All ranks are compared, or one of each side; other files there are passed over."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "before")
    simulate(JobOptions(ranks=2, steps=2, layers=1, slow_kernel="nvjet"), tmp_path / "now")
    ended = diff(tmp_path / "before", tmp_path / "now")
    assert ended.code == 0
    assert sorted(ended.written) == ["now.diff.metrics.json", "rank0.diff.pftrace", "rank1.diff.pftrace"]
    ended = diff(tmp_path / "before", tmp_path / "now", "--control-rank", 1, "--test-rank", 0)
    assert sorted(ended.written) == ["now.diff.metrics.json", "rank0.diff.pftrace"]
    rank = next((tmp_path / "now").glob("rank1*.gz"))
    assert diff(tmp_path / "before", rank, "--control-rank", 1).code == 0


def test_what_is_beside_traces_is_sent(
    diff: Augment, diagnose: Augment, augment: Augment, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, peaks, captures of either side, regions: they have the same effect there."""
    dims = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    capture = write_trace(tmp_path / "capture.json", op(ts=2, dur=8, **dims), launch(ts=5, dur=3, correlation=9))
    sides = [
        write_trace(
            tmp_path / f"{name}.json",
            *(step(), launch("cudaGraphLaunch", correlation=1), kernel("sgemm", 20, dur, correlation=1)),
        )
        for name, dur in (("control", 20), ("test", 30))
    ]
    table = tmp_path / "mine.toml"
    table.write_text('[[kernel]]\npattern = "sgemm"\nfamily = "my family"\n')
    plain = diff(*sides)
    beside = ("--tables", table, "--peak", "fp32=1.5", "--control-graph-capture", capture)
    assert "my family" in diff(*sides, *beside, "--limit", 10).out
    ended = diff(*sides, *beside[2:], "--test-graph-capture", capture)
    assert "aten::mm" in ended.out
    assert "aten::mm" not in plain.out
    assert diff(*sides, *beside[4:]).written != ended.written
    assert diff(*sides, "--peak", "H100:none=1").code == 2
    assert diagnose(sides[0], "--graph-capture", capture, "--region", "ProfilerStep*").code == 0
    assert augment("diff", *sides, "--memory", "4G", "--server", server.address).code == 2
    assert diff(*sides, "--test-graph-capture", tmp_path / "none.json").code == 2
    folders = [tmp_path / "before", tmp_path / "now"]
    for folder, side in zip(folders, sides, strict=True):
        folder.mkdir()
        for rank in range(2):
            shutil.copy(side, folder / f"rank{rank}.json")
    shutil.copy(capture, tmp_path / "capture1.json")  # rank 0 has none
    for rank in range(2):
        ended = diff(*folders, "--test-graph-capture", tmp_path / "capture{rank}.json", "--test-rank", rank)
        assert ("aten::mm" in ended.out) == (rank == 1), ended.out
    monkeypatch.setattr(Client, "_info", v1.ServerInfo(attachment_kinds=["tables"]))
    for refused in (("diff", *sides, *beside), ("diagnose", sides[0], "--region", "x")):
        ended = augment(*refused, "--server", server.address)
        assert (ended.code, f"to {refused[0]}; update it" in ended.err) == (2, True), ended.err


def test_peaks_are_a_map_too(server: Server, tmp_path: Path) -> None:
    """Of devices with several names in theirs, the longest counts; the list counts before."""
    path = write_trace(
        tmp_path / "a.json", step(), launch("cudaLaunchKernel", correlation=1), kernel("sgemm", 20, 9, correlation=1)
    )
    with Client(server.address) as client:
        upload = client._upload(str(path), Deadline(None, ""), lambda *_: None)
        for peaks in ({"bf16": 989.4, "H100:bf16": 900.0}, {"none": 1.0}, {"bf16": -1.0}, {"A" * 5000: 1.0}):
            given = {"attachments": [], "peak_values": peaks}
            for spec in (
                v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload), peak_values=peaks)),
                v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=[v1.Input(upload=upload)], **given)),
                v1.JobSpec(diff=v1.DiffSpec(test=v1.Input(upload=upload), control=v1.Input(upload=upload), **given)),
            ):
                request = service_pb2.CreateJobRequest(spec=spec, validate_only=True)
                if "H100:bf16" in peaks:
                    client._stub.CreateJob(request)
                    continue
                with pytest.raises(grpc.RpcError, match="peak"):
                    client._stub.CreateJob(request)
    said = peaks_of({"H100 PCIe:bf16": 3.5, "bf16": 1.0, "H100:bf16": 2.0})
    assert said == ("bf16=1.0", "H100:bf16=2.0", "H100 PCIe:bf16=3.5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, and files that are no traces."""
    folder = tmp_path_factory.mktemp("traces") / "training"
    simulate(JobOptions(ranks=2, steps=2, layers=1), folder)
    return folder


def test_a_folder_is_diagnosed(diagnose: Augment, folder: Path) -> None:
    ended = diagnose(folder)
    assert ended.code == 0
    assert ended.out.startswith("job training, 2 traces:")
    assert diagnose(folder, "--json").out.count("\n") == 3
    assert diagnose(folder, "--markdown", "--fail-on", "warning").code in (0, 1)


def test_files_are_diagnosed(diagnose: Augment, folder: Path, tmp_path: Path) -> None:
    trace = sorted(folder.glob("*.gz"))[0]
    (tmp_path / "bad.json").write_text("no trace")
    assert diagnose(trace).code == 0
    assert diagnose(tmp_path / "bad.json").code == 3
    ended = diagnose(trace, tmp_path / "bad.json", tmp_path / "missing.json")
    assert ended.code == 1
    assert str(trace) in ended.out
    assert str(tmp_path / "bad.json") in ended.err


def test_reports(
    augment: Augment, folder: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trace, a folder and a comparison: what they are made of comes from the server."""
    trace, other = sorted(folder.glob("*.gz"))
    monkeypatch.chdir(tmp_path)

    def report(*args: object) -> tuple[int, str, dict[str, bytes]]:
        ended = augment("report", *args)
        return ended.code, ended.out, files(tmp_path)

    for args in ((trace,), (folder,), ("--diff", trace, other), (folder, "--markdown")):
        here = report(*args)
        assert (here[0], len(here[2])) == (0, 0 if "--markdown" in args else 1)
        with monkeypatch.context() as patched:
            for name in ("augment.cli.show.analysed", "subprocess.run"):
                patched.setattr(name, None)
            assert report(*args, "--server", server.address) == here


START_US = 1_700_000_000 * 10**6


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two ranks with two all-reduces each, and all that is recorded beside them."""
    job, beside = tmp_path / "job", tmp_path / "beside"
    for frame in range(2):
        (folder := beside / "graphs" / f"-_{frame}_0_0").mkdir(parents=True)
        lines = {"ncclDevKernel_AllReduce:1": [f'File "/w/model.py", line {frame}, in forward\n    x']}
        (folder / "inductor_provenance_tracking_kernel_stack_traces_1.json").write_text(json.dumps(lines))
    for rank in range(2):
        events = [step(0, 10_000), op("Torch-Compiled Region: 1/0", 0.5, 3.5), op("aten::mm", 5, 3_000)]
        for number in (1, 2):
            made = kernel("ncclDevKernel_AllReduce", 20 * number, 10, correlation=number, stream=20)
            group = {"Group size": 2, "Process Group Name": "7", "Process Group Description": "dp"}
            of = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
            made["args"] |= group | of
            events += [made, launch(ts=number, dur=0.5, correlation=number)]
        members = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 1000 * START_US}
        write_trace(job / f"rank{rank}.json", *events, **members)
        write_snapshot(job / f"rank{rank}_memory_snapshot.pickle", training(START_US, leak=(rank + 1) * MIB).snapshot())
        entry = {
            "process_group": ("7", "dp"), "collective_seq_id": 1 + rank, "profiling_name": "nccl:all_reduce",
            "state": "scheduled", "time_created_ns": 5, "input_sizes": [[1000]], "output_sizes": [[1000]],
            "input_dtypes": ["Float"],
        }  # fmt: skip
        config = {"7": {"name": "7", "desc": "dp", "ranks": "[0, 1]"}}
        dump = {"version": "2.9", "pg_config": config, "entries": [entry]}
        (beside / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))
        header = {"id": "0x9e", "rank": rank, "n_ranks": 2, "nnodes": 1}
        metadata = {"inspector_output_format_version": "v4.2", "hostname": "n0", "pid": HOST}
        performance = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4000, "coll_exec_time_us": 9 + rank}
        record = {"header": header, "metadata": metadata, "coll_perf": performance}
        (beside / f"inspector{rank}.log").write_text(json.dumps(record) + "\n")
        info = f"n0:{HOST}:{HOST} [0] NCCL INFO"
        of = "sendbuff 0x1 recvbuff 0x2 count 1000 datatype 7 op 0 root 0 comm 0xaa [nranks=2] stream 0x5"
        start = "comm 0xaa rank 0 nranks 2 cudaDev 0 busId 1a000 commId 0xfe - Init START"
        (beside / f"nccl{rank}.txt").write_text(f"{info} {start}\n{info} AllReduce: opCount 0 {of}\n")
    return job


def beside_of(recorded: Path) -> list[object]:
    """The options for all kinds but the snapshots, which lie beside their traces."""
    folder = recorded.parent / "beside"
    names = {"--flight-recorder": "dump_*", "--nccl-inspector": "inspector{rank}.log", "--nccl-log": "nccl[01].txt"}
    names["--inductor-provenance"] = "graphs"
    return [each for option, name in names.items() for each in (option, folder / name)]


def rows_of(content: bytes, analysis: str) -> list[Any]:
    rows: list[Any] = json.loads(content)["analyses"][analysis]["rows"]
    return rows


def test_what_is_recorded_beside_a_trace(both: Augment, recorded: Path) -> None:
    ended = both(recorded / "rank1.json", *beside_of(recorded))
    (metrics,) = [content for name, content in ended.written.items() if name.endswith("metrics.json")]
    recorders = {row["recorder"]: row for row in rows_of(metrics, "collective_records")}
    joined = {name: row["joined_count"] for name, row in recorders.items()}
    assert joined == {"flight_recorder": 2, "nccl_inspector": 2, "nccl_log": 2}
    assert recorders["nccl_inspector"]["record_ns"] == 10_000
    assert rows_of(metrics, "memory_snapshot")
    assert "model.py:1" in {row["source"] for row in rows_of(metrics, "source_lines")}, "of the graph 1/0"


@pytest.mark.parametrize("merged", [(), ("--merge",)])
def test_what_is_recorded_beside_the_ranks_of_a_job(
    both: Augment, recorded: Path, merged: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "beside" / "inspector0.log").unlink()
    ended = both(recorded, *beside_of(recorded), *merged)
    assert ended.code == 0
    assert "rank0.json: no nccl inspector: there is no file" in ended.err
    for rank in range(2):
        content = ended.written[f"rank{rank}.metrics.json"]
        assert len(rows_of(content, "collective_records")) == 2 + rank
        lines = {row["name"]: row["bytes"] for row in rows_of(content, "memory_snapshot") if row["by"] == "line"}
        assert lines["run/train.py:40 step"] == 6 * (rank + 1) * MIB
    if merged:
        (tmp_path / "job.pftrace").write_bytes(ended.written["job.augmented.pftrace"])
        with open_text(str(tmp_path / "job.pftrace")) as text:
            assert b"Collective records" in b"".join(iter(lambda: text.read(1 << 20), b""))


def test_recorded_files_alone(both: Augment, diagnose: Augment, diff: Augment, recorded: Path, tmp_path: Path) -> None:
    snapshots = [recorded / f"rank{rank}_memory_snapshot.pickle" for rank in range(2)]
    assert "6.3 MB more are allocated" in diff(*snapshots).out
    for path in (recorded / "rank1_memory_snapshot.pickle", *(tmp_path / "beside").glob("*1*")):
        assert both(path).code == 0
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for path in (tmp_path / "beside").glob("dump_*"):
        path.rename(dumps / path.name)
    assert "job dumps, 2 dumps of the flight recorder" in diagnose(dumps).out
    assert diagnose(recorded / "rank0_memory_snapshot.pickle").code == 0


def test_recorded_files_that_cannot_be_used(augment: Augment, server: Server, recorded: Path, tmp_path: Path) -> None:
    trace, out = recorded / "rank0.json", ("-o", tmp_path / "out", "--server", server.address)
    other = tmp_path / "beside" / "nccl0.txt"
    late = tmp_path / "late.pickle"
    write_snapshot(late, training(START_US + 90 * 10**6).snapshot())
    assert (
        "not used: the memory snapshot late.pickle covers" in augment("run", trace, "--memory-snapshot", late, *out).err
    )
    ended = augment("run", trace, "--memory-snapshot", other, *out)
    assert (ended.code, "a log of NCCL, not a CUDA memory snapshot; name it with --nccl-log" in ended.err) == (3, True)
    assert ended.err.count("\n") <= 2
    assert "/nccl_log" not in ended.err
    assert str(tmp_path / "state") not in ended.err

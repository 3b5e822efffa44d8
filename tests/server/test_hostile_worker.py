"""A worker that runs a stranger's code harms no file but its own, and neither the server nor other jobs."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from in_process import Server, eventually, outputs, serving, trace

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base import confinement
from augment_server.base.interception import LARGE
from augment_server.base.threads import relay
from augment_server.storage.folder import remove
from augment_server.storage.roots import take_over
from augment_server.workers import workers

#: a worker that does as it should, unless the file {evil} has a function ``evil(order, say)`` that returns something
BEGIN = """
import json, sys
sys.path += json.loads(sys.argv.pop())
from augment_server.workers import worker
made = worker._made
def evil_or_made(order, say):
    names = dict(OUTSIDE={outside!r})
    exec(open({evil!r}).read(), names)
    out = order["folder"] + "/out"
    said = names["evil"](order, out, say)
    return made(order, say) if said is None else said
worker._made = evil_or_made
worker.main()
"""
HONEST = "def evil(order, out, say): pass"
MACHINES = ("x86_64", "aarch64")
NEEDS_SECCOMP = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and platform.machine() in MACHINES and Path("/proc/self/status").exists()),
    reason="seccomp filters are for Linux on x86-64 and ARM64",
)
NEEDS_LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="about Linux")
NEEDS_LANDLOCK = pytest.mark.skipif(confinement.version() < 3, reason="this kernel has no Landlock that confines")


@dataclass
class Hostile:
    """A server whose workers do what a test says."""

    server: Server
    state: Path
    outside: Path
    code: Path
    upload: str

    def does(self, code: str) -> None:
        """Let workers run this: the body of a function of ``order``, ``out`` and ``say``."""
        lines = "".join(f"    {line}\n" for line in code.strip().splitlines())
        self.code.write_text(f"import os, json, hashlib\ndef evil(order, out, say):\n{lines}")

    def augment(self, client: str = "host:test") -> v1.Job:
        """Convert the trace."""
        spec = v1.AugmentSpec(
            input=v1.Input(upload=self.upload), only=["temporal_breakdown"], summaries=True, metrics_only=True
        )
        request = calls.CreateJobRequest(spec=v1.JobSpec(augment=spec))
        return self.server.wait(self.server.stub.CreateJob(request, metadata=(("client", client),)).job.name)

    def whole(self, *inputs: v1.Input) -> v1.Job:
        """A whole job."""
        spec = v1.WholeJobSpec(inputs=inputs, augment=v1.AugmentSpec(only=["temporal_breakdown"], metrics_only=True))
        return self.server.wait(self.server.stub.CreateJob(calls.CreateJobRequest(spec=v1.JobSpec(job=spec))).job.name)

    def expect_honest_work(self) -> v1.Job:
        """What comes afterwards is as if nothing had been."""
        self.code.write_text(HONEST)
        job = self.augment()
        assert job.state == v1.Job.STATE_SUCCEEDED, job.error
        for artifact in job.artifacts:
            data = self.server.read(artifact.name)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (artifact.size_bytes, artifact.sha256)
        return job


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    top = tmp_path_factory.mktemp("hostile")
    outside, code = top / "outside", top / "evil.py"
    (outside / "home" / "out").mkdir(parents=True)
    for name in ("secret", "secret.metrics.json"):
        (outside / name).write_text("TOPSECRET")
    (outside / "home" / "bashrc.metrics.json").write_text("original")
    (outside / "home" / "out" / "precious.metrics.json").write_text("precious")
    code.write_text(HONEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_BEGIN", BEGIN.format(evil=str(code), outside=str(outside)))
        patch.setattr(workers, "_OF_SYSTEM", (*workers._OF_SYSTEM, str(code)))
        with serving(top / "state", max_running_jobs=1) as server:
            yield Hostile(server, top / "state", outside, code, server.upload(trace(top / "rank0.json")))


def unharmed(hostile: Hostile) -> dict[str, str]:
    files = [path for path in hostile.outside.rglob("*") if path.is_file()]
    return {str(path.relative_to(hostile.outside)): path.read_text() for path in files}


LEADS_OUTSIDE = {
    "the folder of outputs is a link": """
        os.rmdir(out)
        os.symlink(OUTSIDE, out)
        return {"made": [["secret.metrics.json", "0" * 64]]}""",
    "the folder of the order is a link": """
        os.rename(order["folder"], order["folder"] + "x")
        os.symlink(OUTSIDE + "/home", order["folder"])
        return {"made": [["precious.metrics.json", "0" * 64]]}""",
    "an inner folder is a link": """
        os.symlink(OUTSIDE + "/home", out + "/inner")
        return {"made": [["inner/bashrc.metrics.json", "0" * 64]]}""",
    "an output is a link": """
        os.symlink(OUTSIDE + "/secret", out + "/rank0.metrics.json")
        return {"made": [["rank0.metrics.json", "0" * 64]]}""",
    "an output is a folder": """
        os.mkdir(out + "/rank0.metrics.json")
        return {"made": [["rank0.metrics.json", "0" * 64]]}""",
    "an output is a pipe": """
        os.mkfifo(out + "/rank0.metrics.json")
        return {"made": [["rank0.metrics.json", "0" * 64]]}""",
    "an output has a name that no such job makes": """
        open(out + "/rank0.sh", "w")
        return {"made": [["rank0.sh", "0" * 64]]}""",
    "an output is another trace": """
        open(out + "/rank0.pt.trace.json.gz", "w")
        return {"made": [["rank0.pt.trace.json.gz", "0" * 64]]}""",
    "there are more outputs than a trace has": """
        names = ["rank0.%d.metrics.json" % number for number in range(17)]
        for name in names:
            open(out + "/" + name, "w")
        return {"made": [[name, "0" * 64] for name in names]}""",
    "an output is missing": """
        return {"made": [["rank0.metrics.json", "0" * 64]]}""",
    "an output is listed twice": """
        open(out + "/rank0.metrics.json", "w")
        return {"made": [["rank0.metrics.json", "0" * 64]] * 2}""",
    "a name leads outside": """
        return {"made": [["../" * 20 + OUTSIDE[1:] + "/secret.metrics.json", "0" * 64]]}""",
}


@pytest.mark.parametrize("how", LEADS_OUTSIDE)
def test_only_regular_files_of_the_attempt_are_published(hostile: Hostile, how: str) -> None:
    before = unharmed(hostile)
    hostile.does(textwrap.dedent(LEADS_OUTSIDE[how]))
    job = hostile.augment()
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "OUTPUT_ERROR")
    assert not list((hostile.state / "artifacts" / job.name.removeprefix("jobs/")).rglob("*"))
    eventually(lambda: not list((hostile.state / "work").glob("*/*[!x]")))
    hostile.server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name))
    assert unharmed(hostile) == before
    hostile.expect_honest_work()


@pytest.mark.embedded
def test_only_outputs_that_are_listed_are_published_with_the_size_that_they_have(hostile: Hostile) -> None:
    hostile.does("""
open(out + "/rank0.metrics.json", "w").write("12345")
open(out + "/more", "w").write("not listed")
os.mkdir(out + "/folder")
return {"made": [["rank0.metrics.json", hashlib.sha256(b"12345").hexdigest()]]}""")
    job = hostile.augment()
    assert [(each.file_name, each.size_bytes) for each in job.artifacts] == [("rank0.metrics.json", 5)]
    folder = outputs(hostile.state, job.name)
    assert [path.name for path in folder.rglob("*")] == ["rank0.metrics.json"]
    assert hostile.server.read(job.artifacts[0].name) == b"12345"


TAKE_OVER = """
import builtins
from augment_server.workers import worker
honest = worker._WORK["augment"]
def taken(order, sources, say):
    said = honest(order, sources, say)
    builtins.kept = [open(order["folder"] + "/out/" + name, "r+b") for name, _ in said["made"]]
    for file in builtins.kept:
        file.write(b"FALSE")
        file.flush()
    return said
worker._WORK["augment"] = taken"""
SPOIL = """
import builtins
for file in builtins.kept:
    file.seek(0)
    file.write(b"SPOILED")
    file.flush()
return {"failed": ["UNKNOWN_FORMAT", "%d files" % len(builtins.kept), {}], "traceback": ""}"""


def test_a_worker_works_for_one_client(hostile: Hostile) -> None:
    """Code that has taken it over would falsify the outputs of the next one, or read its traces."""
    hostile.does(TAKE_OVER)
    falsified = hostile.augment("host:mallory")
    (pid,) = hostile.server.workers
    assert all(hostile.server.read(each.name).startswith(b"FALSE") for each in falsified.artifacts)
    hostile.augment("host:mallory")
    assert [pid] == hostile.server.workers  # a client's next job needs no new one
    hostile.code.write_text(HONEST)
    job = hostile.augment("host:another")
    assert job.state == v1.Job.STATE_SUCCEEDED, job.error
    assert not any(hostile.server.read(each.name).startswith(b"FALSE") for each in job.artifacts)
    assert len(hostile.server.workers) == 1
    assert pid not in hostile.server.workers


def test_outputs_no_longer_change_once_they_are_accepted(hostile: Hostile) -> None:
    hostile.does(TAKE_OVER)
    job = hostile.augment("host:mallory")
    before = {each.name: hostile.server.read(each.name) for each in job.artifacts}
    (pid,) = hostile.server.workers
    hostile.does(SPOIL)
    assert hostile.augment("host:mallory").error.message == f"{len(before)} files"
    assert [pid] == hostile.server.workers
    assert {name: hostile.server.read(name) for name in before} == before


@pytest.mark.parametrize("outcome", ['{"made": []}', '{"failed": ["UNKNOWN_FORMAT", "no", {}], "traceback": ""}'])
def test_nothing_is_left_beside_an_attempt(hostile: Hostile, outcome: str) -> None:
    hostile.does(f"""
os.makedirs(order["folder"] + "/../beside/inner")
open(order["folder"] + "/../beside/inner/file", "w").write("uncounted")
open(order["folder"] + "/../file", "w").write("uncounted")
return {outcome}""")
    hostile.augment()
    (pid,) = hostile.server.workers
    writable, given = sorted((hostile.state / "work").iterdir())
    assert given.name == writable.name + ".given"
    assert not [*writable.iterdir(), *given.iterdir()]
    hostile.expect_honest_work()
    assert [pid] == hostile.server.workers


@pytest.mark.embedded
@pytest.mark.parametrize("target", ["outside", "artifacts"])
def test_outputs_of_a_step_are_files_of_the_step(hostile: Hostile, target: str) -> None:
    """A link in them led the server to link others' files into the folder of the last step."""
    earlier = hostile.expect_honest_work()
    artifact = earlier.artifacts[0]
    place, name = str(hostile.outside / "home"), "bashrc.metrics.json"
    if target == "artifacts":
        place, name = str(outputs(hostile.state, earlier.name)), artifact.file_name
    before = unharmed(hostile), hostile.server.read(artifact.name)
    hostile.does(f"""
if order["kind"] == "augment":
    os.rmdir(out)
    os.symlink({place!r}, out)
    return {{"made": [[{name!r}, "0" * 64]], "rank": 0, "world_size": 2}}
for folder, _, files in os.walk(out):
    for file in files:
        open(os.path.join(folder, file), "r+").write("evil")
return {{"made": [], "notes": []}}""")
    job = hostile.whole(v1.Input(upload=hostile.upload))
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "OUTPUT_ERROR")
    assert (unharmed(hostile), hostile.server.read(artifact.name)) == before


READS = """
from pathlib import Path
state, own, blob = Path(order["folder"]).parents[2], Path(order["folder"]), Path(order["inputs"][0]["blob"])
above = "/proc/%d/" % os.getppid()
paths = [state / "state.db", state / "lease", *{others!r}, OUTSIDE + "/secret", "/etc/passwd"]
paths += [above + "environ", above + "cmdline"]
tries = {{"read %s" % path: lambda path=path: open(path, "rb").read() for path in paths}}
folders = (state, state / "blobs", state / "work", OUTSIDE, "/", "/etc", "/proc")
tries |= {{"list %s" % path: lambda path=path: os.listdir(path) for path in folders}}
(own / "new").write_text("x")
os.symlink(state, own / "there")
tries |= dict(
    link=lambda: os.link(blob, own / "linked"),
    link_db=lambda: os.link(state / "state.db", own / "linked"),
    move=lambda: blob.rename(own / "moved"),
    replace=lambda: (own / "new").replace(blob),
    write=lambda: open(blob, "r+b"),
    truncate=lambda: os.truncate(blob, 0),
    remove=blob.unlink,
    add=lambda: (blob.parent / "more").write_text("x"),
    through=lambda: (own / "there" / "state.db").read_bytes(),
)
possible = [] if b"traceEvents" in blob.read_bytes() else ["nothing"]
for name, attempt in tries.items():
    try:
        attempt()
        possible.append(name)
    except OSError as error:
        if error.errno not in (1, 13, 18):  # EPERM, EACCES, EXDEV
            possible.append("%s: %s" % (name, error))
open(out + "/possible.metrics.json", "w").write(json.dumps(possible))
return {{"made": [["possible.metrics.json", "0" * 64]]}}"""


@pytest.mark.embedded
@NEEDS_LANDLOCK
def test_a_worker_reads_its_inputs_and_nothing_else_of_the_server(hostile: Hostile) -> None:
    earlier = hostile.expect_honest_work()
    state, (_, job, _, name) = hostile.state, earlier.artifacts[0].name.split("/")
    other = hostile.server.upload(trace(hostile.outside / "other.json", count=7))
    kept = {path.name: path.read_bytes() for path in (state / "blobs").iterdir()}
    others = [*map(str, (state / "blobs").iterdir()), str(outputs(state, job) / name)]
    hostile.does(READS.format(others=others))
    tried = hostile.augment()
    assert tried.state == v1.Job.STATE_SUCCEEDED, tried.error
    assert json.loads(hostile.server.read(tried.artifacts[0].name)) == []
    assert {path.name: path.read_bytes() for path in (state / "blobs").iterdir()} == kept
    hostile.server.stub.DeleteUpload(calls.DeleteUploadRequest(name=other))
    (hostile.outside / "other.json").unlink()


def test_a_system_without_landlock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "version", lambda: 0)
    with serving(tmp_path / "state") as server:
        assert any("no Landlock: workers can read" in line for line in server.observer.logged)


@pytest.mark.embedded
@NEEDS_LANDLOCK
def test_the_last_step_cannot_change_what_earlier_jobs_made(hostile: Hostile) -> None:
    earlier = hostile.expect_honest_work()
    before = {artifact.name: hostile.server.read(artifact.name) for artifact in earlier.artifacts}
    hostile.does("""
made = [(given["made_in"], each) for given in order["inputs"] for each in given["made"]]
refused = 0
for folder, each in made:
    path = out + "/" + each["file_name"]
    os.symlink(folder + "/" + each["file_name"], path)
    for change in (lambda: open(path, "r+b").write(b"TAMPERED"), lambda: os.link(os.path.realpath(path), path + "2")):
        try:
            change()
        except OSError:
            refused += 1
open(out + "/refused.metrics.json", "w").write(str(refused))
return {"made": [["refused.metrics.json", "0" * 64], *([each["file_name"], each["sha256"]] for _, each in made)]}""")
    job = hostile.whole(v1.Input(job=earlier.name))
    assert job.state == v1.Job.STATE_SUCCEEDED, job.error
    assert {name: hostile.server.read(name) for name in before} == before
    again = {each.file_name: hostile.server.read(each.name) for each in job.artifacts[1:]}
    assert len(again) >= 3
    assert again == {name.rpartition("/")[2]: data for name, data in before.items()}
    folder = outputs(hostile.state, job.name)
    assert (folder / "refused.metrics.json").read_text() == str(2 * len(again))
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    hostile.expect_honest_work()


def test_a_link_that_was_not_handed_over_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "known").write_text("known")
    (tmp_path / "work" / "out" / "a").symlink_to("/etc/passwd")
    (tmp_path / "work" / "out" / "b").symlink_to(tmp_path / "known")
    known = {"a": (str(tmp_path), "known")}
    assert take_over(tmp_path, ("work", "out"), ["a"], tmp_path / "target", known) == [5]
    assert (tmp_path / "target" / "a").read_text() == "known"
    with pytest.raises(OSError, match="symbolic links"):
        take_over(tmp_path, ("work", "out"), ["b"], tmp_path / "other", known)


def test_a_sparse_output_that_claims_more_than_the_disk_has_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with open(tmp_path / "work" / "made", "wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        take_over(tmp_path, ("work",), ["made"], tmp_path / "target", {})
    assert not list((tmp_path / "target").iterdir())


def test_outputs_that_claim_more_than_is_stored_are_not_copied(tmp_path: Path) -> None:
    """Sparse ones take nothing, their copies do, and a copy can not be cancelled."""
    (tmp_path / "work").mkdir()
    for name in "ab":
        with open(tmp_path / "work" / name, "wb") as file:
            file.truncate(1 << 20)
    with pytest.raises(OSError, match="too large"):
        take_over(tmp_path, ("work",), ["a", "b"], tmp_path / "target", {}, (2 << 20) - 1)
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["a"]


def test_removal_knows_no_depth_and_follows_no_link(hostile: Hostile, tmp_path: Path) -> None:
    hostile.does("""
os.chdir(out)
for _ in range(3000):
    os.mkdir("d")
    os.symlink(OUTSIDE, "link")
    os.chdir("d")
os.chdir("/")
return {"failed": ["UNKNOWN_FORMAT", "no", {}], "traceback": ""}""")
    before = unharmed(hostile)
    job = hostile.augment()
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "UNKNOWN_FORMAT")
    eventually(lambda: not list((hostile.state / "work").glob("*/*[!x]")))
    assert unharmed(hostile) == before
    (tmp_path / "link").symlink_to(hostile.outside)
    remove(tmp_path / "link")
    remove(tmp_path / "never there")
    assert (unharmed(hostile), list(tmp_path.iterdir())) == (before, [])


@NEEDS_LINUX
def test_removal_enters_folders_that_their_modes_close(tmp_path: Path) -> None:
    script = """if True:
        import os, sys
        from pathlib import Path
        from augment_server.base.confinement import renounce
        from augment_server.storage.folder import remove
        renounce()  # root could enter
        os.makedirs(path := sys.argv[1] + "/a/b")
        open(path + "/file", "w")
        os.chmod(path, 0)
        os.chmod(sys.argv[1] + "/a", 0o300)
        remove(Path(sys.argv[1]))"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, tmp_path / "top"], check=True, env=environment)
    assert not list(tmp_path.iterdir())


SAYS = {
    "an unknown reason": """return {"failed": ["NOSUCH", "no", {}], "traceback": ""}""",
    "half of a message": """return {"failed": ["UNKNOWN_FORMAT"]}""",
    "a name that is no text": r"""
say.__closure__[0].cell_contents.write(b'{"made": [["\ud800", "%s"]]}\n' % (b"0" * 64))""",
    "a name with a control character": r"""return {"made": [["a\n", "0" * 64]]}""",
    "a name with a mark of direction": r"""return {"made": [["a\u202e.metrics.json", "0" * 64]]}""",
    "no JSON": r"""say.__closure__[0].cell_contents.write(b"made\n")""",
    "no message": """return {"size": 5}""",
    "a line without an end": """return {"made": [], "notes": ["x" * (9 << 20)]}""",
    "a count that is none": """say(stage="reading", done=-1, of=2)""",
    "too large a count": """say(stage="reading", done=1, of=1 << 40)""",
    "inputs that there are not": """return {"made": [], "failures": [[0, "INTERNAL", "no", {}]], "notes": []}""",
    "another kind of digest": """return {"made": [["rank0.metrics.json", "1"]]}""",
    "stages for ever": """
for _ in range(100_000):
    say(stage="reading", done=1, of=2)""",
    "megabytes of stages": """
for _ in range(100):
    say(stage="reading", done=1, of=2, notes=["x" * 4096] * 99)""",
    "ready for ever": """
for _ in range(100_000):
    say(ready=True)""",
}


@pytest.mark.parametrize("what", SAYS)
def test_what_no_worker_says_ends_the_job_and_the_worker(hostile: Hostile, what: str) -> None:
    hostile.expect_honest_work()
    (pid,) = hostile.server.workers
    hostile.does(SAYS[what])
    job = hostile.augment()
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "INTERNAL")
    assert "Misbehaved" in job.error.message
    assert len(job.progress.stages) <= 1000
    hostile.expect_honest_work()
    assert pid not in hostile.server.workers


def test_a_long_message_of_a_worker_is_decoded_in_a_thread(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 4 MB took the event loop 0.18 s."""
    decoder, threads = workers._SAID, dict[bool, set[str]]()

    class Noted:
        def decode(self, line: bytes) -> workers.Said:
            threads.setdefault(len(line) > LARGE, set()).add(threading.current_thread().name)
            return decoder.decode(line)

    monkeypatch.setattr(workers, "_SAID", Noted())
    hostile.does("""return {"failed": ["UNKNOWN_FORMAT", "x" * 4096, {str(i): "y" * 4096 for i in range(16)}]}""")
    assert hostile.augment().error.reason == "UNKNOWN_FORMAT"
    hostile.expect_honest_work()
    assert len(threads[True]) == len(threads[False]) == 1
    assert threads[True] != threads[False]


def test_what_a_worker_tells_counts_as_its_clients(hostile: Hostile) -> None:
    """The particulars of a failure took 3.8 MB a job, of which nothing counted."""
    used = hostile.server.core._retention.used
    hostile.does("""return {"failed": ["UNKNOWN_FORMAT", "x" * 4096, {str(i): "y" * 4096 for i in range(16)}]}""")
    before = used().get("host:mallory", 0)
    job = hostile.augment("host:mallory")
    assert job.error.metadata["15"] == "y" * 4096
    assert used()["host:mallory"] - before > 17 * 4096
    hostile.server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name))
    assert used().get("host:mallory", 0) == before
    many = 'dict.fromkeys(map(str, range(17)), "")'
    for more in ('"x" * 4097, {}', '"x", {"a": "x" * 4097}', '"x", {"a" * 101: "x"}', f'"", {many}'):
        hostile.does(f"""return {{"failed": ["UNKNOWN_FORMAT", {more}]}}""")
        assert "Misbehaved" in hostile.augment().error.message


def test_a_failed_input_is_one_of_the_inputs(hostile: Hostile) -> None:
    """Another position was told as index -1."""
    hostile.does("""
if order["kind"] == "job":
    return {"made": [], "failures": [[1, "INTERNAL", "no", {}]], "notes": []}""")
    job = hostile.whole(v1.Input(upload=hostile.upload))
    assert (job.state, job.error.reason, list(job.failures)) == (v1.Job.STATE_FAILED, "INTERNAL", [])
    assert "Misbehaved" in job.error.message


def test_what_is_said_after_a_job_is_no_answer_to_the_next_one(hostile: Hostile) -> None:
    hostile.does(r"""
end = b'{"failed": ["UNKNOWN_FORMAT", "%s", {}]}\n'
say.__closure__[0].cell_contents.write(end % b"first" + end % b"second")
import time
time.sleep(10**6)""")
    assert hostile.augment().error.message == "first"
    hostile.expect_honest_work()


GOES_ON = """
import builtins, mmap, threading, time
def go_on():
    for number in range(10**9):
        {what}
threading.Thread(target=go_on, daemon=True).start()
time.sleep(0.2)
return {{"failed": ["UNKNOWN_FORMAT", "no", {{}}], "traceback": ""}}"""


def states(pid: int) -> set[str]:
    """The states of a process's threads."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {text.rpartition(")")[2].split()[0] for text in texts}


@NEEDS_LINUX
@pytest.mark.parametrize("what", ["pass", 'os.mkdir(order["folder"] + "/../%d" % number)', "open('/dev/null').close()"])
def test_nothing_of_a_client_goes_on_between_its_jobs(hostile: Hostile, what: str) -> None:
    """A worker that made folders as fast as they were removed kept its place for ever."""
    hostile.does(GOES_ON.format(what=what))
    assert hostile.augment("host:mallory").error.message == "no"
    (worker,) = hostile.server.core._scheduler._workers._all
    assert worker.client is None or states(worker.pid) == {"T"}
    hostile.expect_honest_work()


@NEEDS_LINUX
def test_a_folder_that_takes_long_to_empty_keeps_nobody_waiting(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_EMPTY_S", 0.0)
    hostile.does(GOES_ON.format(what='os.mkdir(order["folder"] + "/../%d" % number)'))
    hostile.augment()
    (worker,) = hostile.server.core._scheduler._workers._all
    assert worker.client is None
    eventually(lambda: {*(hostile.state / "work").iterdir()} == {worker.folder, worker.given})


@NEEDS_LINUX
def test_a_worker_with_much_memory_is_not_kept_whatever_it_says(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that the process does not tell of."""
    monkeypatch.setattr(workers, "KEPT_BYTES", 200 << 20)
    for size, is_kept in ((1 << 20, True), (200 << 20, False)):
        hostile.does(f"""
import builtins
builtins.kept = b"x" * {size}
return {{"failed": ["UNKNOWN_FORMAT", "no", {{}}], "traceback": ""}}""")
        hostile.augment()
        (worker,) = hostile.server.core._scheduler._workers._all
        assert (worker.client is not None) == is_kept


@NEEDS_LINUX
def test_a_worker_has_no_rights_of_root_leaves_no_dump_and_cannot_empty_the_log(hostile: Hostile) -> None:
    hostile.does("""
import resource
status = dict(line.rstrip().split(":", 1) for line in open("/proc/self/status"))
said = [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")]
said += map(str, resource.getrlimit(resource.RLIMIT_CORE))
open(out + "/said.metrics.json", "w").write(" ".join([*said, os.readlink("/proc/self/fd/2").partition(":")[0]]))
return {"made": [["said.metrics.json", "0" * 64]]}""")
    job = hostile.augment()
    none = "0" * 16
    said = hostile.server.read(job.artifacts[0].name).decode().split()
    assert said == [*[none] * 4, "1", "0", "0", "pipe"]


def test_what_a_worker_writes_to_stderr_is_passed_on_in_pieces() -> None:
    lines: list[bytes] = []
    end, thread = relay(lines.append)
    with open(end, "wb", buffering=0) as file:
        file.write(b"a\nb" + b"c" * (1 << 17))
    thread.join()
    assert b"".join(lines) == b"a\nb" + b"c" * (1 << 17)
    assert max(map(len, lines)) == 1 << 16


def test_a_job_ends_even_if_its_end_cannot_be_recorded(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, failures = hostile.server.core._jobs, []
    end = jobs.end

    def once(*arguments: Any, **more: Any) -> bool:
        if not failures:
            failures.append(arguments)
            raise ValueError("something about it")
        return end(*arguments, **more)

    monkeypatch.setattr(jobs, "end", once)
    hostile.code.write_text(HONEST)
    job = hostile.augment()
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "INTERNAL")
    published = hostile.state / "artifacts" / job.name.removeprefix("jobs/")
    eventually(lambda: not published.exists())  # it goes once its end is recorded


@NEEDS_SECCOMP
def test_a_worker_starts_no_process_and_opens_no_socket(hostile: Hostile) -> None:
    hostile.does("""
import ctypes, fcntl, mmap, resource, select, socket, subprocess, threading
resource.prlimit(0, resource.RLIMIT_NOFILE)
path = OUTSIDE + "/secret"
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(name)
tries = dict(
    fork=os.fork,
    run=lambda: subprocess.run(["true"]),
    exec=lambda: os.execv("/bin/true", ["true"]),
    tcp=lambda: socket.socket().listen(1),
    udp=lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    unix=lambda: socket.socket(socket.AF_UNIX),
    pair=socket.socketpair,
    mode=lambda: os.chmod(path, 0o666),
    opened=lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o666),
    owner=lambda: os.chown(path, 1, 1),
    time=lambda: os.utime(path, (0, 0)),
    attribute=lambda: os.setxattr(path, "user.x", b"1"),
    trace=lambda: call("ptrace", 16, os.getppid(), 0, 0),
    outlive=lambda: call("prctl", 1, 0, 0, 0, 0),
    limit=lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1)),
    priority=lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 10),
    kill=lambda: os.kill(os.getppid(), 0),
    tgkill=lambda: call("tgkill", os.getppid(), os.getppid(), 0),
    user=lambda: os.setuid(os.getuid()),
    namespace=lambda: call("unshare", 0x10000000),
    lock=lambda: fcntl.lockf(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB),
    flock=lambda: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB),
    flags=lambda: fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, bytes(8)),
    verity=lambda: fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40806685, bytes(128)),
    extents=lambda: fcntl.ioctl(os.open(path, os.O_RDONLY), 0xC020660B, bytes(32)),
    hint=lambda: fcntl.fcntl(os.open(path, os.O_RDONLY), 1036, bytes(8)),
    unseen=lambda: call("prctl", 4, 0, 0, 0, 0),
    timer=lambda: call("timer_create", 1, None, ctypes.byref(ctypes.c_void_p())),
    memory=lambda: os.memfd_create("x"),
    secret=lambda: call("syscall", 447, 0),
    unmapped=lambda: mmap.mmap(-1, 4096),
    pipe=os.pipe,
    epoll=select.epoll,
    inotify=lambda: call("inotify_init"),
    rules=lambda: call("syscall", 444, 0, 0, 1),
    descriptors=lambda: call("syscall", 436, 1000, 1000, 2),
    duplicate=lambda: call("syscall", 438, 0, 0, 0),
    shared=lambda: call("shmget", 0, 4096, 0o1600),
    processors=lambda: os.sched_setaffinity(os.getppid(), {0}),
)
possible = []
for name, attempt in tries.items():
    try:
        attempt()
        possible.append(name)
    except OSError:
        pass
thread = threading.Thread(target=lambda: possible.append("threads"))
thread.start()
thread.join()
return {"failed": ["UNKNOWN_FORMAT", " ".join(possible), {}], "traceback": ""}""")
    before = os.stat(hostile.outside / "secret")
    job = hostile.augment()
    assert (job.error.reason, job.error.message) == ("UNKNOWN_FORMAT", "threads")
    after = os.stat(hostile.outside / "secret")
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)


@NEEDS_LINUX
def test_a_worker_with_thousands_of_threads_is_ended(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_THREADS", 100)
    hostile.does("""
import threading
threading.stack_size(1 << 16)
for _ in range(101):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
threading.Event().wait()""")
    assert hostile.augment().error.reason == "INTERNAL"
    hostile.expect_honest_work()


def test_what_a_worker_writes_to_stderr_is_passed_on_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    written, waited = list[bytes](), list[float]()
    monkeypatch.setattr(workers.os, "write", lambda _, line: written.append(line))
    monkeypatch.setattr(workers.time, "sleep", waited.append)
    for line in (b"x" * (1 << 16), b"x" * (1 << 15)):
        workers._pass_on(line)
    assert (len(b"".join(written)), waited) == (3 << 15, [1.0, 0.5])


@NEEDS_SECCOMP
def test_a_secluded_process_signals_itself_alone() -> None:
    """Even where Landlock does not know signals."""
    script = """if True:
        import ctypes, os
        from augment_server.base.confinement import seclude
        tgkill = ctypes.CDLL(None).tgkill
        assert seclude()
        assert tgkill(os.getppid(), os.getppid(), 0) < 0
        assert tgkill(os.getpid(), os.getpid(), 0) == 0
        os.abort()"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert ended.returncode == -signal.SIGABRT


@NEEDS_SECCOMP
def test_a_worker_ends_with_its_server(tmp_path: Path) -> None:
    """Even one that no longer reads stdin; the thread that started it is the server's event loop."""
    script = (
        "import sys, time; from augment_server.base.confinement import seclude\n"
        "assert seclude(); print('ready', flush=True); time.sleep(10**6)"
    )
    parent = f"import subprocess, sys, os; subprocess.Popen([sys.executable, '-c', {script!r}]); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent], stdin=pipe, stdout=pipe, env=environment) as server:
        assert server.stdout.readline() == b"ready\n"
        server.kill()
        assert server.stdout.read() == b""  # nobody has the pipe any more


def test_with_a_worker_its_children_are_killed(tmp_path: Path) -> None:
    async def kill() -> bytes:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "sleep 1000000 & echo ready; wait", stdout=subprocess.PIPE, start_new_session=True
        )
        assert await process.stdout.readline() == b"ready\n"
        await workers.Worker(process, 0, tmp_path).end()
        return await process.stdout.read()  # until nobody has the pipe any more

    assert asyncio.run(kill()) == b""

"""The examples in other languages, run against a real server."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpcurl_tool import path_with_grpcurl
from in_process import eventually
from node_tools import installed, node_binary
from serving_process import Server, augment, environment, serving

from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from simulator import JobOptions, simulate

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "clients"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of several chunks, not compressed."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=6, layers=12), tmp_path_factory.mktemp("job"))
    plain = path.with_name("rank0.json")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert plain.stat().st_size > 3 << 20
    return plain


@pytest.fixture(scope="module")
def wanted(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the command makes of it."""
    out = tmp_path_factory.mktemp("wanted")
    assert augment("run", trace, "-o", out, "--to", "chrome,perfetto").returncode == 0
    return files(out)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def chrome(wanted: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in wanted.items() if name.endswith(".json.gz")}


def run(*command: object, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    words, env = [str(each) for each in command], environment(**more)
    return subprocess.run(words, cwd=cwd, capture_output=True, encoding="utf-8", env=env, timeout=600)


def test_python(server: Server, trace: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    ended = run(sys.executable, EXAMPLES / "python_client.py", server.address, trace, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert files(tmp_path) == wanted
    assert "device 0: idle" in ended.stdout
    assert "sending" in ended.stderr


def test_python_says_what_is_wrong(server: Server, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")
    ended = run(sys.executable, EXAMPLES / "python_client.py", server.address, bad)
    assert (ended.returncode, ended.stderr.splitlines()[-1].startswith(f"{bad}: ")) == (3, True)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Node's example beside the packages that it needs, in a tree where it finds the .proto files."""
    tree = tmp_path_factory.mktemp("tree")
    place = tree / "examples" / "clients" / "node"
    shutil.copytree(EXAMPLES / "node", place, ignore=shutil.ignore_patterns("node_modules"))
    (place / "node_modules").symlink_to(installed((place / "package.json").read_text()) / "node_modules")
    shutil.copytree(ROOT / "proto", tree / "proto", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return place / "augment.mjs"


def test_node(script: Path, server: Server, trace: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    ended = run(node_binary(), script, server.address, trace, tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()[-1].split()[0]) == (0, "STATE_SUCCEEDED"), ended.stderr
    assert chrome(files(tmp_path)) == chrome(wanted)
    assert sorted(ended.stdout.splitlines()) == sorted(str(path) for path in tmp_path.iterdir())
    assert (tmp_path / "rank0.metrics.json").exists()


def test_node_with_a_token(script: Path, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n")
    with serving(tmp_path / "state", "--token-file", tmp_path / "tokens") as server:
        assert run(node_binary(), script, server.address, trace, tmp_path, AUGMENT_TOKEN="secret").returncode == 0
        refused = run(node_binary(), script, server.address, trace, tmp_path, AUGMENT_TOKEN="wrong")
    assert refused.returncode == 1
    assert "does not know the token" in refused.stderr


def test_node_says_what_is_wrong(script: Path, server: Server, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")
    ended = run(node_binary(), script, server.address, bad, tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()[-1].startswith("bad.json: ")) == (1, True)
    assert list(tmp_path.iterdir()) == [bad]


def test_go(trace: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    expect("go")
    (tmp_path / "tokens").write_text("secret\n")
    out, bad, program = tmp_path / "out", tmp_path / "bad.json", tmp_path / "augment"
    out.mkdir()
    bad.write_text("no trace")
    go = {"GOCACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    built = run("go", "build", "-o", program, EXAMPLES / "go" / "augment.go", **go)
    assert built.returncode == 0, built.stderr
    with serving(tmp_path / "state", "--http", "127.0.0.1:0", "--token-file", tmp_path / "tokens") as server:
        ended = run(program, server.http, trace, out, AUGMENT_TOKEN="secret")
        assert (ended.returncode, ended.stderr.splitlines()[-1].split()[0]) == (0, "STATE_SUCCEEDED"), ended.stderr
        refused = run(program, server.http, bad, AUGMENT_TOKEN="secret")
        unknown = run(program, server.http, trace, AUGMENT_TOKEN="wrong")
    assert chrome(files(out)) == chrome(wanted)
    assert sorted(ended.stdout.splitlines()) == sorted(str(path) for path in out.iterdir())
    assert (refused.returncode, "bad.json: " in refused.stderr.splitlines()[-1]) == (1, True)
    assert (unknown.returncode, "does not know the token" in unknown.stderr) == (1, True)


def expect(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def test_grpcurl(server: Server, trace: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    expect("bash", "jq", "base64", "split")
    out = tmp_path / "out"
    out.mkdir()
    ended = run(EXAMPLES / "grpcurl.sh", server.address, trace, out, PATH=path_with_grpcurl())
    assert ended.returncode == 0, ended.stderr
    assert chrome(files(out)) == chrome(wanted)
    assert "STATE_SUCCEEDED" in ended.stderr


def test_stragglers(server: Server, tmp_path: Path) -> None:
    """Of a job with one: who, in one run of the script."""
    expect("bash", "jq", "base64", "split")
    simulate(JobOptions(ranks=3, steps=3, straggler=2), tmp_path / "job")
    wanted = augment("run", tmp_path / "job", "-o", tmp_path / "out", "--quiet")
    assert wanted.returncode == 0, wanted.stderr
    metrics = json.loads((tmp_path / "out" / "job.metrics.json").read_text())
    paths = sorted((tmp_path / "job").iterdir())
    ended = run(EXAMPLES / "stragglers.sh", server.address, *paths, PATH=path_with_grpcurl())
    assert ended.returncode == 0, ended.stderr
    *verdict, first, second, third = ended.stdout.splitlines()
    assert verdict == metrics["verdict"]["text"]
    rows = [json.loads(row) for row in (first, second, third)]
    assert rows == metrics["analyses"]["stragglers"]["rows"]
    assert rows[0]["rank"] == 2
    assert "STATE_SUCCEEDED" in ended.stderr


def test_grpcurl_says_what_is_wrong(server: Server, tmp_path: Path) -> None:
    expect("bash", "jq", "base64", "split")
    (tmp_path / "bad.json").write_text("no trace")
    ended = run(EXAMPLES / "grpcurl.sh", server.address, tmp_path / "bad.json", tmp_path, PATH=path_with_grpcurl())
    assert ended.returncode != 0
    assert "STATE_FAILED" in ended.stderr
    assert "bad.json: " in ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["bad.json"]


def test_the_commands_of_the_page(server: Server, tmp_path: Path) -> None:
    """Each as it stands there, one after the other, but for the port and the names that the server chose."""
    expect("bash", "base64")
    page = (ROOT / "docs" / "service.md").read_text()
    blocks = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "grpcurl" in each]
    assert len(blocks) >= 6
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2), tmp_path / "job")
    (tmp_path / "rank0.json.gz").write_bytes(path.read_bytes())
    names = {"uploads": "", "jobs": ""}
    stub = AugmentServiceStub(grpc.insecure_channel(server.address))
    unfinished = calls.ListJobsRequest(filter="state = QUEUED OR state = RUNNING")
    for block in blocks:
        text = block.replace("127.0.0.1:50051", server.address)
        for kind, name in names.items():
            text = text.replace(f"{kind}/…", name)
        assert "…" not in text
        eventually(lambda: not stub.ListJobs(unfinished).jobs)  # a history is of jobs that are done
        ended = run("bash", "-euo", "pipefail", "-c", text, cwd=tmp_path, PATH=path_with_grpcurl())
        assert ended.returncode == 0, (block, ended.stderr)
        for kind in names:
            names[kind] = names[kind] or next(iter(re.findall(rf'"name": "({kind}/[0-9a-z]+)"', ended.stdout)), "")
        if "GetMetrics" in block:
            assert '"jsonRows"' in ended.stdout


def test_the_script_for_grpcurl_names_methods_that_exist() -> None:
    methods = {method.name for method in calls.DESCRIPTOR.services_by_name["AugmentService"].methods}
    words = (EXAMPLES / "grpcurl.sh").read_text().split()
    named = {word.removeprefix("$api/").rstrip("|") for word in words if "$api/" in word}
    assert named
    assert named <= methods
    assert os.access(EXAMPLES / "grpcurl.sh", os.X_OK)

"""The API as buf judges it: its style, every comment, and nothing broken since it was released."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from augment.v1 import resources_pb2, service_pb2

ROOT = Path(__file__).parents[2]
BESIDE = Path(sys.executable).parent / "buf"


@pytest.fixture(scope="module")
def buf() -> str:
    result = str(BESIDE) if BESIDE.exists() else shutil.which("buf")
    if result is None:
        pytest.skip("buf is not installed (package buf-bin)")
    return result


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, encoding="utf-8", timeout=600)


def test_as_make_check_judges(buf: str) -> None:
    ended = run(sys.executable, "proto/judge.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout in ("", "no branch main with an API to compare with\n")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return tmp_path / "proto"


def change(proto: Path, name: str, *changes: tuple[str, str]) -> None:
    path = proto / "augment" / "v1" / name
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_lint_finds_what_is_wrong(buf: str, copy: Path) -> None:
    change(copy, "service.proto", ('  // "jobs/ID".\n', ""), ("service AugmentService", "service Augment"))
    change(copy, "resources.proto", ("// The trace.\n", "\n"))
    ended = run(buf, "lint", copy)
    assert ended.returncode != 0
    assert 'should be suffixed with "Service"' in ended.stdout
    assert "should have a non-empty comment" in ended.stdout


def test_what_breaks_callers_is_found(buf: str, copy: Path) -> None:
    change(copy, "resources.proto", ("  int64 received_bytes = 4;", "  int64 received_bytes = 40;"))
    ended = run(buf, "breaking", copy, "--against", ROOT / "proto")
    assert ended.returncode != 0
    assert 'field "4" with name "received_bytes"' in ended.stdout


@pytest.mark.parametrize(("file", "outer"), [(resources_pb2, "ResourcesProto"), (service_pb2, "ServiceProto")])
def test_where_the_code_of_others_lies(file: Any, outer: str) -> None:
    """Generated code in other languages is imported by these names, so they stay."""
    options = file.DESCRIPTOR.GetOptions()
    assert {field.name: value for field, value in options.ListFields()} == {
        "csharp_namespace": "Augment.V1",
        "go_package": "github.com/kineto-augment/kineto-augment/proto/augment/v1;augmentv1",
        "java_multiple_files": True,
        "java_outer_classname": outer,
        "java_package": "io.github.kineto_augment.v1",
    }


@pytest.mark.parametrize(
    ("language", "plugin", "made"),
    [
        ("go", "protoc-gen-go", "github.com/kineto-augment/kineto-augment/proto/augment/v1/resources.pb.go"),
        ("java", "", "io/github/kineto_augment/v1/Job.java"),
        ("csharp", "", "Resources.cs"),
    ],
)
def test_others_compile_it_as_it_is(language: str, plugin: str, made: str, tmp_path: Path) -> None:
    """With nothing but protoc, and no option of theirs."""
    for program in filter(None, ("protoc", plugin)):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: protobuf-compiler, protoc-gen-go)")
    files = ("augment/v1/resources.proto", "augment/v1/service.proto")
    ended = run("protoc", "-I.", f"--{language}_out={tmp_path}", *files, cwd=ROOT / "proto")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / made).exists()

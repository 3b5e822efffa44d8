from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import augment
from augment.kernels.native import at_hand, compiled_sources

pytest.importorskip("numba", reason="machine code is made by numba")

CALL = """
import sys
from augment.kernels.catalogue import KERNELS
from augment.kernels.native import native
KERNELS["tokens.eight_digits"] = 1
said = []
words = native("tokens.eight_digits", said.append)
numbers = [words(int.from_bytes(text, "little")) for text in (b"12345678", b"1234567x")]
print(*numbers, said, "numba" in sys.modules)
"""


def run(cache: Path) -> str:
    environment = {"KINETO_AUGMENT_CACHE": str(cache), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_second_process_needs_no_compiler(tmp_path: Path) -> None:
    assert run(tmp_path) == '12345678 -1 ["compiling for this machine\'s processor (some 15 s, once)"] True'
    assert run(tmp_path) == "12345678 -1 [] False"


def test_at_hand_is_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_AUGMENT_CACHE", str(tmp_path))
    function = "tokens.eight_digits"
    assert not at_hand(function)
    run(tmp_path)
    assert at_hand(function)
    assert not at_hand("tokens.read_int")
    (kept,) = tmp_path.iterdir()
    kept.rename(tmp_path / "tokens.eight_digits-ofanotherversion.o")
    assert not at_hand(function)


def test_code_is_compiled_anew_when_any_constant_changes_that_is_compiled_in() -> None:
    sources = compiled_sources()
    package = Path(augment.__file__).parent
    trees = {path: ast.parse(path.read_text()) for path in sources}
    taken = {
        path: [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        for path, tree in trees.items()
    }
    by_numba = {path: names for path, names in taken.items() if "augment.kernels.memory" in names}
    named = {name for names in by_numba.values() for name in names if name.startswith("augment.")}
    assert named
    assert {package.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in named} <= set(sources)


def test_nothing_need_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "below").startswith("12345678 -1")


def test_damaged_code_is_made_again(tmp_path: Path) -> None:
    run(tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert run(tmp_path).startswith('12345678 -1 ["compiling')

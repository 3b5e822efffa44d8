from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from augment.compiled.native import at_hand

pytest.importorskip("numba", reason="machine code is made by numba")

CALL = """
import sys
from augment.compiled.native import native
said = []
words = native("augment.compiled.tokens", "eight_digits", 1, said.append)
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
    function = ("augment.compiled.tokens", "eight_digits")
    assert not at_hand(*function)
    run(tmp_path)
    assert at_hand(*function)
    assert not at_hand("augment.compiled.tokens", "read_int")
    (kept,) = tmp_path.iterdir()
    kept.rename(tmp_path / "tokens.eight_digits-ofanotherversion.o")
    assert not at_hand(*function)


def test_nothing_need_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "below").startswith("12345678 -1")


def test_damaged_code_is_made_again(tmp_path: Path) -> None:
    run(tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert run(tmp_path).startswith('12345678 -1 ["compiling')

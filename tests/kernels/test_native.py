"""The library of the kernels: what it holds, and when a checkout builds it again."""

from __future__ import annotations

import importlib
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from augment.kernels.catalogue import KERNELS
from augment.kernels.native import digest, is_current, native, own_target

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CALL = "from augment.kernels.native import native; native('dictionary.fill_slots')"
#: instead of compiling and linking: the checkout's own library, with the digest that it would have
EMIT = "def object_file(target, digest): return digest.encode()"
LINK = """
import shutil, time
from pathlib import Path
def link(object_file, target, library):
    with Path(__file__).with_name("count").open("a") as file:
        file.write("x")
    time.sleep(0.3)
    made = library.with_name("made")
    made.write_bytes(Path(%r).read_bytes() + object_file)
    made.replace(library)
"""


@pytest.mark.parametrize("name", KERNELS)
def test_the_catalogue_tells_how_many_arguments_a_kernel_takes(name: str) -> None:
    module, function = name.split(".")
    kernel = getattr(importlib.import_module(f"augment.kernels.{module}"), function)
    assert len(inspect.signature(kernel).parameters) == len(KERNELS[name])
    assert native(name) is native(name)


def test_a_kernel_runs() -> None:
    slots, hashes = np.full(8, -1, np.int32), np.array([3 << 20, 3 << 20, 5 << 20], np.int64)
    assert native("dictionary.fill_slots")(slots, hashes, 3) == 0
    assert slots.tolist() == [-1, -1, -1, 0, 1, 2, -1, -1]


def own_library() -> Path:
    native("dictionary.fill_slots")
    (library,) = (ROOT / "augment" / "kernels").glob("kernels.*")
    return library


def test_the_library_is_that_of_the_sources() -> None:
    assert is_current(own_library(), own_target())
    assert not is_current(own_library(), "another-platform")
    assert len(digest(own_target())) == 64


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "augment").mkdir()
    shutil.copy(ROOT / "augment" / "__init__.py", tmp_path / "augment")
    for folder in ("augment/kernels", "building"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("kernels.*", "__pycache__"))
    (tmp_path / "building" / "emit.py").write_text(EMIT)
    (tmp_path / "building" / "link.py").write_text(LINK % str(own_library()))
    return tmp_path


def start(checkout: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {[str(checkout), *sys.path]!r}; {CALL}"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def call(checkout: Path) -> str:
    """What a process says that calls a kernel."""
    with start(checkout) as process:
        return process.stderr.read()


def builds(checkout: Path) -> int:
    return len((checkout / "building" / "count").read_text())


def test_a_checkout_is_built_when_there_is_no_library_and_when_a_source_changed(checkout: Path) -> None:
    assert call(checkout) == "augment: the kernels changed and are built again (some 20 s)\n"
    assert call(checkout) == ""
    assert builds(checkout) == 1
    tokens = checkout / "augment" / "kernels" / "tokens.py"
    tokens.touch()
    assert call(checkout) == ""
    tokens.write_text(tokens.read_text() + "CHANGED = 1\n")
    assert "built again" in call(checkout)
    assert (call(checkout), builds(checkout)) == ("", 2)


def test_of_many_processes_one_builds(checkout: Path) -> None:
    processes = [start(checkout) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert builds(checkout) == 1
    for process in processes:
        process.stderr.close()
    left = {path.name for path in (checkout / "augment" / "kernels").iterdir() if path.suffix != ".py"}
    assert left <= {own_library().name, ".kernels.lock", "__pycache__"}


def test_where_nothing_can_be_built_the_command_is_told(checkout: Path) -> None:
    (checkout / "building" / "emit.py").write_text("import no_such_compiler")
    output = call(checkout).splitlines()[-1]
    assert output.startswith("ImportError: the kernels are older than their sources: ")
    assert f"{checkout / 'building'} fails: ModuleNotFoundError: No module named 'no_such_compiler'" in output


def test_an_installed_package_asks_for_no_sources(checkout: Path) -> None:
    shutil.rmtree(checkout / "building")
    assert "install the wheel of this platform" in call(checkout)
    shutil.copy(own_library(), checkout / "augment" / "kernels")
    tokens = checkout / "augment" / "kernels" / "tokens.py"
    tokens.write_text(tokens.read_text() + "CHANGED = 1\n")
    assert call(checkout) == ""


def test_the_pins_of_the_build_are_those_of_development() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    build = text[text.index("[build-system]") : text.index("build-backend")]
    pins = [line.strip() for line in build.splitlines() if line.startswith("    ")]
    assert len(pins) >= 5
    assert all(text.count(pin) == 2 for pin in pins)

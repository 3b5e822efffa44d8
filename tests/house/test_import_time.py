"""What is not loaded before it is needed: start-up is as fast as the list of modules is short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import augment
from simulator import JobOptions, simulate
from traces import kernel, launch

ROOT = Path(__file__).parents[2]
HEAVY = {
    "numpy", "numba", "llvmlite", "pandas", "plotly", "grpc", "google.protobuf", "perfetto", "msgspec", "rich", "isal",
    "zstandard", "multiprocessing", "concurrent.futures", "asyncio", "importlib.metadata",
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('\\n' + ' '.join(sys.modules))"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(ended.stdout.splitlines()[-1].split())


def test_the_package_alone_loads_nothing() -> None:
    loaded = loaded_after("before = set(sys.modules); import augment; sys.modules.update(); after = set(sys.modules)")
    assert {name for name in loaded if name.startswith("augment")} == {"augment"}
    assert not loaded & (HEAVY | {"click", "pathlib", "argparse", "dataclasses"})


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"], []])
def test_help_loads_no_analysis(args: list[str]) -> None:
    loaded = loaded_after(f"sys.argv = ['augment', *{args!r}]\nfrom augment.cli import main\nassert main() == 0")
    assert not loaded & (HEAVY | {"augment.core.trace", "augment.pipeline", "augment.readers", "augment.writers"})


def test_augmenting_loads_neither_bars_nor_tables(tmp_path: Path) -> None:
    events = [launch("cudaLaunchKernel", 2, 3, correlation=1), kernel("gemm", 6, 9, correlation=1)]
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
    argv = ["augment", "run", str(tmp_path / "a.json")]
    loaded = loaded_after(f"sys.argv = {argv!r}\nfrom augment.cli import main\nassert main() == 0")
    assert not loaded & {"rich", "numba", "llvmlite", "pandas", "plotly", "grpc", "multiprocessing", "numpy.ma"}
    assert not loaded & {"tempfile", "subprocess", "socket", "secrets", "statistics", "email"}
    assert "augment.readers.perfetto.reading" not in loaded
    assert not loaded & {"augment.cli.serve", "augment.cli.history", "augment.writers.perfetto.several"}
    assert not loaded & {"augment.batch.job_question", "augment.batch.manifest", "zipfile", "shutil"}


def test_a_server_begins_without_what_reads_traces() -> None:
    loaded = loaded_after("from augment_server.ops import serving\nserving.Metrics(dict)")
    assert not loaded & {"numpy", "augment.core.trace", "augment.analyses", "augment.readers", "augment.writers"}


def test_the_program_ends_at_once_but_in_order() -> None:
    program = "import atexit, sys; atexit.register(print, 'last'); from augment.cli import program; program()"
    for arguments, code, first in [(["--version"], 0, "augment, version"), (["lst"], 2, "last")]:
        ended = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout.splitlines()[-1]) == (code, "last")
        assert ended.stdout.startswith(first)


def test_the_first_run_compiles_and_caches_nothing(tmp_path: Path) -> None:
    """Whoever never ran it: no file is written but the outputs, no program is run, no machine code is made."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, memory=True), tmp_path)
    argv = ["augment", "run", str(path), "--to", "chrome,perfetto", "-o", str(tmp_path / "out")]
    (tmp_path / "home").mkdir()
    watched = """
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        seen.append(os.fsdecode(arguments[0]))
    elif event in ("os.mkdir", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"):
        seen.append(str(arguments[0]))
import os
seen = []
sys.addaudithook(watch)
"""
    run = f"{watched}sys.argv = {argv!r}\nfrom augment.cli import main\nassert main() == 0\nprint(chr(10).join(seen))"
    command = [sys.executable, "-B", "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{run}"]
    home = str(tmp_path / "home")
    known = {"HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": home, "PATH": os.environ["PATH"]}
    ended = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) > 3
    assert [line for line in lines if not line.startswith((str(tmp_path / "out"), "/dev/"))] == []
    assert list((tmp_path / "home").iterdir()) == []


def test_every_public_name_is_there() -> None:
    for name in augment.__all__:
        assert getattr(augment, name) is not None
        assert name in dir(augment)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = augment.nothing
    with pytest.raises(AttributeError, match=r"here augment.augment\(PATH\) analyses a trace"):
        _ = augment.run

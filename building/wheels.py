"""``python -m building.wheels [TARGET …]``: ``dist/`` made anew: wheels for each platform, the service's, both sources.

All that a registry takes is there then, and checked: what is in each file, its metadata, and an installation into an
empty environment of each Python that is found, which analyses a trace. ``twine upload dist/*`` is left to a person.

What runs here is tried with each kernel's plainest call: the own platform's, arm64's under qemu-user with its C library
(``qemu-user``, ``libc6-arm64-cross``), Windows' under Wine (``wine64``). What is not there is told as not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

from augment.kernels.catalogue import KERNELS
from augment.kernels.native import own_target
from building.build import ROOT
from building.targets import TARGETS, library_name

#: loads the library and calls a kernel that fills a table of eight places from three hashes
_SMOKE = r"""
#include <stdio.h>
#include <string.h>
%(include)s
typedef long long (*fill)(long long, long long, long long, long long, long long);
int main(int count, char **names) {
  int slots[8], expected[8] = {-1, -1, -1, 0, 1, 2, -1, -1};
  long long hashes[3] = {3 << 20, 3 << 20, 5 << 20};
  void *library = %(open)s;
  fill function = library ? (fill)%(find)s : 0;
  memset(slots, 255, sizeof slots);
  if (!function || function((long long)slots, 8, (long long)hashes, 3, 3)) return 1;
  return memcmp(slots, expected, sizeof slots) ? 2 : 0;
}
"""
_POSIX = {"include": "#include <dlfcn.h>", "open": "dlopen(names[1], RTLD_NOW)",
          "find": 'dlsym(library, "dictionary_fill_slots")'}  # fmt: skip
_WINDOWS = {"include": "#include <windows.h>", "open": "LoadLibraryA(names[1])",
            "find": 'GetProcAddress(library, "dictionary_fill_slots")'}  # fmt: skip
_RUNNERS = {
    "linux-aarch64": ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
    "win32-amd64": ("wine",),
}


def main(targets: list[str]) -> None:
    """Build, inspect and try the wheels of ``targets``."""
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for target in targets:
        _wheel(ROOT, out, KINETO_AUGMENT_TARGET=target)
        (wheel,) = out.glob(f"*-{TARGETS[target].tag}.whl")
        with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(f"augment/kernels/{library_name(target)}", name))
            inspect(library, target)
            result = smoke(library, target)
        sys.stdout.write(f"{wheel.name}: {wheel.stat().st_size >> 10} KB; inspected; {result}\n")
    _wheel(ROOT / "server", out)
    for source in (ROOT, ROOT / "server"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(out)]
        subprocess.run(command, check=True, cwd=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path in sorted(out.iterdir()):
        sys.stdout.write(f"{path.name}: {check(path)} files, metadata valid\n")
    for python in filter(None, (shutil.which(f"python3.{minor}") for minor in range(10, 20))):
        if not subprocess.run(
            [python, "-c", ""], capture_output=True, check=False
        ).returncode:  # a shim may lead nowhere
            sys.stdout.write(f"{install(python, out)}\n")


def check(path: Path) -> int:
    """How many files a wheel or a source distribution has.

    Raises:
        SystemExit: one is missing, or does not belong there; or its metadata would be refused by a registry.
    """
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            text = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
    else:
        with tarfile.open(path) as files:
            names = [name.partition("/")[2] for name in files.getnames()]
            member = files.extractfile(
                next(name for name in files.getnames() if name.count("/") == 1 and "PKG-INFO" in name)
            )
            text = member.read() if member else b""
    Metadata.from_email(text, validate=True)
    is_server, is_wheel = "server" in path.name, path.suffix == ".whl"
    needed = ["augment_server/__init__.py"] if is_server else ["augment/py.typed"]
    needed += ["augment/results/report/vega.js"] if is_wheel and not is_server else []
    missing = [name for name in needed if name not in names]
    strange = [name for name in names if is_wheel and name.startswith(("tests/", "benchmarks/", "docs/", "shared/"))]
    strange += [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".env"))]
    if missing or strange:
        raise SystemExit(f"{path.name}: missing {missing}, strange {strange}")
    return len(names)


def install(python: str, out: Path) -> str:
    """Install the library of ``out`` into an empty environment of a Python, and analyse a trace by it; what was done.

    Raises:
        SystemExit: that fails.
    """
    trace = next((ROOT / "examples" / "traces").rglob("*.json.gz"))
    with tempfile.TemporaryDirectory() as name:
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        bin_folder = Path(name) / "venv" / ("Scripts" if os.name == "nt" else "bin")
        (wheel,) = out.glob(f"*-{TARGETS[own_target()].tag}.whl")
        for command in (
            [python, "-m", "venv", str(Path(name) / "venv")],
            [str(bin_folder / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)],
            [str(bin_folder / "augment"), "run", str(trace), "-o", str(Path(name) / "out"), "--quiet"],
        ):
            result = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True)
            if result.returncode:
                raise SystemExit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        written = len(list((Path(name) / "out").rglob("*.pftrace*")))
        return (
            f"{Path(python).name}: installed into an empty environment; {trace.name} analysed, {written} trace written"
        )


def _wheel(source: Path, out: Path, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True, env={**os.environ, **environment})


def inspect(library: Path, target: str) -> None:
    """Whether a library exports the kernels and needs nothing but what its platform always has.

    Raises:
        RuntimeError: it does not.
    """
    import lief

    parsed: Any = lief.parse(str(library))
    kernels = {name.replace(".", "_") for name in KERNELS}
    allowed: set[str] = set()
    if target.startswith("linux"):
        names = {symbol.name for symbol in parsed.exported_symbols}
        needed = {str(library) for library in parsed.libraries} | {each.name for each in parsed.imported_symbols} - {""}
    elif target.startswith("win32"):
        names = {entry.name for entry in parsed.get_export().entries}
        needed = {entry.name for entry in parsed.imports}
    else:
        names = {symbol.name.removeprefix("_") for symbol in parsed.exported_symbols}
        allowed = {"@rpath/kernels.dylib", "/usr/lib/libSystem.B.dylib"}
        needed = {library.name for library in parsed.libraries}
        if "arm64" in target and not parsed.has_code_signature:
            raise RuntimeError(f"{library.name} for {target} is not signed, which arm64 asks for")
    if not kernels <= names:
        raise RuntimeError(f"{library.name} for {target} lacks {', '.join(sorted(kernels - names))}")
    if needed - allowed:
        raise RuntimeError(f"{library.name} for {target} needs {', '.join(sorted(needed - allowed))}")


def smoke(library: Path, target: str) -> str:
    """Call a kernel; what was tried.

    Raises:
        subprocess.CalledProcessError: it does not load, or gives a wrong answer.
    """
    runner = _RUNNERS.get(target, ())
    if target != own_target() and (not runner or not shutil.which(runner[0])):
        return f"not run: no {runner[0] if runner else 'machine'} here"
    source = library.with_name("smoke.c")
    windows = target.startswith("win32")
    source.write_text(_SMOKE % (_WINDOWS if windows else _POSIX))
    program = library.with_name("smoke.exe" if windows else "smoke")
    caches = {name: str(library.parent) for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    compile_ = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[target].zig, "-o", str(program), str(source)]
    subprocess.run(compile_, check=True, env={**os.environ, **caches})
    subprocess.run(
        [*runner, str(program), str(library)], check=True, timeout=300, env={**os.environ, "WINEDEBUG": "-all"}
    )
    return f"a kernel run under {runner[0]}" if runner else "a kernel run"


if __name__ == "__main__":
    main(sys.argv[1:] or list(TARGETS))

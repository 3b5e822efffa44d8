"""``python -m building.wheels [TARGET …]``: wheels into ``dist/``: for each platform, inspected and run; the service's.

What runs here is tried with each kernel's plainest call: the own platform's, arm64's under qemu-user with its C library
(``qemu-user``, ``libc6-arm64-cross``), Windows' under Wine (``wine64``). What is not there is told as not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from augment.kernels.catalogue import KERNELS
from augment.kernels.native import own_target
from building.build import ROOT
from building.targets import TARGETS, library_name

#: loads the library and calls a kernel that fills a table of eight places from three hashes
_SMOKE = r"""
#include <stdio.h>
#include <string.h>
%(include)s
typedef long long (*fill)(long long, long long, long long, long long);
int main(int count, char **names) {
  int slots[8], expected[8] = {-1, -1, -1, 0, 1, 2, -1, -1};
  long long hashes[3] = {3 << 20, 3 << 20, 5 << 20};
  void *library = %(open)s;
  fill function = library ? (fill)%(find)s : 0;
  memset(slots, 255, sizeof slots);
  if (!function || function((long long)slots, 7, (long long)hashes, 3)) return 1;
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
    for target in targets:
        _wheel(ROOT, out, KINETO_AUGMENT_TARGET=target)
        (wheel,) = out.glob(f"*-{TARGETS[target].tag}.whl")
        with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(f"augment/kernels/{library_name(target)}", name))
            inspect(library, target)
            result = smoke(library, target)
        sys.stdout.write(f"{wheel.name}: {wheel.stat().st_size >> 10} KB; inspected; {result}\n")
    _wheel(ROOT / "server", out)


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
    subprocess.run([*runner, str(program), str(library)], check=True, env={**os.environ, "WINEDEBUG": "-all"})
    return f"a kernel run under {runner[0]}" if runner else "a kernel run"


if __name__ == "__main__":
    main(sys.argv[1:] or list(TARGETS))

"""Lines of Python: what recorders write of a call stack, and which of its frames is the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from msgspec import Struct

from augment.core.text import LONGEST_NAME, short

#: what a program calls to run others, or that is below its own code: no place to change anything
_BELOW = frozenset((
    "torch", "functorch", "triton", "numpy", "asyncio", "collections", "concurrent", "contextlib", "copy", "ctypes",
    "dataclasses", "enum", "functools", "importlib", "inspect", "json", "logging", "multiprocessing", "os",
    "pickle", "queue", "random", "re", "runpy", "selectors", "socketserver", "threading", "tqdm", "typing",
    "unittest", "warnings", "weakref",
))  # fmt: skip
_PARTS = re.compile(
    r"(?:^|/)triton/(?:backends|compiler|runtime)/|(?:^|/)torch/(?:_|nn/|autograd/|utils/|optim/|cuda/|distributed/|fx/|profiler/|library|functional|jit/|amp/|overrides)"
)
_OF_PYTHON = re.compile(r"/lib/python\d[.\d]*/(?!(?:site|dist)-packages/)")
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_FUNCTION = re.compile(r"(.{1,4096})\((\d{1,9})\): (.+)", re.DOTALL)
_FRAME = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9})\b(?:, in ([^\n]{1,999}))?')
NOT_USERS, INSTALLED, USERS = range(3)
MOST_LINES = 6  #: that a label lists
_MOST_ALIKE = 1000  #: files of one name that are compared with each other


class CodeLine(Struct, frozen=True, order=True):
    """A line of a file. ``is_start``: it is only known in which function, which begins at this line."""

    file: str
    line: int
    function: str = ""
    is_start: bool = False

    @property
    def folder(self) -> str:
        """The folder of the file, with a slash; empty if it is not known."""
        return "/".join([*self.file.replace("\\", "/").split("/")[-2:-1], ""])


@cache
def owner(file: str) -> int:
    """Whose a file is: :data:`USERS`, of an :data:`INSTALLED` package, or :data:`NOT_USERS`: of Python, PyTorch, its
    compiler, or what runs programs."""
    path = file.replace("\\", "/")
    installed = _INSTALLED.search(path)
    below = path[installed.end() :] if installed else path
    top = below.lstrip("./").partition("/")[0].removesuffix(".py")
    generated = path.startswith("<") or "/torchinductor_" in path or (path.startswith("/") and _OF_PYTHON.search(path))
    if generated or (top in _BELOW and (installed or not path.startswith("/"))) or _PARTS.search(path):
        return NOT_USERS
    return INSTALLED if installed else USERS


def function_line(name: str) -> CodeLine | None:
    """The line in the name of a Python function as PyTorch's profiler records it: ``model.py(217): forward``."""
    match = _FUNCTION.fullmatch(name) if "): " in name else None  # of most names, this is known at once
    return CodeLine(match[1], int(match[2]), match[3], is_start=True) if match else None


def shown_frame(name: str) -> str:
    """A name that fits a sentence; of a frame that does not, the file with a single folder."""
    line = function_line(name) if len(name) > LONGEST_NAME else None
    return short(name if line is None else f"{line.folder}{line.file.rpartition('/')[2]}({line.line}): {line.function}")


def innermost_line(stack: str) -> CodeLine | None:
    """The innermost frame of the user's own in a stack as Python prints it, outermost first; else that of an installed
    package; None without either."""
    lines = [CodeLine(match[1], int(match[2]), match[3] or "") for match in _FRAME.finditer(stack)]
    best = max((owner(line.file) for line in lines), default=NOT_USERS)
    return None if best == NOT_USERS else next(line for line in reversed(lines) if owner(line.file) == best)


def lines_of(stacks: Iterable[object]) -> tuple[CodeLine, ...]:
    """The distinct lines of several stacks, ascending."""
    lines = {line for stack in stacks if isinstance(stack, str) and (line := innermost_line(stack))}
    return tuple(sorted(lines))


def labels(sites: Sequence[Sequence[CodeLine]]) -> list[str]:
    """What each site is called: ``model.py:217``; of several lines ``model.py:79, 81``. As much of a path is given as
    tells files of one name apart; a path that ends another is the same file."""
    # For each path its shortest end that no other file among them has
    paths = {line.file.replace("\\", "/") for site in sites for line in site}
    of_name: dict[str, dict[str, list[str]]] = {}
    for path in sorted(paths):
        parts = [part for part in path.split("/") if part not in ("", ".")] or [path]
        of_name.setdefault(parts[-1], {})[path] = parts
    short: dict[str, str] = {}
    for alike in of_name.values():
        few = sorted(alike.values(), key=len) if len(alike) < _MOST_ALIKE else []  # else each is a file of its own
        whole = [
            tuple(([parts] + [each for each in few if each[-len(parts) :] == parts])[-1]) for parts in alike.values()
        ]
        count = len(set(whole))
        longest = max(map(len, whole))
        depth = next(last for last in range(1, 1 + longest) if len({parts[-last:] for parts in whole}) == count)
        short |= {path: "/".join(parts[-depth:]) for path, parts in zip(alike, whole, strict=True)}
    texts = []
    for site in sites:
        of_file: dict[str, list[int]] = {}
        for line in site[:MOST_LINES]:
            numbers = of_file.setdefault(short[line.file.replace("\\", "/")], [])
            if line.line not in numbers:
                numbers.append(line.line)
        text = "; ".join(f"{name}:{', '.join(map(str, numbers))}" for name, numbers in of_file.items())
        texts.append(text + (f" and {len(site) - MOST_LINES} more" if len(site) > MOST_LINES else ""))
    return texts


def label(line: CodeLine | None) -> str | None:
    """What a single line is called; None for none."""
    return labels([[line]])[0] if line else None

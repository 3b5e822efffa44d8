"""Recognises files that are not traces, by their first bytes or their name, and advises what to do with them."""

from __future__ import annotations

import re
from collections.abc import Callable

Told = Callable[[str, bytes], bool]  #: takes a path and the first bytes of its text

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT = (b"device_traces", b"segment_type", b"allocator_settings")


def _begins(*starts: bytes) -> Told:
    return lambda _path, head: head.startswith(starts)


def _is_page(_path: str, head: bytes) -> bool:
    return (
        head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml"))
    )


def _is_snapshot(_path: str, head: bytes) -> bool:
    return bool(_PICKLE.match(head)) and any(word in head for word in _SNAPSHOT)


def _ends(*suffixes: str) -> Told:
    return lambda path, _head: path.lower().endswith(suffixes)


def _is_rocprof(_path: str, head: bytes) -> bool:
    return head.startswith((b'"Index","KernelName"', b"Index,KernelName", b'"Kind","Agent_Id"', b"Kind,Agent_Id"))


#: what a file is, and what to do with it; the first match counts
KINDS: tuple[tuple[Told, str, str], ...] = (
    (
        _begins(b"version https://git-lfs"),
        "a pointer of Git LFS, not the file itself",
        "run git lfs pull in its repository",
    ),
    (_is_page, "a web page (HTML), not a trace", "download the raw file; a login may be missing"),
    (
        _begins(b"SQLite format 3\0"),
        "an SQLite database, as nsys export writes",
        "augment reads torch.profiler's traces",
    ),
    (
        _ends(".nsys-rep", ".qdrep", ".ncu-rep"),
        "a report of NVIDIA Nsight",
        "augment reads torch.profiler's traces; record with torch.profiler, or open it in Nsight",
    ),
    (_is_snapshot, "a CUDA memory snapshot (pickle)", "open it at https://pytorch.org/memory_viz"),
    (
        _ends(".xplane.pb"),
        "an XPlane of JAX or TensorFlow",
        "name the *.trace.json.gz beside it",
    ),
    (_is_rocprof, "a table of rocprof (CSV)", "record with torch.profiler, or with rocprofv2 --plugin perfetto"),
    (
        lambda _path, head: bool(_PICKLE.match(head)),
        "a Python pickle, such as a checkpoint or a snapshot",
        "export the trace with prof.export_chrome_trace(); pickles are never loaded, as they can run code",
    ),
)


def described(path: str, head: bytes) -> str | None:
    """What the file at ``path`` with the text ``head`` is, and what to do with it; None if unknown."""
    return next((f"{kind}: {advice}" for fits, kind, advice in KINDS if fits(path, head)), None)


def of_archive(names: list[str]) -> str | None:
    """What a zip with these files is; None if unknown."""
    if any(name.endswith(("data.pkl", "/version")) for name in names):
        return "a checkpoint of torch.save (.pt), not a trace: export the trace with prof.export_chrome_trace()"
    return None

"""A gzip file to write to, by the fastest library at hand, the same bytes each time."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path
from typing import Any, BinaryIO


def open_gzip(path: Path) -> tuple[Any, BinaryIO]:
    """The compressing file and the one beneath it: close both, in this order."""
    raw = path.open("wb")
    for module, name, level in (("zlib_ng.gzip_ng", "GzipNGFile", 6), ("isal.igzip", "IGzipFile", 3)):
        try:
            maker = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        return maker(filename="", mode="wb", compresslevel=level, fileobj=raw, mtime=0), raw
    return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0), raw

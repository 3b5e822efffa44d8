"""Which part of a file a GET or HEAD asks for, by ``Range``, ``If-Range`` and ``If-None-Match`` (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """Bytes of a file: the status of the response, its headers, and ``count`` bytes from byte ``first`` on."""

    status: int
    first: int
    count: int
    headers: Mapping[str, str]


def part_of(verb: str, asked: Mapping[str, str], size: int, sha256: str) -> Part:
    """The part that a request asks for. A status of 416 has no bytes: the file ends before the range.

    Several ranges, and units other than bytes, are answered by the whole file, as the RFC allows.

    Args:
        verb: ``GET`` or ``HEAD``.
        asked: the headers of the request, by name in any case.
        size: of the file, bytes.
        sha256: of its content; the file's ETag.
    """
    tag = f'"{sha256}"'
    same = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    known = [name.strip().removeprefix("W/") for name in asked.get("If-None-Match", "").split(",")]
    if tag in known or known == ["*"]:
        return Part(304, 0, 0, same)
    whole = Part(200, 0, 0 if verb == "HEAD" else size, {**same, "Content-Length": str(size)})
    match = _RANGE.fullmatch(asked.get("Range", ""))
    begin, end = match.groups() if match else ("", "")
    if not (begin or end) or (begin and end and int(end) < int(begin)) or asked.get("If-Range", tag) != tag:
        return whole
    first = int(begin) if begin else max(0, size - int(end))
    last = min(int(end), size - 1) if begin and end else size - 1
    if first > last:
        return Part(416, 0, 0, {"Content-Range": f"bytes */{size}"})
    count = last - first + 1
    headers = {**same, "Content-Length": str(count), "Content-Range": f"bytes {first}-{last}/{size}"}
    return Part(206, first, 0 if verb == "HEAD" else count, headers)

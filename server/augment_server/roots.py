"""Files of the server as inputs: only below the operator's folders, safe against links and races."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from augment_server.errors import Refusal


def path_of(uri: str) -> str:
    """The absolute path in a client's URI.

    Raises:
        Refusal: it is not an absolute path or a file URI.
    """
    path = uri
    if uri.startswith("file:"):
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise Refusal("INVALID_REQUEST", "uri: must be file:///PATH or an absolute path")
        path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        raise Refusal("INVALID_REQUEST", "uri: must be file:///PATH or an absolute path on the server")
    return path


def resolve(uri: str, roots: Sequence[str]) -> tuple[str, str]:
    """The root among ``roots`` that contains a file, and the path below it; both with links resolved.

    Args:
        roots: folders, resolved.

    Raises:
        Refusal: the file is outside the roots or does not exist. The message does not tell which.
    """
    real = os.path.realpath(path_of(uri))
    for root in roots:
        if real.startswith(root.rstrip("/") + "/"):
            return root, os.path.relpath(real, root)
    raise _not_allowed()


def open_below(root: str, relative: str) -> int:
    """The descriptor of the regular file at ``relative`` below ``root``, opened folder by folder, following no link.

    A link that replaces a folder in the meantime is refused, too.

    Raises:
        Refusal: there is no such file.
    """
    *folders, name = relative.split("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for folder in folders:
            try:
                inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=at)
            finally:
                os.close(at)
            at = inner
        try:
            opened = os.open(name, flags | os.O_NONBLOCK, dir_fd=at)
        finally:
            os.close(at)
    except OSError as error:
        raise _not_allowed() from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _not_allowed()
    return opened


def resolved(roots: Sequence[Path]) -> list[str]:
    """The folders with links resolved, for :func:`resolve`."""
    return [os.path.realpath(root) for root in roots]


def _not_allowed() -> Refusal:
    return Refusal(
        "URI_NOT_ALLOWED", "uri: no file that this server may read; its operator names folders with --allow-root"
    )

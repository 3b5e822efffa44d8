"""Every exception that this library raises on purpose.

::

    AugmentError
    ├── UsageError            the request is invalid (exit code 2)
    ├── InputError            the input cannot be read (exit code 3)
    │   ├── UnknownFormat     no reader recognises the input
    │   ├── MalformedTrace    the trace violates its format at a known byte
    │   └── LimitExceeded     the trace is larger than a limit allows
    ├── OutputError           the output cannot be written (exit code 1)
    └── ServiceError          a server cannot be reached or the call failed (exit code 1)

``UsageError`` and ``InputError`` are also ``ValueError``. Any other exception is a bug and propagates.
"""

from __future__ import annotations

from collections.abc import Collection


class AugmentError(Exception):
    """Base of all errors of this library. Its text is one line that says what to do."""

    exit_code = 1


class UsageError(AugmentError, ValueError):
    """An option, analysis or writer does not exist, or an option has an invalid value."""

    exit_code = 2


class InputError(AugmentError, ValueError):
    """The input cannot be read.

    Args:
        path: the file, as the user named it.
        because: what is wrong, and how to mend it.
    """

    exit_code = 3

    def __init__(self, path: str, because: str) -> None:
        super().__init__(f"{path}: {because}")
        self.path = path
        self.because = because

    @classmethod
    def of(cls, path: str, error: OSError) -> InputError:
        """The error for an ``OSError`` at ``path``."""
        if isinstance(error, IsADirectoryError):
            return cls(path, "is a folder; name one trace in it")
        return cls(path, (error.strerror or str(error)).lower())


class UnknownFormat(InputError):
    """No reader recognises the content."""


class MalformedTrace(InputError):
    """The content is a trace but violates its format.

    Args:
        path: the file, as the user named it.
        offset: the byte of the decompressed text where the violation is.
        because: what is wrong there.
    """

    def __init__(self, path: str, offset: int, because: str) -> None:
        super().__init__(path, f"byte {offset}: {because}")
        self.offset = offset


class LimitExceeded(InputError):
    """The content is larger than a limit that the caller set."""


class OutputError(AugmentError):
    """An output cannot be written."""


class ServiceError(AugmentError):
    """A server cannot be reached, denies access, or failed.

    Args:
        message: one line.
        code: the name of the canonical status code, such as ``UNAVAILABLE``; empty where no call failed.
        reason: the server's own error reason, such as ``TOKEN_UNKNOWN``; empty where no server answered.
    """

    def __init__(self, message: str, code: str, reason: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


def expect_known(name: str, known: Collection[str], what: str) -> None:
    """Refuse an unknown name; the message suggests the nearest name, or lists all if none is near.

    Raises:
        UsageError: ``name`` is not in ``known``.
    """
    if name in known:
        return
    if near := nearest(name, known):
        raise UsageError(f"no {what} is called {name!r}; did you mean {near}?")
    names = f"known: {', '.join(known)}" if known else "it has none"
    raise UsageError(f"no {what} is called {name!r} ({names})")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Of ``known`` the name that ``name`` most likely stands for: its beginning, its spelling, a part of it, or the
    spelling of its beginning."""
    from difflib import get_close_matches

    begins = [each for each in known if name and each.startswith(name)]
    near = begins[:1] or get_close_matches(name, known, 1) or [each for each in known if name and name in each][:1]
    if not near and len(name) > 2:
        beginnings = {each[: len(name)]: each for each in reversed(list(known))}
        near = [beginnings[each] for each in get_close_matches(name, beginnings, 1, 0.7)]
    return near[0] if near else None


def unabridged(name: str, known: Collection[str]) -> str:
    """The only one of ``known`` that begins with ``name``; ``name`` itself if it is known, or not the beginning of
    exactly one."""
    begins = [each for each in known if name and each.startswith(name)]
    return begins[0] if name not in known and len(begins) == 1 else name


def expect_regular(path: str) -> None:
    """Refuse pipes, sockets and devices: they may block, may never end, and can be read only once. Folders pass.

    Raises:
        InputError: ``path`` is a pipe, a socket or a device.
        OSError: there is no such file.
    """
    import os
    import stat

    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(path, "is not a regular file; a trace is read twice, so save it as a file")

"""Every exception that this library raises on purpose.

::

    AugmentError
    ├── UsageError            what was asked for cannot be asked for (exit code 2)
    ├── InputError            the input cannot be read (exit code 3)
    │   ├── UnknownFormat     not a trace that any reader knows
    │   ├── MalformedTrace    a trace, but broken at a byte that is named
    │   └── LimitExceeded     a trace, but larger than a limit allows
    ├── OutputError           the output cannot be written (exit code 1)
    └── ServiceError          a server cannot be reached, or cannot do it (exit code 1)

``UsageError`` and ``InputError`` are ``ValueError``, too. Any other exception is a bug and propagates.
"""

from __future__ import annotations

from collections.abc import Collection


class AugmentError(Exception):
    """Base of the tree. Its text is one line that a person can act on."""

    exit_code = 1


class UsageError(AugmentError, ValueError):
    """An option, an analysis or a writer that does not exist, or a value it cannot take."""

    exit_code = 2


class InputError(AugmentError, ValueError):
    """The input cannot be read.

    Args:
        path: the file, as the user named it.
        because: what is wrong, and what to do about it.
    """

    exit_code = 3

    def __init__(self, path: str, because: str) -> None:
        super().__init__(f"{path}: {because}")
        self.path = path
        self.because = because

    @classmethod
    def of(cls, path: str, error: OSError) -> InputError:
        """What the system says about ``path``."""
        if isinstance(error, IsADirectoryError):
            return cls(path, "is a folder; name one trace in it")
        return cls(path, (error.strerror or str(error)).lower())


class UnknownFormat(InputError):
    """No reader recognises the content."""


class MalformedTrace(InputError):
    """The content is a trace but breaks its own format.

    Args:
        path: the file, as the user named it.
        offset: the byte of the decompressed text where it breaks.
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
    """A server cannot be reached, does not let us in, or failed.

    Args:
        message: one line.
        code: the canonical code's name, such as ``UNAVAILABLE``; empty where no call failed.
        reason: the server's own, such as ``TOKEN_UNKNOWN``; empty where no server spoke.
    """

    def __init__(self, message: str, code: str, reason: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


def expect_known(name: str, known: Collection[str], what: str) -> None:
    """Refuse a name that is not known, with the nearest and all that are.

    Raises:
        UsageError: ``name`` is not in ``known``.
    """
    if name in known:
        return
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    names = f"known: {', '.join(known)}" if known else "it has none"
    raise UsageError(f"no {what} is called {name!r}{meant} ({names})")


def expect_regular(path: str) -> None:
    """Refuse what may block for ever, or never end, and can be read but once; folders are for others to refuse.

    Raises:
        InputError: ``path`` is a pipe, a socket or a device.
        OSError: there is no such file.
    """
    import os
    import stat

    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(path, "is no regular file, and a trace is read twice; save it as a file")

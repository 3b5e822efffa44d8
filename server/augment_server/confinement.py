"""Confines a process to writing below one folder, by Landlock, where the kernel has it (Linux 5.13 and later).

The process and its children then cannot write, make, rename or remove anything elsewhere, whatever code they run;
since Linux 6.7 they cannot use TCP, and since 6.12 send no signal to other processes. The numbers are those of
``linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_VERSION = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The version of the kernel's Landlock; 0 without it."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(_CREATE_RULESET, None, 0, _VERSION))


def confine(folder: Path) -> bool:
    """Let this thread, and those it starts later, write below ``folder`` and to ``/dev/null`` alone.

    Returns:
        False, with nothing changed, where the kernel has no Landlock.

    Raises:
        OSError: the kernel has it, and refuses.
    """
    known = version()
    if not known:
        return False
    access = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    rules = _Ruleset(access, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = _expect(_call(_CREATE_RULESET, ctypes.byref(rules), size, 0))
    try:
        for path, allowed in ((folder, access), (Path(os.devnull), access & (_WRITE_FILE | _TRUNCATE))):
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                _expect(_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, parent)), 0))
            finally:
                os.close(parent)
        _expect(ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _expect(_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def _expect(returned: int) -> int:
    if returned < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return returned

"""Confines a process on Linux: to files below a few folders, by Landlock, and to work of its own, by seccomp.

With Landlock (Linux 5.13 and later; its numbers are those of ``linux/landlock.h``) it cannot write, make, rename or
remove anything but below one folder, and read nothing but there and in places that are named, whatever code it runs;
since Linux 6.2 it cannot truncate, since 6.7 not bind or connect TCP, since 6.10 not control devices. Names, sizes and
times of files it can see. The rights of root (capabilities) it gives up.

With seccomp (on x86-64 and ARM64) it starts no process and no program, signals none, opens no socket, changes neither
limits nor priorities of other processes, nor modes, owners, times, flags or attributes of any file, locks none, has no
memory that outlives it or its mappings, which are what is counted, takes nothing of which a user has only so much
(descriptors that threads do not share, epoll, inotify), and ends with the thread that has started it. Of prctl, fcntl
and ioctl it may what Python needs.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import platform
import signal
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_VERSION = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER, _IOCTL_DEVICE = 1 << 13, 1 << 15
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
_SET_DEATH_SIGNAL, _SET_SECCOMP, _FILTER = 1, 22, 2
_THREAD = 0x10000 | 0x400  # CLONE_THREAD, CLONE_FILES: of a thread that has the descriptors of the others
_SHARED_MEMORY = 0x1 | 0x20  # MAP_SHARED, MAP_ANONYMOUS: what was touched stays when all but a page is unmapped
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # of classic BPF
_ALLOW, _REFUSE, _MISSING = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
_NUMBER, _MACHINE, _ARGUMENT, _SECOND_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 40  # offsets in struct seccomp_data
#: machine → its AUDIT_ARCH; its numbers of clone, mmap, prctl, prlimit64, tgkill, fcntl and ioctl; what is refused:
#: fork, vfork, execve, execveat, ptrace, process_vm_writev, unshare, setns, socket, socketpair, flock, io_uring_setup,
#: kill and its like, the priorities of processes, setuid and setgid in all forms; chmod, chown, utime and setxattr in
#: all forms; shmget, msgget, semget, memfd_create, add_key, request_key, keyctl, userfaultfd, sched_setaffinity,
#: perf_event_open and timer_create, whose signal could wake a process that is stopped; what changes System V memory,
#: semaphores and queues, and POSIX queues, by their numbers or names; pipes and what puts memory into them (vmsplice,
#: splice, tee, sendfile), memfd_secret, epoll_create, inotify_init, fanotify_init, io_setup, bpf, seccomp, Landlock's,
#: close_range, which can part descriptors, pidfd_getfd and process_vm_readv
_CALLS = {
    "x86_64": (
        0xC000003E,
        (56, 9, 157, 302, 234, 72, 16),
        (57, 58, 59, 322, 101, 311, 272, 308, 41, 53, 73, 425, 62, 200, 129, 297, 424, 141, 142, 144, 314, 251),
        (105, 106, 113, 114, 117, 119, 122, 123),
        (90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199, 463, 466, 469),
        (29, 68, 64, 319, 248, 249, 250, 323, 203, 298, 222),
        (30, 31, 65, 66, 220, 69, 70, 71, 240, 241),
        (22, 293, 278, 275, 276, 40, 447, 213, 291, 253, 294, 300, 206, 321, 317, 444, 445, 446, 436, 438, 310),
    ),
    "aarch64": (
        0xC00000B7,
        (220, 222, 167, 261, 131, 25, 29),
        (221, 281, 117, 271, 97, 268, 198, 199, 32, 425, 129, 130, 138, 240, 424, 140, 118, 119, 274, 30),
        (143, 144, 145, 146, 147, 149, 151, 152),
        (52, 53, 452, 54, 55, 88, 5, 6, 7, 14, 15, 16, 463, 466, 469),
        (194, 186, 190, 279, 217, 218, 219, 282, 122, 241, 107),
        (196, 195, 193, 191, 192, 189, 188, 187, 180, 181),
        (59, 75, 76, 77, 71, 447, 20, 26, 262, 0, 280, 277, 444, 445, 446, 436, 438, 270),
    ),
}
_CLONE3, _OF_X32 = 435, 0x40000000
#: what prctl may do: read the death signal and capabilities, name threads and memory, give up rights; what fcntl may:
#: copy descriptors, their flags, the sizes of pipes; what ioctl may: say whether a file is a terminal, of which size,
#: and how much there is to read, let reads wait or not, and close files at exec
_PROCESS = (2, 3, 15, 16, 21, 23, 38, 0x53564D41)
_DESCRIPTOR = (0, 1, 2, 3, 4, 1030, 1031, 1032)
_TERMINAL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def renounce() -> None:
    """Give up the rights that this thread, and those it starts later, have as root (capabilities), for good.

    Raises:
        OSError: the kernel refuses.
    """
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        _expect(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _expect(libc.capset(struct.pack("=Ii", _CAPABILITIES, 0), bytes(24)))  # effective, permitted, inheritable: none


def version() -> int:
    """The version of the kernel's Landlock; 0 without it."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(_CREATE_RULESET, None, 0, _VERSION))


def confine(folder: Path, readable: Iterable[str] = ("/",)) -> bool:
    """Let this thread, and those it starts later, write below ``folder`` and to ``/dev/null`` alone, and read only
    there, and below ``readable``: files and folders, of which those that there are stay open, so that they are not
    unmounted or, in ``/proc``, made anew, whereupon they would be others.

    Returns:
        False, with nothing changed, where the kernel has no Landlock.

    Raises:
        OSError: the kernel has it, and refuses.
    """
    known = version()
    if not known:
        return False
    writing = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    writing |= _IOCTL_DEVICE if known >= 5 else 0
    reading = _READ_FILE | _READ_FOLDER
    rules = _Ruleset(writing | reading, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = _expect(_call(_CREATE_RULESET, ctypes.byref(rules), size, 0))
    try:
        null = writing & (_WRITE_FILE | _TRUNCATE) | _READ_FILE
        for path, allowed in ((str(folder), rules.fs), (os.devnull, null), *((path, reading) for path in readable)):
            try:
                parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # there is none, which nobody can read
                continue
            if not stat.S_ISDIR(os.fstat(parent).st_mode):
                allowed &= ~(_READ_FOLDER | _REMOVE_AND_MAKE | _REFER)
            _expect(_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, parent)), 0))
        _expect(ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _expect(_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def seclude() -> bool:
    """Let this thread, and those it starts later, start no process and open no socket, and end with its parent.

    Returns:
        False on other systems and machines, and kernels without seccomp.

    Raises:
        OSError: the kernel refuses.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in _CALLS or sys.maxsize < 2**32:
        return False
    machine, (clone, mmap, prctl, prlimit, tgkill, fcntl, ioctl), *refused = _CALLS[platform.machine()]
    lines = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OF_X32),
        (_RETURN, 0, 0, _REFUSE),
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _MISSING),  # libraries then use clone, whose flags can be looked at
    ]
    for call, argument, flags, (those, others) in (
        (clone, _ARGUMENT, _THREAD, (_ALLOW, _REFUSE)),
        (mmap, _FOURTH_ARGUMENT, _SHARED_MEMORY, (_REFUSE, _ALLOW)),
    ):
        lines += [(_EQUAL, 0, 5, call), (_LOAD, 0, 0, argument), (_AND, 0, 0, flags), (_EQUAL, 0, 1, flags)]
        lines += [(_RETURN, 0, 0, those), (_RETURN, 0, 0, others)]
    for call, itself in ((prlimit, 0), (tgkill, os.getpid())):
        lines += [(_EQUAL, 0, 4, call), (_LOAD, 0, 0, _ARGUMENT), (_EQUAL, 1, 0, itself)]
        lines += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    for call, argument, commands in (
        (prctl, _ARGUMENT, _PROCESS),
        (fcntl, _SECOND_ARGUMENT, _DESCRIPTOR),
        (ioctl, _SECOND_ARGUMENT, _TERMINAL),
    ):
        lines += [(_EQUAL, 0, 2 + 2 * len(commands), call), (_LOAD, 0, 0, argument)]
        for command in commands:
            lines += [(_EQUAL, 0, 1, command), (_RETURN, 0, 0, _ALLOW)]
        lines.append((_RETURN, 0, 0, _REFUSE))
    for number in itertools.chain(*refused):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    control = ctypes.CDLL(None, use_errno=True).prctl
    _expect(control(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    _expect(control(_NO_NEW_PRIVS, 1, 0, 0, 0))
    done = control(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)
    if done < 0 and ctypes.get_errno() == errno.EINVAL:
        return False
    _expect(done)
    return True


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def _expect(returned: int) -> int:
    if returned < 0:
        raise OSError(ctypes.get_errno(), f"confinement: {os.strerror(ctypes.get_errno())}")
    return returned

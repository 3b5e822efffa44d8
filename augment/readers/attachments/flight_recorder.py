"""Dumps of PyTorch's flight recorder: the collectives that each rank has enqueued last, and how far they came.

``TORCH_FR_BUFFER_SIZE`` (or ``TORCH_NCCL_TRACE_BUFFER_SIZE``) records, ``TORCH_NCCL_DUMP_ON_TIMEOUT`` writes one file a
rank, a pickle or JSON, when a collective times out. Versions 1 to 2.10 are read, also those of gloo and of other
backends (FlightRecorder.hpp, FlightRecorderDetail.hpp of PyTorch).
"""

from __future__ import annotations

import io
import os
import pickle
import re
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, ValidationError, convert, field

from augment.core.jsontext import lenient_json
from augment.core.records import DumpedGroup, DumpedOperation, PythonLine, RankDump
from augment.core.text import ranges_text
from augment.errors import InputError, LimitExceeded, UnknownFormat
from augment.readers.containers import CHUNK, open_text
from augment.readers.limits import UNLIMITED, Limits

MOST_BYTES = 1 << 28  #: of a file; a dump of 20,000 collectives with their stacks has some 40 MB
_ALLOWED = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
    pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE,
    pickle.SHORT_BINUNICODE, pickle.BINUNICODE8, pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.TUPLE,
    pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET,
)  # fmt: skip
MOST_VALUES = 10_000_000  #: of all entries; a pickle may name one list a million times
RANK_AT_THE_END = re.compile(r"(\d{1,9})(?:\.(?:json|pickle|pkl|gz|zst))*$")
_POINT_TO_POINT = re.compile(r"(send|recv|isend|irecv)\D*?\d{1,9}\s*(?:->|<-)\s*(\d{1,9})")


def read_dump(path: str | os.PathLike[str], limits: Limits = UNLIMITED) -> RankDump:
    """The dump at ``path``, plain or compressed. Its rank is the number that ends the file's name.

    Raises:
        InputError: the file cannot be read, or its name has no rank.
        UnknownFormat: it is not a dump of the flight recorder.
    """
    path = os.fspath(path)
    return dump_of(_document(path, limits), path)


def dump_of(document: Any, path: str) -> RankDump:
    """The dump in ``document``, as pickle or JSON have it.

    Raises:
        InputError: the file's name has no rank, or its groups lack that rank.
        UnknownFormat: it is not a dump of the flight recorder.
    """
    if not isinstance(document, dict) or not ("entries" in document or "pg_status" in document):
        raise UnknownFormat(path, "not a dump of the flight recorder: it has neither entries nor pg_status")
    match = RANK_AT_THE_END.search(os.path.basename(path))
    if match is None:
        raise InputError(path, "the rank is not in the name of this flight recorder's dump; end the name with it")
    entries = document.get("entries") or ()
    repeated = sum(len(value) for entry in entries if isinstance(entry, dict) for value in entry.values()
                   if isinstance(value, list | dict))  # fmt: skip
    if repeated + len(entries) > MOST_VALUES:
        raise LimitExceeded(path, f"has more than {MOST_VALUES:,} lines of stacks and sizes")
    try:
        written = convert(document, _Written, strict=False)
    except (ValidationError, RecursionError) as error:
        raise UnknownFormat(path, f"not a dump of the flight recorder that augment knows: {error}") from error
    groups = {
        name: DumpedGroup(name, group.desc, tuple(int(number) for number in re.findall(r"\d{1,9}", group.ranks)))
        for name, group in written.pg_config.items()
    }
    progress = {
        int(number): (status.last_enqueued_collective, status.last_completed_collective)
        for number, status in written.pg_status.items()
        if re.fullmatch(r"[0-9]{1,9}", number)
    }
    # an operation of a batch has no state of its own, but that of the entry "coalesced", which has equal numbers
    batches = {_numbers(entry): entry for entry in written.entries if _is_batch(entry)}
    messages = {_numbers(entry) for entry in written.entries if _POINT_TO_POINT.search(entry.profiling_name)}
    operations = [
        _operation(entry, batches.get(_numbers(entry), entry), groups, progress)
        for entry in written.entries
        if not (_is_batch(entry) and (entry.is_p2p or _numbers(entry) in messages))
    ]
    operations.sort(key=lambda operation: operation.created_ns)
    rank = int(match[1])
    listed = [groups[each.group].ranks for each in operations] or [group.ranks for group in groups.values()]
    listed = [ranks for ranks in listed if ranks]
    lacking = [ranks for ranks in listed if rank not in ranks]
    if lacking and (operations or 2 * len(lacking) > len(listed)):  # a writer may list groups of other ranks, too
        whose = f"a group of ranks {ranges_text(sorted({*max(lacking, key=len)}))}"
        raise InputError(path, f"a dump of {whose}, and not of rank {rank}, which its name ends with: is it another's?")
    return RankDump(path, rank, groups, progress, operations)


Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  #: as columns hold it
Shape = Annotated[list[Int], Meta(max_length=64)]  #: PyTorch's tensors have at most 64 dimensions


class _Config(Struct):
    desc: str = ""
    ranks: str = ""


class _Status(Struct):
    last_enqueued_collective: Int = -1
    last_completed_collective: Int = -1


class _DumpedEntry(Struct):
    """An entry as it is written; JSON has 0 where a pickle has None, and no frames."""

    pg_id: Int = 0
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: Int | None = None
    seq_id: Int | None = None  # before version 2
    p2p_seq_id: Int = 0
    profiling_name: str = ""
    time_created_ns: Int = 0
    input_sizes: list[Shape] = field(default_factory=list)
    input_dtypes: list[str] = field(default_factory=list)
    output_sizes: list[Shape] = field(default_factory=list)
    output_dtypes: list[str] = field(default_factory=list)
    state: str = ""
    retired: bool = False
    timeout_ms: Int | None = None
    is_p2p: bool = False
    frames: list[PythonLine] = field(default_factory=list)


class _Written(Struct):
    pg_config: dict[str, _Config] = field(default_factory=dict)
    pg_status: dict[str, _Status] = field(default_factory=dict)
    entries: list[_DumpedEntry] = field(default_factory=list)


def _is_batch(entry: _DumpedEntry) -> bool:
    return entry.profiling_name.rpartition(":")[2] == "coalesced"


def _numbers(entry: _DumpedEntry) -> tuple[str, int | None, int | None, int]:
    return entry.process_group[0], entry.collective_seq_id, entry.seq_id, entry.p2p_seq_id


def _operation(
    entry: _DumpedEntry, state: _DumpedEntry, groups: dict[str, DumpedGroup], progress: dict[int, tuple[int, int]]
) -> DumpedOperation:
    """The operation of an ``entry`` with the state that the entry ``state`` has."""
    name, description = entry.process_group
    if name not in groups:  # gloo calls its group "0", and lists it under ""
        listed = next(
            (group for group in groups.values() if len(groups) == 1 or group.description == description), None
        )
        groups[name] = DumpedGroup(name, description, listed.ranks if listed else ())
    sequence = entry.collective_seq_id if entry.collective_seq_id is not None else (entry.seq_id or 0)
    completed = progress.get(entry.pg_id, (-1, -1))[1]
    kind = entry.profiling_name.rpartition(":")[2]
    operation = DumpedOperation(
        name,
        entry.pg_id,
        sequence,
        kind,
        entry.time_created_ns,
        state.state == "completed" or state.retired or (not entry.is_p2p and sequence <= completed),
        None,
        entry.input_sizes,
        entry.output_sizes,
        (*entry.input_dtypes, *entry.output_dtypes),
        entry.timeout_ms,
        entry.frames,
    )
    if match := _POINT_TO_POINT.search(kind):
        ranks, other = groups[name].ranks, int(match[2])
        operation.kind, operation.sequence = match[1].lstrip("i"), entry.p2p_seq_id
        operation.peer = ranks[other] if other < len(ranks) else other
    return operation


class _Plain(pickle._Unpickler):
    """The standard library's unpickler in Python, whose memory grows with the bytes that it has read; with the opcodes
    that build numbers, texts, lists, tuples and dicts, not with those that call functions.
    """

    dispatch: ClassVar = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _ALLOWED}


def _document(path: str, limits: Limits) -> Any:
    """The value in the pickle or the JSON at ``path``, plain or compressed. Nothing in it is run.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: it is neither, or the pickle holds more than plain values.
        LimitExceeded: it is larger than such files get.
    """
    pieces, size = [], 0
    with open_text(path, limits) as text:
        while piece := text.read(CHUNK):
            pieces.append(bytes(piece))
            size += len(piece)
            if size > MOST_BYTES:
                raise LimitExceeded(path, f"has more than {MOST_BYTES >> 20} MiB of text")
        damage = text.damage
    data = b"".join(pieces)
    if not data.startswith(b"\x80"):
        try:
            return lenient_json(data)
        except ValueError as error:
            raise UnknownFormat(path, damage or "neither a pickle nor JSON") from error
    try:
        return _Plain(io.BytesIO(data)).load()
    except KeyError as error:  # the opcode, or a number of the memo
        raise UnknownFormat(
            path, "a pickle with more than plain values, which is never loaded: it could run code"
        ) from error
    except Exception as error:
        raise UnknownFormat(path, damage or f"a damaged pickle ({type(error).__name__})") from error

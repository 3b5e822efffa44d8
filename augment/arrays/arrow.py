"""Columns as an Arrow stream, without any Arrow library: Arrow's C stream interface in a PyCapsule.

``polars.DataFrame(table)``, ``pyarrow.table(table)`` and DuckDB take any object that has ``__arrow_c_stream__``.
The structures are those of https://arrow.apache.org/docs/format/CStreamInterface.html; a whole table is one batch.

Consumers release what they took by calling the functions in ``kernels/arrow.py``, which mark it. What is marked is
freed at the next export. What is in use when the interpreter ends stays in memory, where consumers may need it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from augment.arrays.types import Int64s
from augment.kernels.arrow import Control
from augment.kernels.native import address, address_of

STREAM = b"arrow_array_stream"  #: the name of the capsule
FORMATS = {"int": b"l", "float": b"g", "bool": b"b", "text": b"U", "texts": b"+L"}
NULLABLE = 2  #: ARROW_FLAG_NULLABLE
_SCHEMA_COPIES = 4  #: how often a consumer may ask for the schema

Columns = Mapping[str, tuple[str, Sequence[Any]]]  #: by name: one of :data:`FORMATS`, and values or None

_ADDRESS = ctypes.c_void_p


class _Schema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", _ADDRESS),
        ("dictionary", _ADDRESS),
        ("release", _ADDRESS),
        ("private_data", _ADDRESS),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", _ADDRESS),
        ("children", _ADDRESS),
        ("dictionary", _ADDRESS),
        ("release", _ADDRESS),
        ("private_data", _ADDRESS),
    )


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", _ADDRESS),
        ("get_next", _ADDRESS),
        ("get_last_error", _ADDRESS),
        ("release", _ADDRESS),
        ("private_data", _ADDRESS),
    )


def stream_of(columns: Columns) -> object:
    """A capsule with the stream of ``columns``, which are equally long. It can be consumed once."""
    _EXPORTS[:] = [export for export in _EXPORTS if export.is_needed()]
    export = _Export(columns)
    _EXPORTS.append(export)
    return export.capsule


class _Export:
    """A stream, all that it can hand out, and the marks of what was released."""

    def __init__(self, columns: Columns) -> None:
        self._kept: list[Any] = []
        nodes = 1 + sum(2 if kind == "texts" else 1 for kind, _ in columns.values())
        self._marks = np.zeros((1 + _SCHEMA_COPIES, nodes), np.int64)
        self._control = Control()
        self._schemas = (_Schema * _SCHEMA_COPIES)()
        for schema, marks in zip(self._schemas, self._marks[1:], strict=True):
            self._describe(schema, b"+s", "", [_field(name, kind) for name, (kind, _) in columns.items()], _each(marks))
        self._array = _Array()
        length = len(next(iter(columns.values()))[1]) if columns else 0
        whole = length, 0, (None,), [_values(*column) for column in columns.values()]
        self._fill(self._array, whole, _each(self._marks[0]))
        self._control.schemas, self._control.schema_count = ctypes.addressof(self._schemas), _SCHEMA_COPIES
        self._control.array = ctypes.addressof(self._array)
        functions = ("get_schema", "get_next", "get_last_error", "release_stream")
        self._stream = _Stream(*(address_of(f"arrow.{name}") for name in functions), address(self._control))
        self.capsule: object = _NEW_CAPSULE(ctypes.addressof(self._stream), STREAM, None)

    def is_needed(self) -> bool:
        """Whether anything that was handed out is in use; a capsule that nobody has any more hands out nothing."""
        if self.references() > _ALONE:
            return True
        control = self._control
        if not self._stream.release and not control.mark:
            return True
        marks = self._marks
        return not (marks[: control.array_given].all() and marks[1 : 1 + control.schemas_given].all())

    def references(self) -> int:
        """How many references to the capsule there are, those of this function among them."""
        return sys.getrefcount(self.capsule)

    def _describe(self, schema: _Schema, form: bytes, name: str, children: Sequence[Any], marks: Any) -> None:
        within, text = (_Schema * len(children))(), name.encode("utf-8", "replace")
        schema.format, schema.name, schema.flags = form, text, NULLABLE
        schema.n_children, schema.children = len(children), self._addresses(within)
        schema.release, schema.private_data = address_of("arrow.release_schema"), next(marks)
        self._kept += [form, text, within]
        for child, (its_form, its_name, its_children) in zip(within, children, strict=True):
            self._describe(child, its_form, its_name, its_children, marks)

    def _fill(self, array: _Array, values: _Values, marks: Any) -> None:
        length, nulls, buffers, children = values
        within = (_Array * len(children))()
        array.length, array.null_count = length, nulls
        places = (_ADDRESS * len(buffers))(*(None if buffer is None else address(buffer) for buffer in buffers))
        array.n_buffers, array.buffers = len(buffers), ctypes.addressof(places)
        array.n_children, array.children = len(children), self._addresses(within)
        array.release, array.private_data = address_of("arrow.release_array"), next(marks)
        self._kept += [buffers, places, within]
        for child, its_values in zip(within, children, strict=True):
            self._fill(child, its_values, marks)

    def _addresses(self, structures: Any) -> int:
        addresses = (_ADDRESS * len(structures))(*map(ctypes.addressof, structures))
        self._kept.append(addresses)
        return ctypes.addressof(addresses)


def _each(marks: Int64s) -> Any:
    """The addresses of the marks."""
    return iter((address(marks) + marks.itemsize * np.arange(len(marks))).tolist())


def _field(name: str, kind: str) -> tuple[bytes, str, Any]:
    return FORMATS[kind], name, [(FORMATS["text"], "item", ())] if kind == "texts" else ()


_Values = tuple[int, int, Sequence[Any], Sequence[Any]]  #: length, number of nulls, buffers, children


def _values(kind: str, values: Sequence[Any]) -> _Values:
    """The column in Arrow's layout."""
    known = np.fromiter((value is not None for value in values), np.bool_, len(values))
    nulls = len(values) - int(known.sum())
    valid = _bits(known) if nulls else None
    if kind == "texts":
        lengths = np.fromiter((len(value or ()) for value in values), np.int64, len(values))
        inner = _values("text", [text for value in values for text in value or ()])
        return len(values), nulls, (valid, _offsets(lengths)), (inner,)
    if kind == "text":
        texts = [b"" if value is None else str(value).encode("utf-8", "replace") for value in values]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        return len(values), nulls, (valid, _offsets(lengths), np.frombuffer(b"".join(texts) or b"\0", np.uint8)), ()
    if kind == "bool":
        return len(values), nulls, (valid, _bits(np.array([bool(value) for value in values], np.bool_))), ()
    content = np.array([0 if value is None else value for value in values], np.int64 if kind == "int" else np.float64)
    return len(values), nulls, (valid, content), ()


def _bits(flags: Any) -> Any:
    return np.packbits(flags, bitorder="little")


def _offsets(lengths: Int64s) -> Int64s:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


_NEW_CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_ALONE = _Export({}).references()  #: of a capsule that nobody else has
_EXPORTS: list[_Export] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_EXPORTS))  # outlives the interpreter

"""The functions of Arrow's C stream interface, for ``arrays/arrow.py``.

Consumers call these functions on any thread, at any time. They are compiled because a Python function cannot run while
an exception is raised, nor after the interpreter has ended, and consumers call ``release`` then, too. A structure is
handed out by copying it. A released structure is marked; the address of its mark is in its ``private_data``.
"""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, record, record_at, store_int

# offsets of members in the structures ArrowSchema, ArrowArray and ArrowArrayStream; private_data follows release
CHILD_COUNT = 32
SCHEMA_CHILDREN, SCHEMA_RELEASE, SCHEMA_SIZE = 40, 56, 72
ARRAY_CHILDREN, ARRAY_RELEASE, ARRAY_SIZE = 48, 64, 80
STREAM_RELEASE, STREAM_PRIVATE = 24, 32
NO_MORE = 22  #: EINVAL


@record
class Control:
    """The private data of a stream."""

    mark: int  #: whether the stream was released
    schemas: int  #: the address of the prepared copies
    schema_count: int
    schemas_given: int
    array: int  #: the address of the only array
    array_given: int


control_at = record_at(Control)


@compiled
def _end(structure: int, release_at: int) -> None:
    store_int(load_int(structure + release_at + 8), 1)
    store_int(structure + release_at, 0)


@compiled
def _end_whole(structure: int, children_at: int, release_at: int) -> None:
    """Release a structure, its children and the items of lists, except children that were moved elsewhere."""
    children = load_int(structure + children_at)
    for i in range(load_int(structure + CHILD_COUNT)):
        child = load_int(children + 8 * i)
        if load_int(child + release_at):
            items = load_int(child + children_at)
            for k in range(load_int(child + CHILD_COUNT)):
                item = load_int(items + 8 * k)
                if load_int(item + release_at):
                    _end(item, release_at)
            _end(child, release_at)
    _end(structure, release_at)


@compiled
def _copy(source: int, target: int, size: int) -> None:
    for i in range(size // 8):
        store_int(target + 8 * i, load_int(source + 8 * i))


@compiled
def release_schema(schema: int) -> int:
    """``ArrowSchema.release``."""
    _end_whole(schema, SCHEMA_CHILDREN, SCHEMA_RELEASE)
    return 0


@compiled
def release_array(array: int) -> int:
    """``ArrowArray.release``."""
    _end_whole(array, ARRAY_CHILDREN, ARRAY_RELEASE)
    return 0


@compiled
def release_stream(stream: int) -> int:
    """``ArrowArrayStream.release``."""
    control_at(load_int(stream + STREAM_PRIVATE)).mark = 1
    store_int(stream + STREAM_RELEASE, 0)
    return 0


@compiled
def get_schema(stream: int, out: int) -> int:
    """``ArrowArrayStream.get_schema``: hands out one of the prepared copies, because each copy is released
    separately.
    """
    control = control_at(load_int(stream + STREAM_PRIVATE))
    if control.schemas_given >= control.schema_count:
        return NO_MORE
    _copy(control.schemas + SCHEMA_SIZE * control.schemas_given, out, SCHEMA_SIZE)
    control.schemas_given += 1
    return 0


@compiled
def get_next(stream: int, out: int) -> int:
    """``ArrowArrayStream.get_next``: hands out the only array, then a released array, which marks the end."""
    control = control_at(load_int(stream + STREAM_PRIVATE))
    if control.array_given:
        store_int(out + ARRAY_RELEASE, 0)
        return 0
    _copy(control.array, out, ARRAY_SIZE)
    control.array_given = 1
    return 0


@compiled
def get_last_error(stream: int) -> int:  # noqa: ARG001 - as Arrow has it
    """``ArrowArrayStream.get_last_error``: there is no text."""
    return 0

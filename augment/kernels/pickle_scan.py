"""The compiled reading of a pickle into a table of its values. Nothing is built or called, whatever the opcodes say.

A value is a *node*: of ``kind``, with a ``value`` and a ``size``. Nodes of lists, tuples and dicts have items (for a
dict its keys and values in turn) in runs: ``value`` is the first run, ``size`` the last, -1 without any. A run has a
start in ``items``, which holds nodes, a count, and the next run.
"""

from __future__ import annotations

from augment.kernels.memory import Column, as_int, compiled

NONE, FALSE, TRUE, INT, FLOAT, TEXT, TUPLE, LIST, DICT = range(9)
SMALL = 3  #: the node of the integer 0; those up to 255 follow. None, False and True come before
FIRST_FREE = SMALL + 256
#: places in ``state``
AT, NODES, RUNS, ITEMS, DEPTH, MARKS, MEMO, TEXTS, NEEDED, STATES = range(10)
#: results: the text ends within an opcode; the pickle ends; an opcode is none of data; it does not fit what precedes;
#: values nest too deeply
MORE, DONE, REFUSED, BROKEN, TOO_DEEP = range(5)
DEEPEST = 64  #: of open marks
_INT64_MAX = (1 << 63) - 1


@compiled
def number_at(text: Column, at: int, width: int, signed: bool) -> int:
    """The little-endian number of up to 8 bytes; one of 8 is always signed."""
    value = 0
    for k in range(width):
        byte = as_int(text[at + k])
        if k == width - 1 and byte >= 128 and (signed or width == 8):
            byte -= 256
        value |= byte << (8 * k)
    return value


@compiled
def add_items(
    node: int, first: int, state: Column, value: Column, size: Column, starts: Column, counts: Column,
    following: Column, items: Column, stack: Column,
) -> int:  # fmt: skip
    """Move what lies on the stack from ``first`` on into ``node``."""
    count = state[DEPTH] - first
    if count > 0:
        last = as_int(size[node])
        if last < 0 or starts[last] + counts[last] != state[ITEMS]:
            run = state[RUNS]
            starts[run] = state[ITEMS]
            counts[run] = 0
            following[run] = -1
            if last < 0:
                value[node] = run
            else:
                following[last] = run
            size[node] = run
            state[RUNS] += 1
            last = run
        for k in range(count):
            items[state[ITEMS] + k] = stack[first + k]
        counts[last] += count
        state[ITEMS] += count
        state[DEPTH] = first
    return 0


@compiled
def scan(
    text: Column, stop: int, state: Column, kind: Column, value: Column, size: Column, starts: Column, counts: Column,
    following: Column, items: Column, stack: Column, marks: Column, memo: Column, texts: Column,
) -> int:  # fmt: skip
    """Read opcodes from ``state[AT]`` up to ``stop``. The caller sees to it that every column has room for as many more
    values as there are bytes, ``items`` also for those on the stack.
    """
    while state[AT] < stop:
        at = state[AT]
        code = as_int(text[at])
        width, body = 0, 0
        # the bytes that belong to the opcode
        if code in (0x4B, 0x71, 0x68, 0x80):  # BININT1, BINPUT, BINGET, PROTO
            width = 1
        elif code == 0x4D:  # BININT2
            width = 2
        elif code in (0x4A, 0x72, 0x6A):  # BININT, LONG_BINPUT, LONG_BINGET
            width = 4
        elif code in (0x47, 0x95):  # BINFLOAT, FRAME
            width = 8
        elif code in (0x8A, 0x8C, 0x43, 0x55):  # LONG1, SHORT_BINUNICODE, SHORT_BINBYTES, SHORT_BINSTRING
            width, body = 1, 1
        elif code in (0x8B, 0x58, 0x42, 0x54):  # LONG4, BINUNICODE, BINBYTES, BINSTRING
            width, body = 4, 1
        elif code in (0x8D, 0x8E):  # BINUNICODE8, BINBYTES8
            width, body = 8, 1
        state[NEEDED] = 1 + width
        if stop - at < state[NEEDED]:
            return MORE
        number = number_at(text, at + 1, width, code == 0x4A)
        if body:
            if number < 0:
                return BROKEN
            body = number
            state[NEEDED] = 1 + width + min(number, 1 << 40)
            if stop - at < state[NEEDED]:
                return MORE
        start = at + 1 + width
        depth = state[DEPTH]
        floor = marks[state[MARKS] - 1] if state[MARKS] > 0 else 0  # what lies below belongs to an open container
        pushed = -1
        if code == 0x68 or code == 0x6A:  # BINGET, LONG_BINGET
            if number < 0 or number >= state[MEMO]:
                return BROKEN
            pushed = memo[number]
        elif code == 0x94 or code == 0x71 or code == 0x72:  # MEMOIZE, BINPUT, LONG_BINPUT
            where = state[MEMO] if code == 0x94 else number
            if depth <= floor or where < 0 or where > state[MEMO]:
                return BROKEN
            memo[where] = stack[depth - 1]
            state[MEMO] = max(state[MEMO], where + 1)
        elif code == 0x4E:  # NONE
            pushed = NONE
        elif code == 0x89:  # NEWFALSE
            pushed = FALSE
        elif code == 0x88:  # NEWTRUE
            pushed = TRUE
        elif code == 0x4B:  # BININT1
            pushed = SMALL + number
        elif code in (0x4D, 0x4A, 0x8A, 0x8B, 0x47, 0x8C, 0x58, 0x8D, 0x43, 0x42, 0x8E, 0x55, 0x54):
            pushed = state[NODES]
            state[NODES] += 1
            size[pushed] = 0
            if code == 0x4D or code == 0x4A:
                kind[pushed] = INT
                value[pushed] = number
            elif code == 0x8A or code == 0x8B:  # a longer integer is none that a snapshot has
                kind[pushed] = INT
                value[pushed] = number_at(text, start, body, True) if body <= 8 else _INT64_MAX
            elif code == 0x47:
                kind[pushed] = FLOAT
                bits = as_int(text[at + 1])
                if bits >= 128:
                    bits -= 256
                for k in range(7):
                    bits = (bits << 8) | as_int(text[at + 2 + k])
                value[pushed] = bits
            else:
                kind[pushed] = TEXT
                value[pushed] = state[TEXTS]
                size[pushed] = body
                for k in range(body):
                    texts[state[TEXTS] + k] = text[start + k]
                state[TEXTS] += body
        elif code in (0x5D, 0x7D, 0x29):  # EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
            pushed = state[NODES]
            state[NODES] += 1
            kind[pushed] = LIST if code == 0x5D else DICT if code == 0x7D else TUPLE
            value[pushed] = -1
            size[pushed] = -1
        elif code == 0x28:  # MARK
            if state[MARKS] >= DEEPEST:
                return TOO_DEEP
            marks[state[MARKS]] = depth
            state[MARKS] += 1
        elif code in (0x85, 0x86, 0x87, 0x74):  # TUPLE1, TUPLE2, TUPLE3, TUPLE
            first = depth - (code - 0x84)
            if code == 0x74:
                if state[MARKS] == 0:
                    return BROKEN
                state[MARKS] -= 1
                first = floor
            elif first < floor:
                return BROKEN
            pushed = state[NODES]
            state[NODES] += 1
            kind[pushed] = TUPLE
            value[pushed] = -1
            size[pushed] = -1
            add_items(pushed, first, state, value, size, starts, counts, following, items, stack)
        elif code in (0x61, 0x65, 0x73, 0x75):  # APPEND, APPENDS, SETITEM, SETITEMS
            first = depth - 1 if code == 0x61 else depth - 2
            if code == 0x65 or code == 0x75:
                if state[MARKS] == 0:
                    return BROKEN
                state[MARKS] -= 1
                first = floor
                floor = marks[state[MARKS] - 1] if state[MARKS] > 0 else 0
            is_dict = code == 0x73 or code == 0x75
            if (
                first <= floor
                or kind[stack[first - 1]] != (DICT if is_dict else LIST)
                or (is_dict and (depth - first) % 2)
            ):
                return BROKEN
            add_items(stack[first - 1], first, state, value, size, starts, counts, following, items, stack)
        elif code == 0x30:  # POP
            if depth <= floor:
                return BROKEN
            state[DEPTH] -= 1
        elif code == 0x80:  # PROTO
            if number < 2 or number > 5:
                return REFUSED
        elif code == 0x2E:  # STOP
            return DONE if depth == 1 and state[MARKS] == 0 else BROKEN
        elif code != 0x95:
            return REFUSED
        if pushed >= 0:
            stack[state[DEPTH]] = pushed
            state[DEPTH] += 1
        state[AT] = start + body
    state[NEEDED] = 1
    return MORE

"""The catalogue of kernels: the functions of this package that Python calls, and the types of their arguments.

An argument is an ``int64``, which may be an address, or a column: a contiguous array, written as ``int32[]``.
"""

from __future__ import annotations

INT, INTS, INT32S, BYTES = "int64", "int64[]", "int32[]", "uint8[]"

_FOLLOW = (
    INT32S, BYTES, INT32S, INT32S, INTS, INT32S, INTS, INT32S, INT, INTS, INT32S, INTS, INTS,
    BYTES, BYTES, INTS, BYTES, INT, INTS, INT32S, INT32S, INTS, INTS, BYTES, BYTES, INT32S, BYTES,
    INTS, INTS, INTS, BYTES, INT32S, INTS, INT32S, INT32S, INTS, INTS, INT32S, INT32S, INTS, INTS,
)  # fmt: skip
_WITHOUT = (
    INT32S, INT, INTS, INT32S, INT32S, INTS, INTS, INTS, INT32S, INTS, BYTES, INT32S, BYTES,
    INTS, INTS, INTS, INT32S, INT32S, INTS, INTS, INT32S, INT32S, INTS,
)  # fmt: skip

KERNELS: dict[str, tuple[str, ...]] = {
    "arg_columns.scan_columns": 8 * (INT,),
    "arrow.get_last_error": (INT,),
    "arrow.get_next": 2 * (INT,),
    "arrow.get_schema": 2 * (INT,),
    "arrow.release_array": (INT,),
    "arrow.release_schema": (INT,),
    "arrow.release_stream": (INT,),
    "call_stacks.nest": (INTS, INTS, INT32S, INT32S, INT32S, INT32S),
    "critical_loops.bind": (INT32S, INTS, INT32S, INT32S, INT32S),
    "critical_loops.latest": (INT32S, INT32S, INT32S, INT32S, INTS, INTS),
    "critical_loops.saved": (*4 * (INT32S,), *10 * (INTS,)),
    "critical_loops.walk": (INT32S, INT32S, INT32S, INT),
    "critical_path.follow": _FOLLOW,
    "critical_path.outermost": (INTS, INT32S, INTS, INTS, BYTES, INT32S, INT32S),
    "critical_path.without": _WITHOUT,
    "dictionary.fill_slots": 4 * (INT,),
    "enclosing.around": (INTS, INT32S, INTS, INT32S, INTS, INT32S, INT32S),
    "enclosing.of_places": (INTS, INTS, INTS, INT32S, INTS, INT, INT32S, INTS, INT32S),
    "encode_blobs.scan_args": 13 * (INT,),
    "encode_packets.columns_to_args": 6 * (INT,),
    "encode_packets.encode_rows": 13 * (INT,),
    "encode_packets.join_pieces": 4 * (INT,),
    "host_segments.divide": (INTS, INTS, INT32S, INTS, INT32S, INTS, INT32S),
    "joining.longest": (INTS, INTS, INT32S, INTS, INTS),
    "joining.times": (INTS, INTS, INT32S, INTS),
    "json_scan.scan": 6 * (INT,),
    "json_tables.fill_place_slots": 4 * (INT,),
    "lanes.walk": (INTS, INT32S, INTS, INTS, INTS, INT32S, INTS, INTS, *5 * (INT32S,), INTS),
    "match.match": (INTS, INTS, INT32S, INTS, INTS, INT32S, INTS, INTS, INTS, INTS),
    "packet_args.scan_args": 9 * (INT,),
    "packet_scan.scan_packets": 5 * (INT,),
    "replay.play": 13 * (INTS,),
    "render.render_rows": 11 * (INT,),
    "searching.search": (INTS, INTS, INT, INTS),
}

"""The catalogue of kernels: the functions of this package that Python calls, and the types of their arguments.

An argument is an ``int64``, which may be an address; a column, which is a contiguous array, written as ``int32[]``; or
a record, written as ``module.Class``.
"""

from __future__ import annotations

INT, INTS, INT32S, BYTES = "int64", "int64[]", "int32[]", "uint8[]"

_FOLLOW = (
    INT32S, BYTES, INT32S, INT32S, INTS, INT32S, INTS, INT32S, INT, INTS, INT32S, INTS, INTS,
    BYTES, BYTES, INTS, BYTES, INT, "critical_layout.Progress", INT32S, INT32S, INTS, INTS, BYTES, BYTES, INT32S, BYTES,
    INTS, INTS, INTS, BYTES, INT32S, INTS, INT32S, INT32S, INTS, INTS, INT32S, INT32S, INTS, INTS,
)  # fmt: skip
_WITHOUT = (
    INT32S, INT, INTS, INT32S, INT32S, INTS, INTS, INTS, INT32S, INTS, BYTES, INT32S, BYTES,
    INTS, INTS, INTS, INT32S, INT32S, INTS, INTS, INT32S, INT32S, INTS,
)  # fmt: skip
_SCAN_ARGS = (
    INT, INT, INTS, INT32S, INT, INT, INTS, INTS, INT, INTS, INTS, INTS, "known_bytes.Known", "encode_layout.Encoding",
    INT,
)  # fmt: skip

KERNELS: dict[str, tuple[str, ...]] = {
    "arg_columns.scan_columns": (INT, INT, INT, INTS, INT32S, INT, "wanted_args.Wanted"),
    "call_stacks.nest": (INTS, INTS, INT32S, INT32S, INT32S, INT32S),
    "critical_loops.bind": (INT32S, INTS, INT32S, INT32S, INT32S),
    "critical_loops.latest": (INT32S, INT32S, INT32S, INT32S, INTS, INTS),
    "critical_loops.saved": (*4 * (INT32S,), *10 * (INTS,)),
    "critical_loops.walk": (INT32S, INT32S, INT32S, INT),
    "critical_path.follow": _FOLLOW,
    "critical_path.without": _WITHOUT,
    "dictionary.fill_slots": (INT32S, INTS, INT),
    "enclosing.around": (INTS, INT32S, INTS, INT32S, INTS, INT32S, INT32S),
    "enclosing.of_parents": (INT32S, INT32S, INT, INT32S),
    "enclosing.of_places": (INTS, INTS, INTS, INT32S, INTS, INT, INT32S, INTS, INT32S),
    "encode_blobs.scan_args": _SCAN_ARGS,
    "encode_packets.columns_to_args": (INT, INT, INT, INTS, INTS),
    "encode_packets.encode_rows": (INT, *5 * (INTS,), INT, INTS, INTS, INT, INT, INTS),
    "encode_packets.join_pieces": (INTS, INTS, INT),
    "host_segments.divide": (INTS, INTS, INT32S, INTS, INT32S, INTS, INT32S),
    "joining.longest": (INTS, INTS, INT32S, INTS, INTS),
    "joining.times": (INTS, INTS, INT32S, INTS),
    "json_scan.scan": (INT, INT, INT, "json_layout.Scan"),
    "json_tables.fill_place_slots": (INT32S, INTS, INT),
    "lanes.walk": (INTS, INT32S, INTS, INTS, INTS, INT32S, INTS, INTS, *5 * (INT32S,), INTS),
    "match.match": (INTS, INTS, INT32S, INTS, INTS, INT32S, INTS, INTS, INTS, INTS),
    "packet_args.scan_args": (INT, INT, INTS, INT32S, BYTES, INTS, INTS, "packet_args_layout.ArgScan"),
    "packet_scan.scan_packets": (INT, INT, INT, "packet_layout.PacketScan"),
    "replay.play": 13 * (INTS,),
    "render.render_rows": (INT, INT, INT, INT, INTS, INTS, INT, INT, INT, INT, INTS),
    "searching.search": (INTS, INTS, INT, INTS),
    "sorting.by_digits": (INTS, INT, INT, INTS, INTS),
}

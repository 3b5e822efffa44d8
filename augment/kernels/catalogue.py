"""The catalogue of kernels: the functions of this package that Python calls, and the types of their arguments.

An argument is an ``int64``, which may be an address; a column, which is a contiguous array, written as ``int32[]``; or
a record, written as ``module.Class``.
"""

from __future__ import annotations

INT, INTS, INT32S, BYTES = "int64", "int64[]", "int32[]", "uint8[]"

_FOLLOW = (
    INT32S, BYTES, INT32S, INT32S, INTS, INT32S, INTS, INT32S, INT, INTS, INT32S, INTS, INTS,
    BYTES, BYTES, INTS, BYTES, INT, "critical.PathProgress", INT32S, INT32S, INTS, INTS, BYTES, BYTES, INT32S, BYTES,
    INTS, INTS, INTS, BYTES, INT32S, INTS, INT32S, INT32S, INTS, INTS, INT32S, INT32S, INTS, INTS,
)  # fmt: skip
_WITHOUT = (
    INT32S, INT, INTS, INT32S, INT32S, INTS, INTS, INTS, INT32S, INTS, BYTES, INT32S, BYTES,
    INTS, INTS, INTS, INT32S, INT32S, INTS, INTS, INT32S, INT32S, INTS,
)  # fmt: skip
_SCAN_ARGS = (
    INT, INT, INTS, INT32S, INT, INT, INTS, INTS, INT, INTS, INTS, INTS, "dictionary.Known", "encode_packets.Encoding",
    INT,
)  # fmt: skip

KERNELS: dict[str, tuple[str, ...]] = {
    "critical.bind": (INT32S, INTS, INT32S, INT32S, INT32S),
    "critical.follow": _FOLLOW,
    "critical.latest": (INT32S, INT32S, INT32S, INT32S, INTS, INTS),
    "critical.play": 13 * (INTS,),
    "critical.saved": (*4 * (INT32S,), *10 * (INTS,)),
    "critical.walk": (INT32S, INT32S, INT32S, INT),
    "critical.without": _WITHOUT,
    "dictionary.fill_slots": (INT32S, INTS, INT),
    "encode_blobs.scan_args": _SCAN_ARGS,
    "encode_packets.columns_to_args": (INT, INT, INT, INTS, INTS),
    "encode_packets.encode_rows": (INT, *5 * (INTS,), INT, INTS, INTS, INT, INT, INTS),
    "encode_packets.join_pieces": (INTS, INTS, INT),
    "json_args.scan_columns": (INT, INT, INT, INTS, INT32S, INT, "wanted_args.Wanted"),
    "json_scan.fill_place_slots": (INT32S, INTS, INT),
    "json_scan.scan": (INT, INT, INT, "json_layout.Scan"),
    "nesting.around": (INTS, INT32S, INTS, INT32S, INTS, INT32S, INT32S),
    "nesting.assign_lanes": (INTS, INT32S, INTS, INTS, INTS, INT32S, INTS, INTS, *5 * (INT32S,), INTS),
    "nesting.divide": (INTS, INTS, INT32S, INTS, INT32S, INTS, INT32S),
    "nesting.match": (INTS, INTS, INT32S, INTS, INTS, INT32S, INTS, INTS, INTS, INTS),
    "nesting.nest": (INTS, INTS, INT32S, INT32S, INT32S, INT32S),
    "nesting.of_parents": (INT32S, INT32S, INT, INT32S),
    "nesting.of_places": (INTS, INTS, INTS, INT32S, INTS, INT, INT32S, INTS, INT32S),
    "packet_args.scan_args": (INT, INT, INTS, INT32S, BYTES, INTS, INTS, "packet_args.ArgScanState"),
    "packet_scan.scan_packets": (INT, INT, INT, "packet_layout.PacketScan"),
    "pickle_scan.scan": (
        BYTES,
        INT,
        INTS,
        BYTES,
        INTS,
        INT32S,
        INTS,
        INTS,
        INT32S,
        INT32S,
        INT32S,
        INTS,
        INT32S,
        BYTES,
    ),
    "sorted_columns.by_digits": (INTS, INT, INT, INTS, INTS),
    "sorted_columns.longest": (INTS, INTS, INT32S, INTS, INTS),
    "sorted_columns.search": (INTS, INTS, INT, INTS),
    "sorted_columns.times": (INTS, INTS, INT32S, INTS),
    "text_rows.render_rows": (INT, INT, INT, INT, INTS, INTS, INT, INT, INT, INT, INTS),
}

"""Every kernel: the functions of this room that Python calls, and how many int64 arguments each takes."""

from __future__ import annotations

KERNELS: dict[str, int] = {
    "arg_columns.scan_columns": 8,
    "call_stacks.nest": 7,
    "critical_loops.bind": 6,
    "critical_loops.latest": 7,
    "critical_loops.saved": 15,
    "critical_loops.walk": 4,
    "dictionary.fill_slots": 4,
    "encode_args.scan_args": 12,
    "encode_packets.columns_to_args": 6,
    "encode_packets.encode_rows": 13,
    "enclosing.around": 8,
    "host_segments.divide": 8,
    "json_scan.scan": 6,
    "json_tables.fill_place_slots": 4,
    "lanes.walk": 3,
    "match.match": 3,
    "packet_args.scan_args": 9,
    "packet_scan.scan_packets": 5,
    "render.render_rows": 11,
}

"""What packets mean: files made with Perfetto's own classes."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from augment.core.trace import NO_CORRELATION, Category
from augment.readers import read
from perfetto_messages import BEGIN, CLEARED, COUNTER, END, INSTANT, NEEDED, Messages, diagnostic_counts, places, rows


def test_beginnings_and_ends_of_a_track_are_slices_by_their_nesting(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43, "main")
    made.thread(8, 42, 44)
    made.event(BEGIN, 10, 7, "outer", "cpu_op")
    made.event(BEGIN, 15, 8, "other", "cpu_op")
    made.event(BEGIN, 20, 7, "inner", "cpu_op")
    made.event(END, 30, 7)
    made.event(END, 40, 7)
    made.event(END, 50, 8)
    made.event(INSTANT, 25, 7, "moment")
    trace = made.read(tmp_path)
    assert rows(trace) == [
        ("X", 10, 30, "cpu_op", "outer"),
        ("X", 15, 35, "cpu_op", "other"),
        ("X", 20, 10, "cpu_op", "inner"),
        ("i", 25, 0, "", "moment"),
    ]
    assert places(trace)[:2] == [(42, 43, None, None), (42, 44, None, None)]
    assert [track.thread_name for track in trace.tracks] == ["main", None]
    assert trace.source.format == "perfetto"
    assert trace.diagnostics == ()


def test_at_one_time_the_order_of_the_file_decides(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43)
    made.event(BEGIN, 10, 7, "first", "cpu_op")
    made.event(END, 20, 7)
    made.event(BEGIN, 20, 7, "no time", "cpu_op")
    made.event(END, 20, 7)
    made.event(BEGIN, 20, 7, "second", "cpu_op")
    made.event(END, 30, 7)
    trace = made.read(tmp_path)
    assert [(name, dur) for _, _, dur, _, name in rows(trace)] == [("first", 10), ("no time", 0), ("second", 10)]


def test_ends_may_come_before_the_beginnings_in_the_file(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43)
    made.event(END, 20, 7)
    made.event(END, 30, 7)
    made.event(BEGIN, 20, 7, "second", "cpu_op")
    made.event(BEGIN, 10, 7, "first", "cpu_op")
    assert [(name, dur) for _, _, dur, _, name in rows(made.read(tmp_path))] == [("first", 10), ("second", 10)]


def test_a_slice_without_an_end_and_an_end_without_a_slice_are_counted(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43)
    made.event(END, 5, 7)
    made.event(END, 6, 7)
    made.event(BEGIN, 10, 7, "open", "cpu_op")
    made.slice(12, 3, 7, "closed")
    trace = made.read(tmp_path)
    assert rows(trace) == [("B", 10, 0, "cpu_op", "open"), ("X", 12, 3, "cpu_op", "closed")]
    assert diagnostic_counts(trace) == {"end_without_slice": 2, "slice_without_end": 1}


def test_args_are_columns_and_can_be_asked_for(scanner: str, tmp_path: Path) -> None:
    args = {"correlation": 5, "device": 1, "stream": 7, "bytes": 4096, "grid": [1, 2, 3], "deep": {"a": {"b": 0.5}}}
    made = Messages()
    made.thread(7, 42, 43)
    made.slice(10, 5, 7, "copy", "gpu_memcpy", **args, null="null", empty="[]", yes=True, dims=[[4], "[]"])
    made.slice(20, 5, 7, "op", "cpu_op")
    trace = made.read(tmp_path)
    assert trace.events.correlation.tolist() == [5, NO_CORRELATION]
    assert trace.events.bytes.at(np.arange(2), -1).tolist() == [4096, -1]
    assert places(trace) == [(42, 43, 1, 7), (42, 43, None, None)]
    expected = [{}, {**args, "null": "null", "empty": "[]", "yes": True, "dims": [[4], "[]"]}]
    assert trace.args_of(np.array([1, 0])) == expected


def test_args_that_nest_too_deeply_are_counted(scanner: str, tmp_path: Path) -> None:
    """64 levels are read; what lies deeper is left out, and a counter says so of each arg."""

    def nested(depth: int, innermost: object = 1) -> object:
        for level in range(depth):
            innermost = {"k": innermost} if (depth - level) % 2 else [innermost]
        return innermost

    made = Messages()
    made.thread(7, 42, 43)
    wide = [nested(3, i) for i in range(200)]
    for ts in range(5):  # without names as texts, so that compiled code takes all but those that nest too deeply
        made.event(INSTANT, ts, 7)
    made.event(INSTANT, 10, 7, most=nested(64), wide=wide, correlation=3, text="x" * 500)
    made.event(INSTANT, 20, 7, deep=nested(65), deeper=[1, nested(70)], bytes=9)
    made.event(INSTANT, 30, 7, stream=4)
    value = made.event(INSTANT, 40, 7).debug_annotations.add(name="old").nested_value
    for _ in range(65):
        value = value.array_values.add()
    trace = made.read(tmp_path)
    assert diagnostic_counts(trace) == {"arg_nested_too_deeply": 3}
    assert [trace.events.correlation[5], trace.events.bytes.at(np.array([6]), 0)[0], len(trace.events)] == [3, 9, 9]
    first, second = trace.args_of(np.array([5, 6]))
    assert first["most"] == nested(64)
    assert first["wide"] == wide
    assert second["deep"] == nested(64, None)


def test_devices_and_streams_may_be_texts_or_nothing(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43)
    made.slice(10, 5, 7, "a", "kernel", device="TPU", stream=[])
    made.slice(20, 5, 7, "b", "kernel", device=0, stream=2.0, correlation="17")
    trace = made.read(tmp_path)
    assert places(trace) == [(42, 43, "TPU", None), (42, 43, 0, 2)]
    assert trace.events.correlation.tolist() == [NO_CORRELATION, 17]


def test_strings_told_once_hold_until_they_are_cleared(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43)
    for name, key in (("first", "stream"), ("second", "correlation")):
        output = made.packet(sequence_flags=CLEARED)
        output.interned_data.event_names.add(iid=1, name=name)
        output.interned_data.event_categories.add(iid=3, name="kernel")
        output.interned_data.debug_annotation_names.add(iid=2, name=key)
        output.interned_data.debug_annotation_string_values.add(iid=9, str=name.encode())
        output.interned_data.debug_annotation_names.add(iid=5, name="text")
        for ts in (10, 20):
            packet = made.packet(timestamp=ts, sequence_flags=NEEDED)
            packet.track_event.type, packet.track_event.track_uuid, packet.track_event.name_iid = INSTANT, 7, 1
            packet.track_event.category_iids.append(3)
            packet.track_event.debug_annotations.add(name_iid=2, int_value=ts)
            packet.track_event.debug_annotations.add(name_iid=5, string_value_iid=9)
    trace = made.read(tmp_path)
    assert [(name, category) for _, _, _, category, name in rows(trace)] == [
        ("first", "kernel"), ("second", "kernel"), ("first", "kernel"), ("second", "kernel"),
    ]  # fmt: skip
    assert trace.events.correlation.tolist() == [-1, 10, -1, 20]
    assert [each["text"] for each in trace.args_of(np.arange(4))] == ["first", "second", "first", "second"]


def test_sequences_have_strings_of_their_own(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    for sequence in (1, 2):
        made.packet(sequence, sequence_flags=CLEARED).interned_data.event_names.add(iid=1, name=f"of {sequence}")
    for ts in range(10):
        packet = made.packet(1 + ts % 2, timestamp=ts, sequence_flags=NEEDED)
        packet.track_event.type, packet.track_event.name_iid = INSTANT, 1
    assert [row[4] for row in rows(made.read(tmp_path))] == ["of 1", "of 2"] * 5


def test_packets_whose_state_is_lost_are_left_out_and_counted(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    packet = made.packet(timestamp=1, sequence_flags=NEEDED)
    packet.track_event.type = INSTANT
    made.event(INSTANT, 2, name="kept")
    trace = made.read(tmp_path)
    assert [row[4] for row in rows(trace)] == ["kept"]
    assert diagnostic_counts(trace) == {"lost_state": 1}


def test_times_of_incremental_and_of_other_clocks(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    output = made.packet(sequence_flags=CLEARED)
    output.trace_packet_defaults.timestamp_clock_id = 64
    output.trace_packet_defaults.track_event_defaults.track_uuid = 7
    clocks = output.clock_snapshot.clocks
    clocks.add(clock_id=6, timestamp=1_000_000)
    clocks.add(clock_id=64, timestamp=50, is_incremental=True, unit_multiplier_ns=1000)
    clocks.add(clock_id=3, timestamp=400)
    made.thread(7, 42, 43)
    for kind, delta in ((BEGIN, 5), (END, 10), (INSTANT, 2)):
        packet = made.packet(timestamp=delta)
        packet.track_event.type = kind
    packet = made.packet(timestamp=500, timestamp_clock_id=3)
    packet.track_event.type = INSTANT
    packet = made.packet(timestamp=3)
    packet.track_event.type = INSTANT
    trace = made.read(tmp_path)
    assert [(phase, ts, dur) for phase, ts, dur, _, _ in rows(trace)] == [
        ("i", 1_000_100, 0), ("X", 1_005_000, 10_000), ("i", 1_017_000, 0), ("i", 1_020_000, 0),
    ]  # fmt: skip
    assert {place[:2] for place in places(trace)} == {(42, 43)}


def test_a_sequences_clock_that_nothing_tells_of_is_counted(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.packet(timestamp=5, timestamp_clock_id=70).track_event.type = INSTANT
    made.packet(timestamp=5, timestamp_clock_id=3).track_event.type = INSTANT  # known to all: taken as it is
    made.packet().track_event.type = INSTANT
    trace = made.read(tmp_path)
    assert len(trace.events) == 1
    assert diagnostic_counts(trace) == {"packet_without_time": 1, "unknown_clock": 1}


def test_flows_lead_from_event_to_event_in_time(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(7, 42, 43)
    made.slice(50, 10, 7, "kernel", "kernel", device=0, stream=1, correlation=9).terminating_flow_ids.append(77)
    made.slice(10, 10, 7, "launch", "cuda_runtime", correlation=9).flow_ids.append(77)
    made.slice(70, 10, 7, "forward", "cpu_op").flow_ids.append(77)  # the number is used again
    made.slice(90, 10, 7, "backward", "cpu_op").terminating_flow_ids.append(77)
    made.slice(95, 1, 7, "alone", "cpu_op").flow_ids.append(78)
    trace = made.read(tmp_path)
    flows = [(*row[:2], row[3]) for row in rows(trace) if row[0] in "stf"]
    assert flows == [("s", 10, "ac2g"), ("f", 50, "ac2g"), ("s", 70, "fwdbwd"), ("f", 90, "fwdbwd")]
    assert trace.events.flow_id.values.tolist() == [9, 9, 77, 77]
    assert trace.args_of(trace.events.flow_id.rows[:1]) == [{}]


def test_counters_are_named_after_their_tracks(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.track(1).process.pid = 42
    made.track(9, parent_uuid=1, name="memory").counter.unit_name = "bytes"
    made.track(10, parent_uuid=1, name="Queue Length stream 7").counter.categories.append("augment.queue_length")
    made.event(COUNTER, 5, 9).counter_value = 12
    made.event(COUNTER, 6, 9).double_counter_value = 1.5
    made.event(COUNTER, 6, 10).double_counter_value = 3
    trace = made.read(tmp_path)
    assert rows(trace) == [("C", 5, 0, "", "memory"), ("C", 6, 0, "", "memory")]
    assert trace.args_of(np.arange(2)) == [{"value": 12}, {"value": 1.5}]


def test_packets_within_packets(scanner: str, tmp_path: Path) -> None:
    inner = Messages()
    inner.thread(7, 42, 43)
    inner.slice(10, 5, 7, "within", "kernel", device=0, stream=1)
    made = Messages()
    made.packet(compressed_packets=zlib.compress(inner.bytes()))
    made.packet(compressed_packets=b"none")
    trace = made.read(tmp_path)
    assert rows(trace) == [("X", 10, 5, "kernel", "within")]
    assert trace.args_of(np.array([0])) == [{"device": 0, "stream": 1}]
    assert diagnostic_counts(trace) == {"damaged_packet": 1}


def test_packets_within_packets_after_many_others(scanner: str, tmp_path: Path) -> None:
    inner = Messages()
    inner.thread(7, 42, 43)
    inner.slice(10, 5, 7, "within", "kernel", device=0, stream=1)
    inner.packet(compressed_packets=zlib.compress(inner.bytes()))  # not taken: a file could go on like this for ever
    made = Messages()
    for index in range(2_000):
        made.packet(timestamp=index).battery.charge_counter_uah = 5
    made.packet(compressed_packets=zlib.compress(inner.bytes()))
    trace = made.read(tmp_path)
    assert rows(trace) == [("X", 10, 5, "kernel", "within")]
    assert trace.args_of(np.array([0])) == [{}]
    assert diagnostic_counts(trace) == {"compressed_packets": 1}


def test_a_text_that_ends_within_compressed_packets(scanner: str, tmp_path: Path) -> None:
    inner = Messages()
    inner.thread(7, 42, 43)
    for index in range(500):
        inner.slice(10 * index, 5, 7, f"within {index * 7919 % 1000}", "kernel", device=0, stream=1)
    made = Messages()
    made.packet(compressed_packets=zlib.compress(inner.bytes()))
    (tmp_path / "cut.pftrace").write_bytes(made.bytes()[: len(made.bytes()) // 2])
    trace = read(str(tmp_path / "cut.pftrace"))
    assert 50 < len(trace.events) < 500
    assert trace.partial
    assert trace.args_of(np.array([len(trace.events) - 1])) == [{"device": 0, "stream": 1}]


def test_what_is_unknown_is_passed_over(tmp_path: Path) -> None:
    made = Messages()
    made.packet(timestamp=3).battery.charge_counter_uah = 5
    made.event(INSTANT, 4, name="kept").log_message.source_location_iid = 3
    made.event(0, 5, name="of no type")
    data = made.bytes() + b"\x12\x03abc"  # a field beside the packets
    (tmp_path / "t.pftrace").write_bytes(data)
    trace = read(str(tmp_path / "t.pftrace"))
    assert [row[4] for row in rows(trace)] == ["kept"]
    assert diagnostic_counts(trace) == {"unknown_event_type": 1, "unknown_field": 1}


def test_tracks_without_a_description_are_told_apart(tmp_path: Path) -> None:
    made = Messages()
    made.track(1, name="Global")
    made.track(2, name="child", parent_uuid=1)
    made.track(3, name="ring", parent_uuid=3)
    for track in (1, 2, 3, 4):
        made.event(INSTANT, track, track)
    pids = [place[:2] for place in places(made.read(tmp_path))]
    assert len(set(pids)) == 4
    assert pids[1] == ("Global", "child")


def torch_like() -> Messages:
    """As torch/csrc/profiler writes its native export: kernels as render stages, named by interned kernels."""
    made = Messages()
    base = 1_700_000_000_000_000_000
    snapshot = made.packet(timestamp=base).clock_snapshot
    snapshot.clocks.add(clock_id=6, timestamp=base)
    snapshot.clocks.add(clock_id=1, timestamp=base)
    process = made.track(1).process
    process.pid, process.process_name = 42, "python"
    made.thread(2, 42, 43, "main")
    output = made.packet(sequence_flags=CLEARED).interned_data
    for iid, name in ((1, "aten::mm"), (2, "Memcpy HtoD"), (3, "cudaLaunchKernel")):
        output.event_names.add(iid=iid, name=name)
    output.event_categories.add(iid=1, name="cuda_runtime")
    for iid, name in ((1, "Kernel"), (2, "MemoryTransfer"), (3, "MemorySet"), (10, "Stream #7"), (11, "vertex")):
        output.gpu_specifications.add(iid=iid, name=name, category=1 if name == "vertex" else 0)
    output.graphics_contexts.add(iid=1, pid=42)
    kernel = protos.InternedComputeKernel(iid=4, name="_Z4gemm", demangled_name="gemm()").SerializeToString()
    key = protos.InternedComputeArgName(iid=5, name="stream").SerializeToString()
    part = b"".join(
        bytes([*tag, len(content)]) + content for tag, content in (((0xC2, 0x3E), kernel), ((0xCA, 0x3E), key))
    )
    output.MergeFromString(part)
    launch = made.packet(timestamp=base + 5, sequence_flags=NEEDED).track_event
    launch.type, launch.track_uuid, launch.name_iid = BEGIN, 2, 3
    launch.category_iids.append(1)
    launch.MergeFromString(b"\xc2\xbb\x01\x02\x08\x63")  # GpuCorrelation: it launched stage 99
    made.event(END, base + 8, 2)
    for stage, dur, more in (
        (1, 100, {}),
        (2, 10, {"bytes": "4096", "correlation": "12"}),
        (3, 1, {"stream": "8"}),
        (11, 5, {}),
    ):
        event = made.packet(timestamp=base + 10 * stage, sequence_flags=NEEDED).gpu_render_stage_event
        event.event_id, event.duration, event.gpu_id, event.hw_queue_iid, event.stage_iid = 99, dur, 1, 10, stage
        for name, value in more.items():
            event.extra_data.add(name=name, value=value)
        if stage == 1:
            event.kernel_iid = 4
            event.launch.grid_size.x, event.launch.grid_size.y, event.launch.grid_size.z = 8, 2, 1
            event.launch.args.add(name_iid=5, uint_value=7)
        if stage == 2:
            event.name_iid = 2
    return made


def test_render_stages_are_work_of_a_device(tmp_path: Path) -> None:
    trace = torch_like().read(tmp_path)
    base = 1_700_000_000_000_000_000
    assert [(ts - base, dur, category, name) for _, ts, dur, category, name in rows(trace)] == [
        (5, 3, "cuda_runtime", "cudaLaunchKernel"),
        (10, 100, "kernel", "gemm()"),
        (20, 10, "gpu_memcpy", "Memcpy HtoD"),
        (30, 1, "gpu_memset", "MemorySet"),
        (110, 5, "vertex", "vertex"),
    ]
    assert trace.events.category.tolist()[1:4] == [Category.KERNEL, Category.GPU_MEMCPY, Category.GPU_MEMSET]
    assert places(trace)[1:4] == [(1, 7, 1, 7), (1, 7, 1, 7), (1, 8, 1, 8)]
    assert trace.events.correlation.tolist()[:3] == [99, 99, 12]
    assert trace.events.bytes.values.tolist() == [4096]
    assert trace.args_of(np.array([1, 2])) == [{"grid": [8, 2, 1], "stream": 7}, {"bytes": 4096, "correlation": 12}]


def test_rocprofv3(scanner: str, tmp_path: Path) -> None:
    made = Messages()
    made.thread(5, 42, 42)
    made.track(1, name="COMPUTE AGENT [4] STREAM [1] (GPU)")
    made.track(2, name="COPY to AGENT [4] STREAM [1] (GPU)")
    made.track(3, name="COPY to AGENT [0] STREAM [1] (CPU)")
    made.track(4, name="THREAD 1 (4711)")
    call = {"begin_ns": 10, "corr_id": 3}
    made.slice(10, 5, 5, "hipLaunchKernel", "hip_api", **call).flow_ids.append(3)
    made.slice(20, 5, 1, "gemm", "kernel_dispatch", corr_id=3, queue=9, agent="Agent-4").flow_ids.append(3)
    made.slice(30, 5, 2, "MEMORY_COPY_HOST_TO_DEVICE", "memory_copy", copy_bytes=64, src_agent="Agent-0")
    made.slice(40, 5, 3, "MEMORY_COPY_DEVICE_TO_HOST", "memory_copy", copy_bytes=32, src_agent="Agent-4")
    made.slice(50, 5, 4, "hipMalloc", "hip_api", corr_id=5)
    trace = made.read(tmp_path)
    slices = np.flatnonzero(trace.events.phase == ord("X"))
    assert trace.events.category[slices].tolist() == [
        Category.CUDA_RUNTIME, Category.KERNEL, Category.GPU_MEMCPY, Category.GPU_MEMCPY, Category.CUDA_RUNTIME,
    ]  # fmt: skip
    where = [places(trace)[row] for row in slices.tolist()]
    assert [place[2:] for place in where[1:4]] == [(4, 1)] * 3
    assert where[4][1] == 4711
    assert trace.events.correlation[slices].tolist() == [3, 3, -1, -1, 5]
    assert trace.events.bytes.values.tolist() == [64, 32]
    assert [row[:4:3] for row in rows(trace) if row[0] in "sf"] == [("s", "ac2g"), ("f", "ac2g")]

"""What Nsight Systems and rocprofv3 record is read as if Kineto had recorded it, with care, and without secrets."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Packets

from augment import Findings, InputError, LimitExceeded, OutputError, Skipped, Trace, UnknownFormat, augment, diff, read
from augment.batch.cutting import part
from augment.core import Category
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import NoData
from augment.diagnosis.rules import exposed_copies
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.source.several_ranks import may_be_merged, rank_of_track
from augment.readers.limits import Limits
from augment.writers import write_all
from recorder_tables import (
    Made,
    common,
    global_id,
    joined_nsys,
    kineto,
    nsys_tables,
    rocpd_tables,
    write_csv,
    write_kineto,
    write_parquet,
    write_sqlite,
)
from said import advice_of, title_of

SIMULATED = Path(__file__).parents[2] / "examples" / "simulated"
EVIDENCE = Path(__file__).parents[2] / ".." / "shared" / "evidence"
OPTIONS = ("record_shapes", "profile_memory", "with_stack")
SECRET = "hf_plantedsecretdonotshow"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """One rank of a simulated job, only with what all recorders record."""
    trace = common(kineto(SIMULATED / "job" / "rank0.pt.trace.json.gz"))
    trace["baseTimeNanoseconds"] = 0
    return trace


def figures(trace: Trace) -> dict[str, Any]:
    """The rows of all analyses."""
    outcomes = augment(trace).outcomes
    return {name: outcome.rows for name, outcome in outcomes.items() if isinstance(outcome, Findings)}


def differing(trace: Trace, other: Trace) -> list[str]:
    """The analyses with other rows. What to record, which each recorder has options of its own for, is left out."""
    first, second = figures(trace), figures(other)
    for rows in (first, second):
        rows["diagnosis"] = [replace(row, advice=None, evidence=None) for row in rows["diagnosis"]]
        rows["step_efficiency"] = [replace(row, lacking=None) for row in rows.get("step_efficiency", ())]
    return [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]


def test_a_job_has_equal_figures_by_kineto_and_nsys(tmp_path: Path, job: dict[str, Any]) -> None:
    by_kineto = read(str(write_kineto(job, tmp_path / "rank0.json")))
    by_nsys = read(str(write_sqlite(nsys_tables(job), tmp_path / "report.sqlite")))
    assert by_nsys.source.format == "nsight_systems"
    assert by_nsys.rank == by_kineto.rank == 0
    assert len(figures(by_kineto)) > 15
    assert differing(by_kineto, by_nsys) == []


@pytest.mark.parametrize("recorder", ["Nsight Systems", "rocprofv3"])
def test_advice_names_options_of_the_recorder(tmp_path: Path, job: dict[str, Any], recorder: str) -> None:
    if recorder == "rocprofv3":
        trace = read(str(write_sqlite(rocpd_tables(as_rocpd_has_it(job)), tmp_path / "1_results.db")))
    else:
        trace = read(str(write_sqlite(nsys_tables(job), tmp_path / "report.sqlite")))
    augmented = augment(trace)
    reasons = [outcome.reason for outcome in augmented.outcomes.values() if isinstance(outcome, Skipped)]
    reasons += [row.advice or "" for row in augmented.outcomes["diagnosis"].rows]  # type: ignore[union-attr]
    options = [reason for reason in reasons if any(f"{each}=True" in reason for each in OPTIONS)]
    assert len(options) > 2
    assert [each for each in options if "torch.profiler's " not in each and "emit_nvtx(" not in each] == []
    assert [each for each in reasons if "ProfilerActivity" in each or "profiler's schedule" in each] == []


def test_a_comparison_across_recorders_says_so(tmp_path: Path, job: dict[str, Any]) -> None:
    changed = as_rocpd_has_it(job)  # which has no operators
    sides = (
        read(str(write_kineto(job, tmp_path / "rank0.json"))),
        read(str(write_sqlite(rocpd_tables(changed), tmp_path / "1_results.db"))),
    )
    notes = {note.code: note.message for note in diff(*sides).diagnostics}
    assert "recorded by Kineto and rocprofv3" in notes["recorders_differ"]
    assert "operators" in notes["recorders_differ"]
    assert "recorders_differ" not in {note.code for note in diff(sides[0], sides[0]).diagnostics}


def test_a_report_of_two_ranks_is_parted(tmp_path: Path) -> None:
    """Each part has the figures of the rank alone, and equal correlations of the two are not mixed up."""
    ranks = [common(kineto(SIMULATED / "job" / f"rank{rank}.pt.trace.json.gz")) for rank in (0, 1)]
    for each in ranks:
        each["baseTimeNanoseconds"] = 0
        del each["distributedInfo"]
    joined = write_sqlite(joined_nsys(map(nsys_tables, ranks)), tmp_path / "report.sqlite")
    trace = read(str(joined))
    assert may_be_merged(trace)
    assert {*rank_of_track(trace).tolist()} == {0, 1}
    parts = part(str(joined), tmp_path / "parts", (), lambda _: None)
    for rank, path in enumerate(parts):
        alone = read(str(write_kineto(ranks[rank], tmp_path / f"rank{rank}.json")))
        # whose rows tell correlations, which were moved
        assert set(differing(alone, read(str(path)))) <= {"launch_outliers"}


def test_pages_of_managed_memory_migrate_without_launches(tmp_path: Path, job: dict[str, Any]) -> None:
    """Nothing is missing from the recording, and the advice is to move the pages ahead of their use."""
    tables = nsys_tables(job)
    columns, rows = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    place = dict(zip([name.strip() for name in columns.split(",")], rows[0], strict=True))
    names = ("deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid")
    of = [{**place, "correlationId": 0}[name] for name in names]
    first, last = min(row[0] for row in rows), max(row[1] for row in rows)
    each = (last - first) // 10
    copies = [(last + n * each, last + (n + 1) * each, *of, 1 << 20, 11 + n % 2, 4, 2) for n in range(100)]
    kept = ("start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, bytes, copyKind, "
            "srcKind, dstKind")  # fmt: skip
    made = {**tables, "CUPTI_ACTIVITY_KIND_MEMCPY": (kept, copies)}
    del made["NVTX_EVENTS"]  # whose steps these come after
    trace = read(str(write_sqlite(made, tmp_path / "report.sqlite")))
    findings = {each.rule: each for each in diagnose(trace).findings}
    assert "partial_recording" not in findings
    answer = findings["exposed_copies"].found
    assert (answer.saved_ns, answer.severity) == (None, "high")
    assert title_of(answer).startswith("Pages of managed memory migrate between host and device in 100 copies")
    assert "cudaMemPrefetchAsync" in advice_of(answer)
    calls = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    made["StringIds"][1].append((99_999, "cudaMemPrefetchAsync_v8000"))
    made["CUPTI_ACTIVITY_KIND_RUNTIME"] = (calls[0], [*calls[1], (*calls[1][0][:-2], 99_999, 0)])
    assert isinstance(exposed_copies.check(read(str(write_sqlite(made, tmp_path / "prefetching.sqlite")))), NoData)


def test_a_folder_of_parquet_has_equal_figures(tmp_path: Path, job: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow")
    tables = nsys_tables(job)
    folder = write_parquet(tables, tmp_path / "report")
    by_nsys = read(str(write_sqlite(tables, tmp_path / "report.sqlite")))
    assert differing(by_nsys, read(str(folder / "StringIds.parquet"))) == []


def test_a_job_has_equal_figures_by_kineto_and_rocpd(tmp_path: Path, job: dict[str, Any]) -> None:
    by_kineto = read(str(write_kineto(as_rocpd_has_it(job), tmp_path / "rank0.json")))
    by_rocpd = read(str(write_sqlite(rocpd_tables(as_rocpd_has_it(job)), tmp_path / "1_results.db")))
    assert by_rocpd.source.format == "rocprofv3"
    assert by_rocpd.rank == 0
    assert differing(by_kineto, by_rocpd) == []
    by_csv = read(str(write_csv(without_copies(as_rocpd_has_it(job)), tmp_path, "rank0")))
    without = read(str(write_kineto(without_copies(as_rocpd_has_it(job)), tmp_path / "rank0.json")))
    assert differing(without, by_csv) == []


def as_rocpd_has_it(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with annotations for operators, calls of one kind, and copies named by their direction alone; a device
    without the size of its memory."""
    changed: dict[str, Any] = copy.deepcopy(trace)
    for device in changed["deviceProperties"]:
        del device["totalGlobalMem"]
    for each in changed["traceEvents"]:
        for name in ("Sequence number", "Input Dims", "blocks per SM"):
            each["args"].pop(name, None)
        if each.get("cat") == "cpu_op":
            each["cat"] = "user_annotation"
        elif each.get("cat") == "cuda_driver":
            each["cat"] = "cuda_runtime"
        elif each.get("cat") in ("gpu_memcpy", "gpu_memset"):
            each["cat"] = "gpu_memcpy"
            ends = {"H": "Host", "D": "Device"}
            kind = each["name"].split()[1] if each["name"].startswith("Memcpy") else "DtoD"
            each["name"] = f"Memcpy {kind} ({ends[kind[0]]} -> {ends[kind[-1]]})"
    return changed


def without_copies(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace as CSV files have it: without copies, whose sizes they lack, and without a header and names."""
    kept = [each for each in trace["traceEvents"] if each["ph"] == "X" and each["cat"] != "gpu_memcpy"]
    return {"traceEvents": kept}


def test_figures_of_real_reports_are_those_of_sql(tmp_path: Path) -> None:
    """Busy time, count and sum of kernels and copies of each device, by SQL with no code of ours."""
    reports = sorted((EVIDENCE / "nsys").glob("*.gz"))
    if not reports:
        pytest.skip("no real reports here")
    for report in reports:
        plain = tmp_path / report.stem
        plain.write_bytes(gzip.decompress(report.read_bytes()))
        database = sqlite3.connect(plain)
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        kinds = {"KERNEL": Category.KERNEL, "MEMCPY": Category.GPU_MEMCPY, "MEMSET": Category.GPU_MEMSET}
        trace = read(str(report))
        events = trace.events
        for table, category in kinds.items():
            count, total, size = 0, 0, 0
            if f"CUPTI_ACTIVITY_KIND_{table}" in known:
                amount = "0" if table == "KERNEL" else "sum(bytes)"
                query = f"SELECT count(*), coalesce(sum(end - start), 0), {amount} FROM CUPTI_ACTIVITY_KIND_{table}"
                count, total, size = database.execute(query).fetchone()
            rows = events.slices_of(category)
            names = trace.names_of(rows)
            graphs = [row for row, name in zip(rows.tolist(), names, strict=True) if name.startswith("CUDA graph ")]
            assert len(rows) - len(graphs) == count, (report.name, table)
            whole = int(events.dur[rows].sum()) - sum(int(events.dur[row : row + 1][0]) for row in graphs)
            assert whole == total, (report.name, table)
            assert int(events.bytes.at(rows, 0).sum()) == (size or 0), (report.name, table)
        launched = 0
        if {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= known:
            (launched,) = database.execute(
                "SELECT count(DISTINCT k.rowid) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
                " ON r.correlationId = k.correlationId AND r.globalTid / 16777216 = k.globalPid / 16777216"
            ).fetchone()
        work = gpu_work(trace)
        kernels = (events.category[work.row] == Category.KERNEL) & (work.launch >= 0)
        named = trace.names_of(work.row[kernels])
        assert sum(not name.startswith("CUDA graph ") for name in named) == launched, report.name
        database.close()


def small(**more: Any) -> Made:
    """A report of one kernel, its launch and a range, and the tables ``more``."""
    thread, process = global_id(7, 7), global_id(7)
    gpu = "deviceId, contextId, streamId, correlationId, globalPid"
    return {
        "StringIds": ("id, value", [(1, "cudaLaunchKernel_ptsz_v7000"), (2, "gemm"), (3, "work")]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, end, globalTid, correlationId, nameId", [(100, 150, thread, 5, 1)]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (f"start, end, {gpu}, demangledName", [(200, 300, 0, 1, 7, 5, process, 2)]),
        "NVTX_EVENTS": (
            "start, end, eventType, text, textId, globalTid, domainId",
            [(50, 400, 59, None, 3, thread, 0)],
        ),
        **more,
    }


def told(trace: Trace) -> list[tuple[str, str, int, int]]:
    """Category, name, start and duration of all slices."""
    events = trace.events
    rows = events.slices_of(*Category)
    columns = events.category[rows].tolist(), trace.names_of(rows), events.ts[rows].tolist(), events.dur[rows].tolist()
    return [(Category(kind).name, *rest) for kind, *rest in zip(*columns, strict=True)]


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Trace]:
    def made(tables: Made, *statements: str) -> Trace:
        return read(str(write_sqlite(tables, tmp_path / "report.sqlite", *statements)))

    return made


def test_no_table_but_events_and_strings_is_needed(report: Callable[..., Trace]) -> None:
    trace = report(small())
    assert told(trace) == [
        ("USER_ANNOTATION", "work", 50, 350),
        ("CUDA_RUNTIME", "cudaLaunchKernel", 100, 50),
        ("KERNEL", "gemm", 200, 100),
    ]
    assert gpu_work(trace).launch.tolist() != [-1]


def test_cuda_that_was_traced_in_vain_is_said(report: Callable[..., Trace]) -> None:
    """The user did record with ``-t cuda,nvtx``; why nothing came of it, nsys says itself."""
    why = {
        "META_DATA_CAPTURE": ("name, value", [("PROCESS_0:COLLECT_CUDA_TRACE", "true")]),
        "DIAGNOSTIC_EVENT": (
            "severity, text",
            [
                (1, "Loaded CUPTI library: /opt/secret"),
                (2, "No CUDA events collected. Does the process use CUDA?"),
                (2, "No CUDA events collected. Does the process use CUDA?"),
                (3, "ActivityFlushAll returned 15:\nCUPTI_ERROR_NOT_INITIALIZED"),
            ],
        ),
    }
    said = (
        'CUDA was traced, but no GPU work was recorded; nsys says: "ActivityFlushAll returned 15: '
        'CUPTI_ERROR_NOT_INITIALIZED", "No CUDA events collected. Does the process use CUDA?": '
        "see that the program uses the GPU while nsys records"
    )
    strings = {"StringIds": small()["StringIds"]}
    for tables, ends in ((strings | why, said), (strings, "nsys profile -t cuda,nvtx")):
        with pytest.raises(UnknownFormat) as raised:
            report(tables)
        assert str(raised.value).endswith(ends)
    calls = {
        name: table for name, table in small(**why).items() if name not in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")
    }
    for each in (calls, small(**why) | {"CUPTI_ACTIVITY_KIND_KERNEL": ("start, end, globalPid", [])}):
        assert said in augment(report(each)).verdict.text[0]


@pytest.mark.parametrize("kind", ["nsys", "rocpd"])
def test_secrets_stay_in_their_tables(tmp_path: Path, job: dict[str, Any], kind: str) -> None:
    tables = nsys_tables(job, SECRET) if kind == "nsys" else rocpd_tables(as_rocpd_has_it(job), SECRET)
    others = {"SECRETS": ("id, value", [(1, SECRET)]), "ENUM_NSYS": ("id, name", [(1, SECRET)])}
    path = write_sqlite({**tables, **others}, tmp_path / "rank0.sqlite")
    assert path.read_bytes().count(SECRET.encode()) > 5
    trace = read(str(path))
    augmented = augment(trace)
    for output in write_all(augmented, tmp_path / "out", ["chrome", "perfetto", "gpu_slices", "flamegraph"]):
        data = output.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        assert SECRET.encode() not in data, output.name
        if output.suffix == ".pftrace":
            packed = [packet.compressed_packets for packet in Packets.FromString(data).packet]
            assert any(packed)
            assert SECRET.encode() not in b"".join(zlib.decompress(piece) for piece in packed if piece), output.name
    with pytest.raises(OutputError, match="--to perfetto"):
        write_all(augmented, tmp_path / "out", ["bundle"])  # which would hold the file itself
    assert SECRET not in json.dumps(trace.source.metadata)
    for chunk in trace.source.text.chunks():
        assert SECRET.encode() not in bytes(chunk)


def test_views_triggers_and_virtual_tables_are_not_read(report: Callable[..., Trace], tmp_path: Path) -> None:
    tables = small()
    kernels = tables.pop("CUPTI_ACTIVITY_KIND_KERNEL")
    tables["HIDDEN"] = kernels
    trace = report(
        tables,
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM HIDDEN",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
        "CREATE VIEW NVTX_EVENTS_V2 AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
    )
    assert [name for _, name, *_ in told(trace)] == ["work", "cudaLaunchKernel"]
    before = (tmp_path / "report.sqlite").read_bytes()
    read(str(tmp_path / "report.sqlite"))
    assert (tmp_path / "report.sqlite").read_bytes() == before
    assert not list(tmp_path.glob("*-journal")) + list(tmp_path.glob("*-wal"))


def test_a_column_that_computes_is_not_read(report: Callable[..., Trace]) -> None:
    tables = small()
    del tables["NVTX_EVENTS"]
    trace = report(
        tables,
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, domainId, textId, text AS (upper('computed')))",
        f"INSERT INTO NVTX_EVENTS VALUES (60, 70, 59, {global_id(7, 7)}, 0, 3)",
    )
    assert [name for _, name, *_ in told(trace)] == ["work", "cudaLaunchKernel", "gemm"]


def test_rows_with_cells_of_other_types_are_counted(report: Callable[..., Trace]) -> None:
    tables = small()
    rows = tables["CUPTI_ACTIVITY_KIND_KERNEL"][1]
    odd: list[Any] = ["x", None, b"blob", 1e400, "1; DROP TABLE StringIds"]
    rows += [(500, 900, device, 1, 7, 5, global_id(7), 2) for device in (-(1 << 63), (1 << 63) - 1, -1)]
    rows += [(value, 900, 0, 1, 7, 5, global_id(7), 2) for value in odd] + [(900, 800, 0, 1, 7, 5, global_id(7), 2)]
    trace = report(tables)
    assert [name for kind, name, *_ in told(trace) if kind == "KERNEL"] == ["gemm"]
    assert {each.code: each.count for each in trace.diagnostics}["unread_rows"] == len(odd) + 4


def test_a_database_in_circles_ends(tmp_path: Path) -> None:
    """A cell that is longer than the file, and pages that are another's."""
    path = write_sqlite(small(), tmp_path / "report.sqlite")
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    for number in range(1, len(data) // page):
        broken = bytearray(data)
        broken[number * page : (number + 1) * page] = data[page : 2 * page]
        path.write_bytes(broken)
        with contextlib.suppress(InputError):
            read(str(path))


@pytest.mark.parametrize(("name", "data", "because"), [
    ("report.nsys-rep", b"\0" * 4096, "nsys export --type sqlite"),
    ("other.sqlite", {"users": ("id, password", [(1, SECRET)])}, "neither of nsys export nor of rocprofv3"),
    ("results.db", {"KERN": ("id, password", [(1, SECRET)]), "OPS": ("id", [])}, "first rocprof: name the .json"),
    ("report.sqlite", b"SQLite format 3\0" + bytes(100), "cannot be read"),
    ("x_counter_collection.csv", b'"Correlation_Id","Dispatch_Id","Agent_Id"\n', "counters of rocprofv3"),
    ("a.parquet", b"PAR1" + bytes(64), "no folder of nsys export"),
])  # fmt: skip
def test_what_is_none_of_these_is_refused_in_a_line(
    tmp_path: Path, name: str, data: bytes | dict[str, Any], because: str
) -> None:
    path = tmp_path / name
    if isinstance(data, dict):
        write_sqlite(data, path)
    else:
        path.write_bytes(data)
    with pytest.raises(UnknownFormat, match=because) as refused:
        read(str(path))
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513])
def test_reports_of_any_length_are_whole(report: Callable[..., Trace], count: int) -> None:
    thread = global_id(7, 7)
    columns = "start, end, eventType, text, textId, globalTid, domainId"
    marks = [(at, at + 1, 59, "work", None, thread, 0) for at in range(count)]
    trace = report({"NVTX_EVENTS": (columns, marks)})
    assert len(told(trace)) == count
    assert trace.partial is None


def test_limits_hold(tmp_path: Path) -> None:
    tables = small()
    columns, rows = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = columns, rows * 1000
    path = str(write_sqlite(tables, tmp_path / "report.sqlite"))
    with pytest.raises(LimitExceeded, match="more than 500 events"):
        read(path, limits=Limits(events=500))
    with pytest.raises(LimitExceeded, match="decompresses to more than 10000 bytes"):
        read(path, limits=Limits(text_bytes=10_000))


def test_emit_nvtx_gives_operators_with_shapes(report: Callable[..., Trace]) -> None:
    thread = global_id(7, 7)
    texts = [
        "aten::mm, seq = 12, op_id = 3, sizes = [[4, 8], [8, 2]], input_op_ids = [(1,0), (2,0)]",
        "AddmmBackward0, seq = 12, op_id = 9",
        "ProfilerStep#3, op_id = 1",
        "aten::to, sizes = [[4, 8], [], []]",
        "forward, part 2",
    ]
    ranges = [(50 + 10 * at, 55 + 10 * at, 59, text, None, thread, 0) for at, text in enumerate(texts)]
    columns = "start, end, eventType, text, textId, globalTid, domainId"
    trace = report(small(NVTX_EVENTS=(columns, ranges)))
    rows = trace.events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    assert list(zip(trace.names_of(rows), trace.args_of(rows), strict=True)) == [
        ("aten::mm", {"Sequence number": 12, "Input Dims": [[4, 8], [8, 2]]}),
        ("AddmmBackward0", {"Sequence number": 12}),
        ("ProfilerStep#3", {}),
        ("aten::to", {"Input Dims": [[4, 8], [], []]}),
        ("forward, part 2", {}),
    ]


def payload(domain: int, schema: int, *values: tuple[str, int]) -> bytes:
    fields = b"".join(struct.pack(form, value) for form, value in values)
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(fields), 32 + len(fields)) + fields


def test_processes_that_share_correlations_are_ranks(report: Callable[..., Trace]) -> None:
    """NCCL's payloads tell the ranks and the bytes; correlations are of a process alone."""
    entries, runtime, kernels, ranges = [], [], [], []
    for at, (kind, name) in enumerate([(18, "NCCL communicator ID"), (5, "No. of ranks"), (5, "Rank")]):
        entries.append((1, 100, at, kind, name, (None, 8, 12)[at]))
    entries += [(1, 200, 0, 18, "NCCL communicator ID", None), (1, 200, 1, 22, "Message size [bytes]", 8)]
    for rank, pid in enumerate((41, 42)):
        thread, process = global_id(pid, pid), global_id(pid)
        init = payload(1, 100, ("<Q", 0xABC), ("<I", 2), ("<I", rank))
        size = payload(1, 200, ("<Q", 0xABC), ("<Q", 4096))
        ranges += [
            (10, 20, 59, "ncclCommInitRank", None, thread, 1, init),
            (100, 110, 59, "ncclGroupStart", None, thread, 1, None),
            (120, 130, 59, "ncclAllReduce", None, thread, 1, size),
            (140, 190, 59, "ncclGroupEnd", None, thread, 1, None),
        ]
        runtime.append((150, 160, thread, 5, 1))
        kernels.append((200 + 50 * rank, 400, rank, 1, 7, 5, process, 4))
    gpu = "deviceId, contextId, streamId, correlationId, globalPid"
    trace = report(
        {
            "StringIds": (
                "id, value",
                [(1, "cudaLaunchKernelExC_v11060"), (4, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")],
            ),
            "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, end, globalTid, correlationId, nameId", runtime),
            "CUPTI_ACTIVITY_KIND_KERNEL": (f"start, end, {gpu}, demangledName", kernels),
            "NVTX_EVENTS": ("start, end, eventType, text, textId, globalTid, domainId, binaryData", ranges),
            # reports say device 0 whatever the context
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
                f"start, end, {gpu}, syncType, eventId",
                [(410 + rank, 500, 0, 1, 7, 6, global_id(pid), 3, None) for rank, pid in enumerate((41, 42))],
            ),
            "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("domainId, schemaId, idx, type, name, offset", entries),
        }
    )
    waits = trace.events.slices_of(Category.CUDA_SYNC)
    assert [trace.tracks[track].device for track in trace.events.track[waits].tolist()] == [0, 1]
    work = gpu_work(trace)
    launched_by = [trace.tracks[trace.events.track[row : row + 1][0]].pid for row in work.launch.tolist()]
    assert launched_by == [41, 42]
    ranks = rank_of_track(trace)
    of_work = [int(ranks[trace.events.track[row : row + 1][0]]) for row in work.row.tolist()]
    assert of_work == [0, 1]
    first = trace.args_of(work.row[:1])[0]
    assert first["Collective name"] == "allreduce"
    assert (first["In msg nelems"], first["dtype"], first["Group size"]) == (4096, "Byte", 2)
    (rows,) = [
        outcome.rows
        for name, outcome in augment(trace).outcomes.items()
        if name == "collectives" and isinstance(outcome, Findings)
    ]
    assert {row.bytes for row in rows} == {4096}


def test_streams_and_processes_of_equal_numbers_are_told_apart(report: Callable[..., Trace]) -> None:
    """A pid equal to a device's number; two contexts whose streams have one number."""
    thread, process = global_id(1, 1), global_id(1)
    gpu = "deviceId, contextId, streamId, correlationId, globalPid"
    kernels = [(200, 300, 1, 1, 7, 5, process, 2), (250, 350, 1, 2, 7, 6, process, 2)]
    calls = [(100, 110, thread, 5, 1), (120, 130, thread, 6, 1)]
    trace = report(
        small(
            CUPTI_ACTIVITY_KIND_RUNTIME=("start, end, globalTid, correlationId, nameId", calls),
            CUPTI_ACTIVITY_KIND_KERNEL=(f"start, end, {gpu}, demangledName", kernels),
        )
    )
    work = gpu_work(trace)
    assert [(stream.device, stream.stream) for stream in work.streams] == [(1, 7), (1, "7 of context 2")]
    assert 1 not in {trace.tracks[stream.track].pid for stream in work.streams}


def test_ranges_that_overlap_lie_beside_each_other(report: Callable[..., Trace]) -> None:
    thread = global_id(7, 7)
    columns = "start, end, eventType, text, textId, globalTid, domainId"
    ranges = [(50, 90, 60, "a", None, thread, 0), (60, 70, 60, "in a", None, thread, 0),
              (80, 120, 60, "b", None, thread, 0), (130, None, 60, "open", None, thread, 0),
              (140, None, 34, "mark", None, thread, 0)]  # fmt: skip
    trace = report(small(NVTX_EVENTS=(columns, ranges)))
    rows = trace.events.slices_of(Category.USER_ANNOTATION)
    tids = [trace.tracks[track].tid for track in trace.events.track[rows].tolist()]
    of = dict(zip(trace.names_of(rows), tids, strict=True))
    assert of["a"] == of["in a"] == 7 != of["b"]
    assert {"open", "mark"} <= set(trace.strings)


def test_ranges_tell_their_domain(report: Callable[..., Trace]) -> None:
    thread = global_id(7, 7)
    columns = "start, end, eventType, text, textId, globalTid, domainId"
    ranges = [(10, None, 75, "cuBLAS", None, thread, 1), (50, 60, 59, "a", None, thread, 1)]
    ranges += [(70, 80, 59, "b", None, thread, 0)]
    trace = report(small(NVTX_EVENTS=(columns, ranges)))
    rows = trace.events.slices_of(Category.USER_ANNOTATION)
    assert dict(zip(trace.names_of(rows), trace.args_of(rows), strict=True)) == {"a": {"domain": "cuBLAS"}, "b": {}}


def test_a_graph_is_one_piece_of_work_for_each_launch(report: Callable[..., Trace]) -> None:
    gpu = "deviceId, contextId, streamId, correlationId, globalPid"
    graphs = [(500, 600, 0, 1, 7, 5, global_id(7), 4, 9), (700, 800, 0, 1, 7, 6, global_id(7), 4, 9)]
    trace = report(small(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=(f"start, end, {gpu}, graphId, graphExecId", graphs)))
    assert [name for kind, name, *_ in told(trace) if kind == "KERNEL"] == ["gemm", "CUDA graph 4", "CUDA graph 4"]
    assert {note.code: note.count for note in trace.diagnostics} == {"whole_graphs": 2}


def test_a_report_that_changes_is_read_anew(tmp_path: Path) -> None:
    """The text made of it last is kept for the next readings."""
    path = write_sqlite(small(), tmp_path / "report.sqlite")
    first = read(str(path))
    assert b"".join(map(bytes, first.source.text.chunks())) == b"".join(map(bytes, first.source.text.chunks()))
    tables = small()
    tables["StringIds"][1].append((9, "a text that makes the file longer" * 500))
    tables["CUPTI_ACTIVITY_KIND_KERNEL"][1].append((500, 600, 0, 1, 7, 6, global_id(7), 2))
    write_sqlite(tables, path)
    assert len(told(read(str(path)))) == len(told(first)) + 1


def test_a_report_may_be_compressed_or_a_link(tmp_path: Path) -> None:
    path = write_sqlite(small(), tmp_path / "report.sqlite")
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "link.sqlite").symlink_to(path)
    assert told(read(str(packed))) == told(read(str(path))) == told(read(str(tmp_path / "link.sqlite")))


@pytest.mark.parametrize("kind", ["nsys", "rocpd", "rocprofv3_csv"])
def test_every_file_of_evidence_is_read_or_refused_in_a_line(kind: str) -> None:
    files = sorted((EVIDENCE / kind).glob("*.gz"))
    if not files:
        pytest.skip("no real files here")
    for path in files:
        if "counter" in path.name:
            with pytest.raises(UnknownFormat, match="counters of rocprofv3"):
                read(str(path))
            continue
        trace = read(str(path))
        assert trace.partial is None, path.name
        assert "unread_rows" not in {each.code for each in trace.diagnostics}, path.name

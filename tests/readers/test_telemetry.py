"""Telemetry of GPUs: read whatever wrote it, joined with a trace, integrated and priced."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import augment
from augment.analyses import cost, energy, telemetry
from augment.core.attachment_kinds import kind_of
from augment.core.records import Telemetry
from augment.errors import AugmentError, UnknownFormat, UsageError
from augment.facts.gpu.hardware_samples import WatchedGpus, watched_gpus
from augment.pipeline import augment as analyse
from augment.readers.attachments import Evidence, begins_as
from augment.readers.attachments.telemetry_file import read_telemetry
from tables import annotation, call, kernel, launched_kernel, op, rows_of, trace_of

SHARED = Path(__file__).parents[3] / "shared" / "evidence" / "telemetry"
DAY = 1_700_000_000 * 10**9  #: 2023-11-14 22:13:20 UTC
COLUMNS = ("timestamp", "index", "power.draw [W]", "clocks.current.sm [MHz]", "utilization.gpu [%]",
           "clocks_event_reasons.sw_power_cap", "memory.used [MiB]")  # fmt: skip
SMI = f"""{", ".join(COLUMNS)}
2023/11/14 23:13:20.000, 0, 100.00 W, 1980 MHz, 50 %, Not Active, 2 MiB
2023/11/14 23:13:20.100, 0, 300.00 W, 1410 MHz, [N/A], Active, 2 MiB
2023/11/14 23:13:20.200, 0, 300.00 W, 1410 MHz, 100 %, Active, 2 MiB
"""
DMON = """Completed 3 requests
#Entity   GRACT   POWER  PCITX
ID
GPU 0     0.100   50     2000000000
GPU 1     0.900   60     0
#Entity   GRACT   POWER  PCITX
ID
GPU 0     0.300   70     N/A
GPU 1     0.700   80     0

dmon was stopped do to receiving a signal
"""


def known(path: str) -> dict[tuple[str, str], tuple[list[int], list[float]]]:
    samples = read_telemetry(path).samples
    return {(each.gpu, each.quantity): (each.ts.tolist(), each.values.tolist()) for each in samples}


def written(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_nvidia_smi(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path / "any.name", SMI.replace("\n", "\r\n").encode(encoding))
    assert (begins_as(path) or kind_of(b"")).name == "telemetry"  # type: ignore[union-attr]
    columns, hour = known(path), 3600 * 10**9
    ts = [DAY + hour, DAY + hour + 10**8, DAY + hour + 2 * 10**8]
    assert columns["0", "power"] == (ts, [100.0, 300.0, 300.0])
    assert columns["0", "sm_clock"][1] == [1980.0, 1410.0, 1410.0]
    assert columns["0", "utilization"] == ([ts[0], ts[2]], [0.5, 1.0])
    assert columns["0", "throttled"][1] == [0.0, 1.0, 1.0]
    assert columns["0", "memory_used"][1][0] == 2 << 20
    assert not read_telemetry(path).has_zone
    assert known(f"{path}@zone=+01:00")["0", "power"][0][0] == DAY


def test_dmon(tmp_path: Path) -> None:
    path = written(tmp_path / "dmon.txt", DMON)
    assert (begins_as(path) or kind_of(b"")).name == "telemetry"  # type: ignore[union-attr]
    assert not read_telemetry(path).has_times
    columns = known(f"{path}@start=2023-11-14T22:13:20Z,period=250ms")
    assert columns["0", "graphics_active"] == ([DAY, DAY + 250_000_000], [0.1, 0.3])
    assert columns["1", "graphics_active"][1] == [0.9, 0.7]
    assert columns["0", "pcie_sent"] == ([DAY], [2.0])
    smi = (
        "#Date       Time        gpu    pwr  gtemp     sm   mclk   pclk\n"
        "#YYYYMMDD   HH:MM:SS    Idx      W      C      %    MHz    MHz\n"
        " 20231114   22:13:20      0     43     35     12    405   1980\n"
    )
    path = written(tmp_path / "smi.txt", smi)
    assert known(path)["0", "sm_clock"] == ([DAY], [1980.0])
    assert known(path)["0", "utilization"][1] == [0.12]


def test_prometheus(tmp_path: Path) -> None:
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "3", "Hostname": "a"}
    used = {"__name__": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu": "3", "Hostname": "a"}
    results = [
        {"metric": metric, "values": [[1_700_000_000, "100"], [1_700_000_015.5, "NaN"], [1_700_000_030.25, "200"]]},
        {"metric": used, "values": [[1_700_000_000, "5000"], [1_700_000_030, "8000"]]},
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": results}}
    path = written(tmp_path / "range.json", json.dumps(answer))
    assert (begins_as(path) or kind_of(b"")).name == "telemetry"  # type: ignore[union-attr]
    columns = known(path)
    assert columns["3", "power"] == ([DAY, DAY + 30_250_000_000], [100.0, 200.0])
    assert columns["3", "energy"][1] == [5.0, 8.0]


@pytest.mark.parametrize(
    ("text", "gpus", "first"),
    [
        ("GPUId,TimeStampUs,Watts\n4,1700000000000001,71.5\n", ["4"], DAY + 1000),
        ("timestamp,gpu_index,power_W\n2023-11-14T22:13:20Z,1, 70\n2023-11-14T22:13:20Z,2, 71\n", ["1", "2"], DAY),
        ("timestamp,gpu,index,power.draw\n1700000000,0,0,1\n1700000000,1,0,2\n", ["0", "1"], DAY),
        ("time,device,Average Graphics Package Power (W)\n1700000000.25,card0,30.0\n", ["card0"], DAY + 250_000_000),
        ("timestamp, uuid, power.draw [mW]\n1700000000000, GPU-a, 70000\n", ["GPU-a"], DAY),
    ],
)  # fmt: skip
def test_tables_of_others(tmp_path: Path, text: str, gpus: list[str], first: int) -> None:
    columns = known(written(tmp_path / "a.csv", text))
    assert sorted(gpu for gpu, _ in columns) == gpus
    assert columns[gpus[0], "power"][0][0] == first
    assert columns[gpus[0], "power"][1][0] in (71.5, 70.0, 1.0, 30.0)


def test_what_is_none(tmp_path: Path) -> None:
    for text in (
        "a,b\n1,2\n",
        "",
        "\0\1",
        "{",
        '{"data": 3}',
        "timestamp,power.draw\n9999-12-31 00:00:00,1\n",
        "Start (ns),Duration (ns)\n1,2\n",
    ):
        with pytest.raises(UnknownFormat):
            read_telemetry(written(tmp_path / "a.csv", text))
    path = written(tmp_path / "a.csv", DMON)
    for given in ("start=7", "period=3ms", "start=2023-11-14T22:13:20Z,period=x", "colour=red"):
        with pytest.raises(UsageError):
            read_telemetry(f"{path}@{given}")


def recorded(path: str, rank: int | None = 0) -> Any:
    """Two steps of 80 ms, the second from 100 ms on, each with a kernel of 60 ms."""
    events = []
    for number in range(2):
        at = DAY + number * 100_000_000
        events += [
            annotation(f"ProfilerStep#{number}", at, at + 80_000_000), op("aten::mm", at, at + 10_000_000),
            *launched_kernel("gemm", (at, at + 1000), (at + 10_000_000, at + 70_000_000), correlation=number + 1),
        ]  # fmt: skip
    trace = trace_of(*events)
    tracks = tuple(structs.replace(track, rank=rank) for track in trace.tracks)
    return augment.with_telemetry(trace.changed(tracks=tracks) if rank else trace, path)


def test_beside_a_trace(tmp_path: Path) -> None:
    trace = recorded(written(tmp_path / "smi.csv", SMI))
    watched = watched_gpus(trace)
    assert isinstance(watched, WatchedGpus)
    assert watched.zone == "+01:00"
    outcome = telemetry.analyze(trace)
    rows = {(row[0], row[1]): row[2:] for row in rows_of(outcome, "step", "quantity", "mean", "least", "sample_count")}
    assert rows[None, "power"] == (200.0, 100.0, 2)
    assert rows[1, "sm_clock"] == (1410.0, 1410.0, 1)
    assert [each.name for each in outcome.annotations] == [  # type: ignore[union-attr]
        "Power", "SM clock", "Utilization", "Memory used", "Throttled",
    ]  # fmt: skip
    joules = {
        (row[0], row[1]): row[2:] for row in rows_of(energy.analyze(trace), "part", "name", "energy_joules", "time_ns")
    }
    # 200 W, the mean of 100 and 300, for 100 ms; then 300 W
    assert joules["recording", None] == (pytest.approx(20.0 + 0.08 * 300), 180_000_000)
    assert joules["step", "1"] == (pytest.approx(0.08 * 300), 80_000_000)
    assert joules["family", "gemm"] == (pytest.approx(0.06 * 200 + 0.06 * 300), 120_000_000)
    assert joules["busy", None][0] + joules["idle", None][0] == pytest.approx(joules["recording", None][0])


def test_joules_a_token(tmp_path: Path) -> None:
    """Of training by the tokens that are given; of an engine by the batches of its steps; else, and in gaps, none."""
    trace = recorded(written(tmp_path / "smi.csv", SMI))
    columns = ("part", "name", "energy_joules", "joules_per_token")
    rows = {row[:2]: row[2:] for row in rows_of(energy.analyze(trace, tokens_per_step_count=64), *columns)}
    for part, count in ((("step", "0"), 64), (("step", "1"), 64), (("steps", None), 128)):
        assert rows[part][1] == pytest.approx(rows[part][0] / count)
    assert rows["steps", None][0] == pytest.approx(rows["step", "0"][0] + rows["step", "1"][0])
    assert {row[1] for part, row in rows.items() if part[0] not in ("step", "steps")} == {None}
    assert {row[3] for row in rows_of(energy.analyze(trace), *columns)} == {None}
    names = {
        "ProfilerStep#0": "execute_context_2(30)_generation_1(1)",
        "ProfilerStep#1": "execute_context_0(0)_generation_4(4)",
    }
    served = trace.changed(strings=[names.get(text, text) for text in trace.strings])
    rows = {row[:2]: row[2:] for row in rows_of(energy.analyze(served), *columns)}
    counts = [round(row[0] / row[1]) for part, row in rows.items() if part[0] in ("steps", "step") and row[1]]
    assert counts == [35, 31, 4]


def test_what_cannot_be_joined_says_why(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", DMON)
    assert "no times" in str(watched_gpus(recorded(path)))
    late = written(tmp_path / "b.csv", SMI.replace("2023/11/14", "2023/12/14"))
    assert "do not overlap" in str(watched_gpus(recorded(late)))
    assert "do not overlap" in str(watched_gpus(recorded(f"{written(tmp_path / 'c.csv', SMI)}@zone=+05:00")))
    long = SMI + "2023/11/15 04:13:20.300, 0, 300.00 W, 1410 MHz, 100 %, Active, 2 MiB\n"
    assert "several would cover the trace" in str(watched_gpus(recorded(written(tmp_path / "d.csv", long))))
    both = f"{path}@start=2023-11-14T22:13:20Z,period=250ms"
    assert isinstance(watched_gpus(recorded(both)), WatchedGpus)
    assert "has no GPU 7" in str(watched_gpus(recorded(f"{both},gpu=7")))
    (chosen,) = watched_gpus(recorded(f"{both},gpu=1")).devices.values()  # type: ignore[union-attr]
    assert chosen["power"].values.tolist() == [60.0, 80.0]


def test_energy_over_a_gap_is_not_known() -> None:
    import numpy as np

    from augment.core.records import Samples
    from augment.facts.gpu.hardware_samples import energy_meter

    ts = np.array([*range(0, 1000, 100), 100_000, 100_100], np.int64)
    meter = energy_meter({"power": Samples("0", "power", "W", ts, np.full(len(ts), 1e9))})
    assert meter.used(np.array([0]), np.array([100_100])) == (pytest.approx(1000.0), 1000)
    counter = Samples("0", "energy", "J", np.array([0, 10, 20]), np.array([5.0, 7.0, 1.0]))
    meter = energy_meter({"energy": counter})
    assert meter.used(np.array([0]), np.array([20])) == (2.0, 10)


def test_cost(tmp_path: Path) -> None:
    trace = recorded(written(tmp_path / "smi.csv", SMI))
    rows = rows_of(cost.analyze(trace, price="3.6"), "part", "time_ns", "cost_per_million_steps", "cost_per_hour")
    assert rows[0] == ("step", 80_000_000.0, pytest.approx(80.0), pytest.approx(3.6))
    assert rows[1][0] == "busy"
    assert rows[1][1] + rows[2][1] == rows[0][1]
    assert rows_of(cost.analyze(trace), "cost_per_hour")[0] == (1.0,)
    for price in ("x", "-1", "inf", "nan"):
        with pytest.raises(UsageError):
            cost.analyze(trace, price=price)


def test_a_file_for_all_ranks_of_a_node(tmp_path: Path) -> None:
    path = written(tmp_path / "dmon_0.txt", DMON)
    evidence = Evidence({"telemetry": f"{tmp_path}/dmon_*.txt@start=2023-11-14T22:13:20Z,period=250ms"})
    evidence.check(trace_count=2)
    for rank in range(2):
        trace = trace_of(*work(rank))
        tracks = tuple(structs.replace(track, rank=rank) for track in trace.tracks)
        (samples,) = watched_gpus(evidence.added_to(trace.changed(tracks=tracks))).devices.values()  # type: ignore[union-attr]
        assert samples["power"].gpu == str(rank)
    assert "nothing says which" in str(watched_gpus(evidence.added_to(trace_of(*work(1)))))
    written(tmp_path / "dmon_1.txt", DMON)
    with pytest.raises(UsageError, match="several files"):
        read_telemetry(f"{tmp_path}/dmon_*.txt")
    assert path


def work(rank: int) -> list[Any]:
    """A kernel on the device of this number, of a trace of rank 0."""
    launched = call("cudaLaunchKernel", DAY, DAY + 9, correlation=1)
    return [launched, kernel("k", DAY, DAY + 10**8, device=rank, correlation=1)]


def test_alone(tmp_path: Path) -> None:
    augmented = analyse(written(tmp_path / "smi.csv", f"{SMI}at noon, 0, 300.00 W, 1410 MHz, 100 %, Active, 2 MiB\n"))
    assert augmented.verdict.text[:3] == [
        "The telemetry has 1 GPU, 3 samples each in 200 ms.", "Power is 100 to 300 W, 233 in the mean.",
        "The SM clock is 1,410 to 1,980 MHz, 1,600 in the mean.",
    ]  # fmt: skip
    both = written(tmp_path / "two.csv", f"{SMI}2023/11/14 23:13:20.200, 1, 1.00 W, 9 MHz, 0 %, Active, 2 MiB\n")
    assert analyse(both).verdict.text[0] == "The telemetry has 2 GPUs, up to 3 samples each in 200 ms."
    outcome = augmented.outcomes["telemetry"]
    assert {(row.device, row.quantity, row.sample_count) for row in outcome.rows} >= {("0", "power", 3)}
    assert [(each.code, each.count) for each in outcome.diagnostics] == [("telemetry_unreadable", 1)]


BITS = (
    b"", b",", b"\n", b"1e999", b"nan", b"-1", b'"', b"[" * 500, b"\xff\xfe", b"9" * 40, b"W", b"2023/99/99 99:99:99",
    b"#Entity x",
)  # fmt: skip


@pytest.mark.parametrize("name", ["SMI", "DMON", "JSON"])
def test_damaged_files_raise_nothing_else(tmp_path: Path, name: str) -> None:
    metric = {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "3"}, "values": [[1_700_000_000, "100"]]}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [metric]}}
    text = {"SMI": SMI, "DMON": DMON, "JSON": json.dumps(answer)}[name].encode()
    for seed in range(300):
        chance, pieces = random.Random(seed), bytearray(text)
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(len(pieces))
            pieces[place : place + chance.randint(0, 20)] = chance.choice(BITS)
        try:
            read_telemetry(written(tmp_path / "a", bytes(pieces)))
        except AugmentError:
            continue


@pytest.mark.parametrize("path", sorted(SHARED.glob("*.gz")), ids=lambda path: path.name)
def test_real_files_are_read_or_refused_in_a_line(path: Path) -> None:
    if "nsys_stats" in path.name:
        with pytest.raises(UnknownFormat, match="no column of power"):
            read_telemetry(str(path))
        return
    assert (begins_as(str(path)) or kind_of(b"")).name == "telemetry"  # type: ignore[union-attr]
    assert isinstance(read_telemetry(str(path)), Telemetry)


def test_real_power_agrees_with_plain_python() -> None:
    path = SHARED / "nanogpt_8gpu_iso_baseline.csv.gz"
    if not path.exists():
        pytest.skip("no shared telemetry here")
    powers: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines()):
        at = datetime.datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00")).timestamp()
        powers[row["gpu_index"]].append((at, float(row["power_W"])))
    begin = int(powers["3"][0][0] + 60)
    joules = sum(
        (b - a) * (p + q) / 2
        for (a, p), (b, q) in zip(powers["3"], powers["3"][1:], strict=False)
        if a >= begin and b <= begin + 60
    )
    inside = [at for at, _ in powers["3"] if begin <= at <= begin + 60]
    start, end = round(inside[0] * 1e9), round(inside[-1] * 1e9)
    trace = trace_of(call("cudaLaunchKernel", start, start + 5, correlation=1), kernel("k", start, end, correlation=1))
    trace = augment.with_telemetry(trace, f"{path}@gpu=3")
    assert rows_of(energy.analyze(trace), "energy_joules")[0][0] == pytest.approx(joules, rel=1e-6)

"""Calls of the operating system, as Nsight Systems records them, say what the host does in its gaps.

Proven on simulated jobs with planted calls, on a real report by SQL of its own, and by what may not change.
"""

from __future__ import annotations

import gzip
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from augment.core.trace import Category, Trace
from augment.diagnosis.rule import Answer, Found
from augment.diagnosis.rules import host_gaps
from augment.facts.waits.gap_causes import KERNEL_DELAY_NS, device_gaps, device_idle
from augment.readers import read
from recorder_tables import common, global_id, kineto, nsys_tables, write_sqlite
from said import advice_of, title_of
from simulator import JobOptions, simulate

EVIDENCE = Path(__file__).parents[2] / ".." / "shared" / "evidence" / "nsys"
PAUSES = JobOptions(ranks=1, steps=4, layers=2, work=0.5, collectives="none", faults=("pauses",))


def problem_of(answer: Answer) -> Found:
    assert isinstance(answer, Found)
    return answer


def reports(folder: Path, name: str, share: float, elsewhere: bool = False) -> tuple[Trace, Trace]:
    """A simulated job whose host pauses, as nsys has it; without and with calls that take this share of each pause."""
    trace = common(kineto(simulate(PAUSES, folder)[0][0]))
    trace["baseTimeNanoseconds"] = 0
    tables = nsys_tables(trace)
    plain = read(str(write_sqlite(tables, folder / "plain.sqlite")))
    pauses = problem_of(host_gaps.check(plain)).spans
    base = min(row[0] for row in tables["CUPTI_ACTIVITY_KIND_RUNTIME"][1]) - int(
        plain.events.ts[plain.events.category == Category.CUDA_RUNTIME].min()
    )
    pid, tid = next((each["pid"], each["tid"]) for each in trace["traceEvents"] if each.get("cat") == "cpu_op")
    columns, strings = tables["StringIds"]
    thread = global_id(pid, tid + elsewhere)
    rows = [
        (start + base, start + base + int(share * (end - start)), 27, thread, 99_999, 0, 0, None)
        for start, end in zip(pauses.start.tolist(), pauses.end.tolist(), strict=True)
    ]
    tables["StringIds"] = columns, [*strings, (99_999, name)]
    tables["OSRT_API"] = "start, end, eventClass, globalTid, nameId, returnValue, nestingLevel, callchainId", rows
    return plain, read(str(write_sqlite(tables, folder / "with.sqlite")))


@pytest.mark.parametrize(("name", "share", "title", "advice"), [
    ("read", 0.8, "launching work, in read", "Record with torch.profiler's with_stack=True"),
    ("pthread_cond_timedwait", 0.8, "launching work, in pthread_cond_timedwait", "The host waits here"),
    ("read", 0.3, "launching work, outside recorded operators", "Record with torch.profiler's with_stack=True"),
])  # fmt: skip
def test_planted_calls_are_told(tmp_path: Path, name: str, share: float, title: str, advice: str) -> None:
    plain, recorded = reports(tmp_path, name, share)
    before, answer = (problem_of(host_gaps.check(each)) for each in (plain, recorded))
    assert answer.saved_ns == before.saved_ns, "what is saved depends on nothing of it"
    assert np.array_equal(answer.spans.start, before.spans.start)
    assert title_of(answer).endswith(title)
    assert advice_of(answer, recorded).startswith(advice)
    (shown,) = answer.seen.calls  # type: ignore[attr-defined]
    assert shown == f"{name} ({share * 100:.0f} %)"
    idle = device_idle(recorded, KERNEL_DELAY_NS)[0]
    drawn = idle.evidence["os_call"]
    assert {drawn.values[code] for code in drawn.codes.tolist() if code >= 0} == {name}  # type: ignore[union-attr]


def test_calls_of_other_threads_say_nothing(tmp_path: Path) -> None:
    plain, recorded = reports(tmp_path, "poll", 1.0, elsewhere=True)
    before, answer = (problem_of(host_gaps.check(each)) for each in (plain, recorded))
    assert (title_of(answer), answer.saved_ns, answer.confidence) == (
        title_of(before), before.saved_ns, before.confidence
    )  # fmt: skip
    assert not answer.seen.calls  # type: ignore[attr-defined]


def test_a_real_report_by_sql(tmp_path: Path) -> None:
    """The longest call of each idle stretch, by SQL on the report itself."""
    path = EVIDENCE / "nsys2024.6.2_a100_llm_nvtx.sqlite.gz"
    if not path.is_file():
        pytest.skip(f"no report at {path}")
    report = tmp_path / "report.sqlite"
    report.write_bytes(gzip.decompress(path.read_bytes()))
    trace = read(str(report))
    answer = problem_of(host_gaps.check(trace))
    database = sqlite3.connect(f"file:{report}?mode=ro", uri=True)
    ((first,),) = database.execute("select min(start) from CUPTI_ACTIVITY_KIND_RUNTIME")
    shift = first - int(trace.events.ts[trace.events.category == Category.CUDA_RUNTIME].min())
    threads = {track.tid: index for index, track in enumerate(trace.tracks)}
    spent: Counter[str] = Counter()
    lanes = trace.events.track[np.maximum(answer.spans.row, 0)]
    of_lane = {index: tid for tid, index in threads.items()}
    main = Counter(lanes[answer.spans.row >= 0].tolist()).most_common(1)[0][0]
    for start, end, row, lane in zip(answer.spans.start, answer.spans.end, answer.spans.row, lanes, strict=True):
        tid = of_lane[int(lane) if row >= 0 else main]
        calls = database.execute(
            "select s.value, sum(min(o.end, ?2) - max(o.start, ?1)) ns from OSRT_API o join StringIds s"
            " on s.id = o.nameId where o.start < ?2 and o.end > ?1 and (o.globalTid & 0xFFFFFF) = ?3 group by 1"
            " order by ns desc limit 1",
            (int(start) + shift, int(end) + shift, tid),
        ).fetchall()
        for name, ns in calls:
            spent[name] += ns
    database.close()
    whole = int((answer.spans.end - answer.spans.start).sum())
    shown = [f"{name} ({100 * ns / whole:.0f} %)" for name, ns in spent.most_common(3) if 10 * ns >= whole]
    assert list(answer.seen.calls) == shown  # type: ignore[attr-defined]
    assert len(device_gaps(trace)) == 1

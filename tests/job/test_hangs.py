"""Who holds up a job that hangs: simulated jobs of which it is known, recorded ones, and what must not matter."""

from __future__ import annotations

import copy
import json
import math
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from simulated_hangs import BEGIN_NS, Fault, Job, run

from augment.job.verdict.hangs import APART_NS, Hang, judge, report_on_dumps, title
from augment.readers.attachments.flight_recorder import dump_of, read_dump
from augment.results.report.health import lines_of, on_dumps
from augment.results.report.page import page
from augment.results.report.sections import Document

SHARED = Path(__file__).parents[3] / "shared" / "evidence"
SHAPES = [(2, 1, 1), (1, 1, 4), (2, 2, 2), (2, 4, 2), (4, 1, 2), (1, 4, 1), (2, 2, 1), (1, 2, 4)]
CAUSES = ["host", "device", "no_dump", "mismatch", "order", "group"]

Documents = list[dict[str, Any]]


def judged(documents: Documents) -> Hang:
    return judge([dump_of(document, f"dump_{rank}") for rank, document in enumerate(documents) if document])


def blamed(hang: Hang) -> set[tuple[str, tuple[int, ...]]]:
    return {(culprit.cause, culprit.ranks) for culprit in hang.culprits}


def faulty(cause: str, seed: int) -> tuple[Job, list[Fault], Documents]:
    """A job with one fault, or two of them that the ranks may reach; which operation it is depends on the cause."""
    rng = random.Random(seed)
    job = Job(*rng.choice(SHAPES))
    count = 2 if cause in ("host", "device", "no_dump") and job.ranks > 4 and seed % 3 == 0 else 1
    faults = []
    for rank in rng.sample(range(job.ranks), count):
        program = job.programs[rank]
        places = range(len(program) - 1)
        if cause in ("mismatch", "group"):
            places = [place for place in places if program[place].peer is None]
        elif cause == "order":
            pairs = [(place, program[place], program[place + 1]) for place in places]
            places = [place for place, a, b in pairs if a.peer is None and b.peer is None and a.group != b.group]
        if places:
            faults.append(Fault(cause, rank, rng.choice(places)))
    return job, faults, run(job, faults, rng)


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("seed", range(40))
def test_who_holds_up_a_simulated_job(cause: str, seed: int) -> None:
    _, faults, documents = faulty(cause, seed)
    hang = judged(documents)
    at_fault = {fault.rank for fault in faults}
    sure = [culprit for culprit in hang.culprits if culprit.confidence != "low"]
    named = {rank for culprit in sure for rank in culprit.ranks}
    if not hang.waiting:
        assert not hang.culprits
    elif cause in ("mismatch", "order"):  # of two ranks that differ either may be wrong
        assert at_fault <= named
        assert {culprit.cause for culprit in sure} == {cause}
    elif cause == "group":
        assert not sure
        assert at_fault <= {rank for culprit in hang.culprits for rank in culprit.ranks}
    else:  # a second rank may be held up by the first before its own fault
        assert named <= at_fault
        assert {culprit.cause for culprit in sure} <= {cause}
        assert named or at_fault & {rank for culprit in hang.culprits for rank in culprit.ranks}


@pytest.mark.parametrize("causes", [*combinations(["host", "device", "no_dump", "mismatch", "group"], 2)])
def test_who_holds_up_a_job_with_two_faults(causes: tuple[str, str]) -> None:
    """Either may hide the other; none makes a third rank look guilty, but for one that may be what differs."""
    for seed in range(8):
        rng = random.Random(seed)
        job = Job(*rng.choice([shape for shape in SHAPES if math.prod(shape) > 4]))
        faults = []
        for cause, rank in zip(causes, rng.sample(range(job.ranks), 2), strict=True):
            alike = cause in ("mismatch", "group")
            places = [at for at, each in enumerate(job.programs[rank][:-1]) if each.peer is None or not alike]
            faults.append(Fault(cause, rank, rng.choice(places)))
        hang = judged(run(job, faults, rng))
        at_fault = {cause: {fault.rank for fault in faults if fault.cause == cause} for cause in CAUSES}
        for culprit in hang.culprits:
            ranks = set(culprit.ranks)
            either = culprit.cause == "mismatch" and ranks & at_fault["mismatch"]
            assert culprit.confidence == "low" or either or ranks <= at_fault[culprit.cause]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_that_runs_to_its_end_does_not_hang(shape: tuple[int, int, int]) -> None:
    assert not judged(run(Job(*shape), [], random.Random(1))).culprits
    assert report_on_dumps([], "x")["rows"] == []


@pytest.mark.parametrize("cause", CAUSES)
def test_what_must_not_matter(cause: str) -> None:
    _, _, documents = faulty(cause, 12)
    known = blamed(judged(documents))
    shifted = copy.deepcopy(documents)
    for rank, document in enumerate(shifted):
        for entry in document.get("entries", ()):
            entry["time_created_ns"] += rank * 3_000_000_000
    assert blamed(judged(shifted)) == known
    as_json = json.loads(json.dumps(documents))  # no frames, numbers of the status are strings
    for document in as_json:
        for entry in document.get("entries", ()):
            del entry["frames"]
        for status in document.get("pg_status", {}).values():
            status.update({name: str(value) for name, value in status.items()})
    assert blamed(judged(as_json)) == known
    dumps = [dump_of(document, f"dump_{rank}") for rank, document in enumerate(documents) if document]
    assert blamed(judge(dumps[::-1])) == known


GROUPS = {"world": range(8), "left": range(4), "right": range(4, 8)}


def entry(
    group: str, number: int, *, done: bool = False, kind: str = "all_reduce", elements: int = 8
) -> dict[str, Any]:
    return {
        "pg_id": [*GROUPS].index(group),
        "process_group": (group, group),
        "collective_seq_id": number,
        "profiling_name": f"nccl:{kind}",
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "is_p2p": " " in kind,
    }


def by_hand(*entries_of_ranks: list[dict[str, Any]] | None) -> Documents:
    """The dumps of ranks 0 to 7, each with entries in the order in which it enqueued them; None for no dump."""
    documents: Documents = []
    for rank, entries in enumerate(entries_of_ranks):
        status: dict[str, dict[str, int]] = {}
        for place, each in enumerate(entries or ()):
            each["time_created_ns"] = BEGIN_NS + place
            if not each["is_p2p"]:
                last = {"last_enqueued_collective": each["collective_seq_id"]}
                last |= {"last_completed_collective": each["collective_seq_id"]} if each["state"] == "completed" else {}
                status[str(each["pg_id"])] = status.get(str(each["pg_id"]), {}) | last
        config = {name: {"desc": name, "ranks": str([*ranks])} for name, ranks in GROUPS.items() if rank in ranks}
        documents.append({} if entries is None else {"entries": entries, "pg_config": config, "pg_status": status})
    return documents


def renumbered(documents: Documents, numbers: list[int]) -> Documents:
    """The same job with rank ``numbers[rank]`` for each rank, its entries in another order."""
    other: Documents = [{} for _ in documents]
    for rank, document in enumerate(documents):
        if document:
            config = {
                name: {**group, "ranks": str([numbers[member] for member in GROUPS[name]])}
                for name, group in document["pg_config"].items()
            }
            other[numbers[rank]] = {**document, "pg_config": config, "entries": document["entries"][::-1]}
    return other


def first(number: int, *, of: str = "world", done: bool = False, **more: Any) -> list[dict[str, Any]]:
    """Number ``number`` of a group, and all before it from 98 on, which are completed."""
    return [*(entry(of, each, done=True, **more) for each in range(98, number)), entry(of, number, done=done, **more)]


def ahead(count: int, **more: Any) -> list[dict[str, Any]]:
    """Number 100 of all ranks, and ``count`` more that the host ran ahead."""
    return [*first(100, **more), *(entry("world", 101 + each, **more) for each in range(count))]


#: of ranks 0 to 3: the host of rank 2 does not enqueue the last of all of them
LATE = [first(100, of="left"), first(100, of="left"), first(99, of="left", done=True), first(100, of="left")]
HUNG = "The job has hung since 2025-10-09 08:53:20.000 UTC"
BY_HAND: dict[str, tuple[Documents, set[tuple[str, tuple[int, ...]]], list[str]]] = {
    "the host of one got less far": (
        by_hand(*[ahead(2)] * 2, ahead(1), *[ahead(2)] * 5),
        {("group", (0, 1, 2, 3, 4, 5, 6, 7))},
        [
            f"{HUNG}. The dumps do not tell which rank holds it up.",
            (
                "Ranks 0-7 wait in all_reduce number 100 of world [0-7]: one of them, or the link between them, is "
                "at fault."
            ),
        ],
    ),
    "a device one collective behind": (
        by_hand(*[first(101)] * 5, ahead(1), *[first(101)] * 2),
        {("device", (5,))},
        [
            f"{HUNG}: rank 5 holds it up; 7 other ranks (0-4, 6-7) wait.",
            (
                "Rank 5 stopped on the device: it has not completed 1 collective that others completed, the first "
                "all_reduce number 100 of world [0-7]."
            ),
        ],
    ),
    "a device behind in broadcasts, which members may complete one by one": (
        by_hand(*[first(102, kind="broadcast")] * 5, ahead(9, kind="broadcast"), *[first(102, kind="broadcast")] * 2),
        {("device", (5,))},
        [
            f"{HUNG}. The dumps do not tell which rank holds it up.",
            (
                "Rank 5 may have stopped on the device: it has not completed 2 collectives that others completed, "
                "the first broadcast number 100 of world [0-7]."
            ),
        ],
    ),
    "a late host, and a group that is stuck": (
        by_hand(*LATE, *[first(100, of="right")] * 4),
        {("host", (2,)), ("group", (4, 5, 6, 7))},
        [
            f"{HUNG}: rank 2 holds it up; 3 other ranks (0-1, 3) wait.",
            "Rank 2 stopped on the host: it never enqueued all_reduce number 100 of left [0-3].",
            (
                "Ranks 4-7 wait in all_reduce number 100 of right [4-7]: one of them, or the link between them, is "
                "at fault."
            ),
        ],
    ),
    "a late host, and a rank that is gone": (
        by_hand(*LATE, *[first(100, of="right")] * 2, None, first(100, of="right")),
        {("host", (2,)), ("no_dump", (6,))},
        [
            f"{HUNG}: rank 2 holds it up; 3 other ranks (0-1, 3) wait.",
            "Rank 2 stopped on the host: it never enqueued all_reduce number 100 of left [0-3].",
            (
                "No dump of rank 6 was read: its process may be gone. Others wait for it, first in all_reduce "
                "number 100 of right [4-7]."
            ),
        ],
    ),
    "a late host, and a rank without a dump that nobody else waits for": (
        by_hand(*[first(100)] * 2, first(99, done=True), *[first(100)] * 4, None),
        {("host", (2,))},
        [
            f"{HUNG}: rank 2 holds it up; 6 other ranks (0-1, 3-6) wait.",
            "Rank 2 stopped on the host: it never enqueued all_reduce number 100 of world [0-7].",
            "No dump of rank 7 was read.",
        ],
    ),
    "a part of the dumps, all completed": (
        by_hand(*[None] * 3, first(99, done=True), *[None] * 4),
        set(),
        [
            "No collective hangs in 1 dump: every operation there is completed.",
            "No dump of ranks 0-2 and 4-7 was read (of another node?): name the folders of all nodes.",
        ],
    ),
    "all completed, of one nothing is known": (
        by_hand(*[first(99, done=True)] * 7, []),
        set(),
        [
            "No collective hangs in 7 dumps: every operation there is completed.",
            "The dump of rank 7 lists no operation.",
        ],
    ),
    "nothing recorded": (
        by_hand(*[[]] * 8),
        set(),
        ["Whether a collective hangs cannot be told.", "The dumps of ranks 0-7 list no operation."],
    ),
    "one node of two": (
        by_hand(*[first(100)] * 4, *[None] * 4),
        set(),
        [
            (
                "4 ranks of 8 had something left to complete at the time of the dump. Who holds the job up cannot "
                "be told from 4 dumps."
            ),
            "No dump of ranks 4-7 was read (of another node?): name the folders of all nodes.",
        ],
    ),
    "three ranks of eight are gone, of which others wait for messages, too": (
        by_hand(
            *[[entry("world", 0, kind=f"send {rank}->{rank + 5}"), *first(100)] for rank in range(3)],
            *[first(100)] * 2,
            *[None] * 3,
        ),
        {("no_dump", (5, 6, 7))},
        [
            f"{HUNG}: ranks 5-7 hold it up; 5 other ranks (0-4) wait.",
            (
                "No dump of ranks 5-7 was read: their processes may be gone. Others wait for them, first in "
                "all_reduce number 100 of world [0-7]."
            ),
        ],
    ),
    "a late host, and ranks that differ": (
        by_hand(*LATE, *[first(100, of="right")] * 3, first(100, of="right", elements=16)),
        {("host", (2,)), ("mismatch", (7,))},
        [
            f"{HUNG}: ranks 2 and 7 hold it up; 6 other ranks (0-1, 3-6) wait.",
            (
                "Rank 7 differs in all_reduce number 100 of right [4-7]: rank 7 has 16 elements; the others have 8 "
                "elements."
            ),
            "Rank 2 stopped on the host: it never enqueued all_reduce number 100 of left [0-3].",
        ],
    ),
    "one enqueues the collectives of two groups in another order": (
        by_hand(*[[entry("world", 100), entry("left", 100)]] * 3, [entry("left", 100)], *[[entry("world", 100)]] * 4),
        {("order", (0, 1, 2, 3))},
        [
            f"{HUNG}: ranks 0-3 hold it up; 4 other ranks (4-7) wait.",
            "Ranks 0-3 wait for each other: they enqueued the collectives of their groups in different order.",
        ],
    ),
    "half of the ranks have another size": (
        by_hand(*[first(100, elements=100 << rank % 2) for rank in range(8)]),
        {("mismatch", tuple(range(8)))},
        [
            f"{HUNG}: ranks 0-7 hold it up.",
            (
                "Ranks 0-7 differ in all_reduce number 100 of world [0-7]: ranks 0, 2, 4 and 6 have 100 elements; "
                "ranks 1, 3, 5 and 7 have 200 elements."
            ),
        ],
    ),
    "another collective": (
        by_hand(*[first(100)] * 6, [*first(99, done=True), entry("world", 100, kind="_all_gather_base")], first(100)),
        {("mismatch", (6,))},
        [
            f"{HUNG}: rank 6 holds it up; 7 other ranks (0-5, 7) wait.",
            (
                "Rank 6 differs in all_gather_base number 100 of world [0-7]: rank 6 has all_gather_base; the "
                "others have all_reduce."
            ),
        ],
    ),
    "a host whose side of messages is missing": (
        by_hand([], [entry("world", 0, kind="send 1->2")], [], [entry("world", 0, kind="recv 3<-2")], [], [], [], []),
        {("host", (2,))},
        [
            f"{HUNG}: rank 2 holds it up; 2 other ranks (1, 3) wait.",
            "Rank 2 stopped on the host: it never enqueued recv from rank 1 in world.",
            "The dumps of ranks 0, 2 and 4-7 list no operation.",
        ],
    ),
    "a late host, and who would wait for it next": (
        by_hand(*LATE, *[[*first(100, of="right"), entry("world", 100)]] * 4),
        {("host", (2,)), ("group", (4, 5, 6, 7))},
        [],
    ),
    "ranks whose members wait for a late host are no hang of their own": (
        by_hand(*[[*each, entry("world", 100)] for each in LATE[:2]], LATE[2], LATE[3], *[first(100)] * 4),
        {("host", (2,))},
        [],
    ),
    "one completed less than the others, which do not wait": (
        by_hand(*[[entry("world", 100, done=True)]] * 7, first(100)),
        set(),
        [
            (
                "1 rank of 8 had something left to complete at the time of the dump, but no rank waits for another: "
                "no collective hangs as far as the dumps tell."
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_jobs_made_by_hand(name: str) -> None:
    documents, culprits, sentences = BY_HAND[name]
    verdict = report_on_dumps([dump_of(each, f"dump_{rank}") for rank, each in enumerate(documents) if each], "x")[
        "verdict"
    ]
    assert verdict == (sentences or verdict)
    hang = judged(documents)
    assert blamed(hang) == culprits
    waits = {each.rank: {*each.waits_for} for each in hang.waiting}
    alike = [each for each in hang.culprits if each.cause in ("group", "order")]
    assert all(waits[rank] & {*each.ranks} for each in alike for rank in each.waiting)
    for numbers in ([7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1, 7, 2, 4, 5]):
        other = {(cause, tuple(sorted(numbers[rank] for rank in ranks))) for cause, ranks in culprits}
        assert blamed(judged(renumbered(documents, numbers))) == other


def test_few_dumps_name_nobody() -> None:
    _, _, documents = faulty("host", 5)
    hang = judged([document if rank == 0 else {} for rank, document in enumerate(documents)])
    assert all(culprit.cause != "no_dump" for culprit in hang.culprits)


def test_dumps_of_two_folders_are_of_one_job_if_their_groups_are() -> None:
    documents = by_hand(*[first(100)] * 2, first(99, done=True), *[first(100)] * 5)
    dumps = [dump_of(each, f"/{'ab'[rank // 4]}/dump_{rank}") for rank, each in enumerate(documents)]
    (report,) = on_dumps(dumps)
    assert report["input"] == "job a and b, 8 dumps of the flight recorder"
    assert blamed(judge(dumps)) == {("host", (2,))}
    again = [dump_of(each, f"/again/dump_{rank}") for rank, each in enumerate(documents)]
    assert len([*on_dumps([*dumps, *again])]) == 2


def test_dumps_of_another_day_are_of_another_run() -> None:
    """Whose dump is a day older left none now, and the ranks of a folder are not late by a day."""
    documents = by_hand(*[first(100)] * 3, [entry("world", 5, done=True)], *[first(100)] * 4)
    documents[3]["entries"][0]["time_created_ns"] -= 24 * APART_NS
    said = report_on_dumps([dump_of(each, f"/a/{rank}") for rank, each in enumerate(documents)], "a")["verdict"]
    assert said[1].startswith("No dump of rank 3 was read: its process may be gone.")
    assert said[-1] == "What rank 3 dumped is of an earlier run, and left out."
    documents = by_hand(*(ahead(5) for _ in range(4)), *[first(100)] * 4)
    for entry_of_day in (each for document in documents[:4] for each in document["entries"]):
        entry_of_day["time_created_ns"] -= 24 * APART_NS
    assert len([*on_dumps([dump_of(each, f"/{rank // 4}/{rank}") for rank, each in enumerate(documents)])]) == 2


def test_what_differs_is_told_briefly_and_by_what_was_recorded() -> None:
    """Sizes of all ranks but two; types of which some ranks list none; a batch whose last entry a rank has not."""
    sizes = by_hand(*[[entry("world", 100, elements=rank)] for rank in (9, 9, 1, 2, 3, 4, 5, 6)])
    (culprit,) = judged(sizes).culprits
    assert title(culprit).endswith("rank 4 has 3 elements; the others have 9 elements; 3 ranks something else")
    types = by_hand(*([entry("world", 100)] for _ in range(8)))
    types[0]["entries"][0]["input_dtypes"] = []
    assert {each.cause for each in judged(types).culprits} == {"group"}
    parts = [[entry("world", 100), entry("world", 100, kind="coalesced")] for _ in range(7)]
    assert "mismatch" not in {each.cause for each in judged(by_hand(*parts, [entry("world", 100)])).culprits}


@pytest.mark.parametrize(
    ("folder", "cause"), [("lock_gil_2nd", "host"), ("gpu_error_1st", "device")], ids=["gil", "device"]
)
def test_the_recorded_hangs(folder: str, cause: str) -> None:
    """Against the log of what was injected."""
    path = SHARED / "flight_recorder" / folder
    if not path.is_dir():
        pytest.skip(f"there is no {path}")
    injected = json.loads((path / "fault_injection.log").read_text().splitlines()[0].partition(": ")[2])
    dumps = [read_dump(file) for file in path.glob("_dump_*")]
    assert len(dumps) == 16
    assert blamed(judge(dumps)) == {(cause, tuple(sorted(injected)))}
    report = report_on_dumps(dumps, folder)
    (row,) = report["rows"]  # of both, as they stopped at one place
    assert (row["confidence"], row["ranks"]) == ("high", sorted(injected))
    assert f"ranks {injected[0]} and {injected[1]} hold it up; 14 other ranks (0-" in report["verdict"][0]
    assert report["verdict"][1:] == [f"{row['title']}."]
    waiting = {"host": "ranks 3, 6, 8-9 and 11-14", "device": "ranks 0, 2, 8, 10, 13 and 15"}[cause]
    assert row["evidence"][0] == f"waiting for them directly: {waiting}"
    alike = [line for line in row["evidence"] if "oldest not completed" in line]
    assert len({line.partition(": ")[2] for line in alike}) == len(alike)
    assert "".join(lines_of([report], markdown=False, brief=False)).count(row["title"]) == 1
    assert page(Document("a", "job", report["verdict"], (), (), report["rows"])).count(row["title"]) == 1


def test_a_job_of_gloo_that_ran_to_its_end() -> None:
    """Rank 1 dumped before its last barrier was completed; JSON and pickle say the same."""
    path = SHARED / "joint_gloo_2rank"
    if not path.is_dir():
        pytest.skip(f"there is no {path}")
    for ending in ("pickle", "json.gz"):
        hang = judge([read_dump(path / f"fr_trace_{rank}.{ending}") for rank in (0, 1)])
        assert not hang.culprits
        assert [wait.rank for wait in hang.waiting] == [1]

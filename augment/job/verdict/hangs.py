"""Which rank holds up a job that hangs, from the flight recorder's dumps of its ranks.

After a hang of minutes whatever could complete has completed. So the oldest operation that a rank has not completed
waits for somebody: for members of its group that have not enqueued it, or that have, but are held up by an older
operation of their own. Followed from rank to rank this ends at who waits for nobody:

- a rank without anything of its own left to complete, which others wait for: its *host* does not go on;
- a rank that has not completed what other members have: its *device* does not go on, while its host ran ahead;
- a rank of a group without a dump: its process may be gone;
- members that all enqueued the same oldest operation, which none completes: nothing recorded tells whose fault it is;
- ranks that wait for each other in two groups: they enqueue in different order.

A job may hang at several places: ranks that wait for nobody of these belong to another.

"The rank missing from the oldest unfinished collective" alone would name victims of a device that died: their hosts
wait for it, while its own host runs ahead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from augment.core.records import DumpedGroup, DumpedOperation, RankDump
from augment.core.text import counted, listed, ranges_text, runs, time
from augment.facts.source.recorded_times import instant

Cause = Literal["host", "device", "no_dump", "group", "order", "mismatch"]
Form = tuple[str, int, tuple[str, ...]]  #: the kind, elements and types of a collective, as far as they must be equal
Key = tuple[str, int]  #: a collective: the name of its group, and its number in it
#: by the numbers that a rank counts its groups by, of each number the descriptions of the groups, as keys in order
Numbered = dict[frozenset[int], dict[int, dict[str, None]]]

#: kinds that no member completes before every member runs them
TOGETHER = {"all_reduce", "_all_gather_base", "all_gather", "_reduce_scatter_base", "reduce_scatter", "all_to_all",
            "all_to_all_base", "barrier", "allreduce_coalesced", "all_gather_into_tensor_coalesced",
            "reduce_scatter_tensor_coalesced", "ALLGATHER", "ALLREDUCE"}  # fmt: skip
#: kinds whose members must give equally many elements
EQUAL_SIZES = {"all_reduce", "_all_gather_base", "_reduce_scatter_base"}
_OTHER_SIDE = {"send": "recv", "recv": "send"}
APART_NS = 3_600_000_000_000  #: more than groups wait: what lies so far apart is of two runs
MOST_SIDES = 3  #: of what differs in a collective that are told, beside that of most ranks
MOST_GONE = 8  #: ranks, those of a node, that may be gone: more without a dump are nodes that were not collected
WITHOUT_DUMP = 0.5  #: of the ranks: where as many lack a dump, and more than one, not all dumps were collected


class Waiting(Struct, frozen=True):
    """The oldest operation that a rank has not completed, and the ranks that it waits for."""

    rank: int
    operation: DumpedOperation
    group: DumpedGroup
    waits_for: tuple[int, ...]


class Culprit(Struct, frozen=True):
    """Ranks that hold up others, and why: those of one cause in one operation, which groups of one name may each have.

    ``since_ns``: Unix time of the first operation that is held up; None if nothing waits for them.
    ``operation``: of ``host`` and ``no_dump``, what others wait in (of a message to ``host``, its own side); else the
    oldest of its own that is not completed.
    ``differences``: of ``mismatch``, the ranks of each form that members enqueued, that of most ranks last.
    ``ran_ahead``: of ``device``, how many operations other members completed and this rank did not, or the most of it.
    """

    cause: Cause
    ranks: tuple[int, ...]
    confidence: Literal["high", "medium", "low"]
    since_ns: int | None
    operation: DumpedOperation | None
    groups: tuple[DumpedGroup, ...]
    waiting: tuple[int, ...]
    ran_ahead: int = 0
    differences: tuple[tuple[tuple[int, ...], Form], ...] = ()


class Hang(Struct, frozen=True):
    """What holds a job up. Without culprits no collective is known to hang.

    ``silent``: ranks whose dump neither lists an operation, nor says that all are completed.
    """

    dumps: int
    without_dump: tuple[int, ...]
    silent: tuple[int, ...]
    culprits: tuple[Culprit, ...]
    waiting: tuple[Waiting, ...]

    @property
    def ranks(self) -> int:
        """The ranks of the job, as far as the dumps name them."""
        return self.dumps + len(self.without_dump)

    @property
    def is_collected(self) -> bool:
        """Whether so many ranks dumped that one without a dump stands out."""
        return len(self.without_dump) < max(min(WITHOUT_DUMP * self.ranks, MOST_GONE + 1), 2)


def judge(dumps: Sequence[RankDump]) -> Hang:
    """Who holds up the job that wrote ``dumps``, one a rank."""
    return _Judge(dumps).hang()


class _Judge:
    def __init__(self, dumps: Sequence[RankDump]) -> None:
        self.dumps = {dump.rank: dump for dump in sorted(dumps, key=_last)}  # of several of a rank, the newest
        self.groups: dict[str, DumpedGroup] = {}
        for dump in dumps:
            for name, group in dump.groups.items():
                if len(group.ranks) >= len(self.groups.get(name, DumpedGroup("", "", ())).ranks):
                    self.groups[name] = group
        self.pending = {
            rank: [operation for operation in dump.operations if not operation.done]
            for rank, dump in self.dumps.items()
        }
        # the descriptions of groups by their number, of ranks that count by the same numbers
        numbered: Numbered = defaultdict(lambda: defaultdict(dict))
        for dump in self.dumps.values():
            descriptions = numbered[frozenset(dump.progress)]
            for operation in dump.operations:
                descriptions[operation.group_number][self.groups[operation.group].description] = None
        self.enqueued = {rank: self._last_of_groups(dump, 0, numbered) for rank, dump in self.dumps.items()}
        self.completed = {rank: self._last_of_groups(dump, 1, numbered) for rank, dump in self.dumps.items()}
        self._without: dict[Key, set[int]] = {}
        #: by the rank that has not enqueued them, of each other rank the operations that wait for it, oldest first
        self.held_up: dict[int, dict[int, list[DumpedOperation]]] = defaultdict(lambda: defaultdict(list))
        for rank, operations in self.pending.items():
            for operation in operations:
                for member in self._missing(operation, rank) - {rank}:
                    self.held_up[member][rank].append(operation)

    def _last_of_groups(self, dump: RankDump, which: Literal[0, 1], numbered: Numbered) -> dict[str, int]:
        """The number of the last collective that a rank enqueued, or completed, of each group.

        The rank's status counts by its own numbers of groups. Which group that is its entries tell; without entries,
        those of a rank with the same numbers, by the description of the group.
        """
        last: dict[str, int] = {}
        for operation in dump.operations:
            if not operation.is_message and (which == 0 or operation.done):
                last[operation.group] = max(last.get(operation.group, -1), operation.sequence)
        names = {operation.group_number: operation.group for operation in dump.operations}
        for number, descriptions in numbered[frozenset(dump.progress)].items():
            for description in filter(None, descriptions):
                same = [name for name, group in dump.groups.items() if group.description == description]
                if len(same) == 1:
                    names.setdefault(number, same[0])
        for number, name in names.items():
            if number in dump.progress:
                last[name] = max(last.get(name, -1), dump.progress[number][which])
        return last

    def hang(self) -> Hang:
        members = set[int]().union(*(dump.members for dump in self.dumps.values()))
        oldest = {rank: operations[0] for rank, operations in self.pending.items() if operations}
        waits = {rank: self._waits_for(rank, operation, oldest) for rank, operation in oldest.items()}
        waiting = tuple(
            Waiting(rank, operation, self.groups[operation.group], tuple(sorted(waits[rank])))
            for rank, operation in sorted(oldest.items())
        )
        standing, devices = [*self._standing(members - set(oldest))], [*self._devices(waits)]
        sure = [each for each in (*devices, *standing) if each.cause in ("device", "host") and each.confidence != "low"]
        tiers = [[*self._mismatches()], sure]
        silent = (rank for rank, dump in self.dumps.items() if not (dump.operations or _completed(dump)))
        without_dump = tuple(sorted(members - set(self.dumps)))
        hang = Hang(len(self.dumps), without_dump, tuple(sorted(silent)), (), waiting)
        if hang.is_collected:
            tiers += [[each for each in standing if each.cause == "no_dump"], standing]
        tiers += [[*self._circles(oldest, waits)], [*self._stuck_groups(oldest, waits)], devices]
        culprits, rest = list[Culprit](), waiting
        for tier in tiers:  # another hang is one of ranks that do not wait for those of the first
            more = [each for each in tier if not culprits or held_up_by([each], rest)]
            if culprits:  # who left no dump may itself wait for them
                more = [replace(each, confidence="low") if each.cause == "no_dump" else each for each in more]
            culprits += more
            explained = held_up_by(culprits, waiting)
            rest = tuple(each for each in waiting if each.rank not in explained)
        return replace(hang, culprits=tuple(_joined(culprits)))

    def _standing(self, idle: set[int]) -> Iterator[Culprit]:
        """Those of the ranks with nothing to complete, or without a dump, that others wait for.

        Messages do not tell whether the other side was never enqueued or is completed there: where one rank waits for
        messages alone, either of the two may be at fault.
        """
        for rank in sorted(idle & self.held_up.keys()):
            held = self.held_up[rank]
            every = [operation for operations in held.values() for operation in operations]
            first = min(every, key=lambda operation: (operation.is_message, operation.created_ns))
            collectives = {operation.group for operation in every if operation.peer is None}
            either = not collectives and len(held) == 1
            has_dump, known = rank in self.dumps, collectives & self.enqueued.get(rank, {}).keys()
            missing = first
            if has_dump and first.is_message and not either:  # its own side of the message
                by = next(by for by, operations in held.items() if any(each is first for each in operations))
                missing = replace(first, kind=_OTHER_SIDE[first.kind], peer=by)
            yield Culprit(
                "no_dump" if not has_dump else "group" if either else "host",
                tuple(sorted({rank, *held})) if either and has_dump else (rank,),
                "low" if either else "high" if known else "medium" if not (has_dump and collectives) else "low",
                min(operation.created_ns for operation in every),
                missing,
                (self.groups[first.group],),
                tuple(sorted(held)),
            )

    def _missing(self, operation: DumpedOperation, rank: int) -> set[int]:
        """The members that have not enqueued an operation of ``rank``."""
        if operation.peer is not None:
            answered = any(_answers(other, operation, rank) for other in self.pending.get(operation.peer, ()))
            return set() if answered else {operation.peer}
        key = (operation.group, operation.sequence)
        if key not in self._without:
            self._without[key] = {
                member
                for member in self.groups[operation.group].ranks
                if self.enqueued.get(member, {}).get(operation.group, -1) < operation.sequence
            }
        return self._without[key]

    def _waits_for(self, rank: int, operation: DumpedOperation, oldest: dict[int, DumpedOperation]) -> set[int]:
        """Whom the oldest operation of a rank waits for: who has not enqueued it; else who is held up before it."""
        if missing := self._missing(operation, rank):
            return missing
        if operation.peer is not None:
            return set() if _answers(oldest[operation.peer], operation, rank) else {operation.peer}
        here = (operation.group, operation.sequence)
        return {
            member
            for member in self.groups[operation.group].ranks
            if member in oldest
            and self.completed[member].get(operation.group, -1) < operation.sequence
            and (oldest[member].is_message or (oldest[member].group, oldest[member].sequence) != here)
        }

    def _devices(self, waits: dict[int, set[int]]) -> Iterator[Culprit]:
        """Ranks that have not completed collectives which other members have completed: surely at fault where these are
        of a kind that all members complete together. One alone may have been dumped a moment earlier, unless somebody
        waits for the rank."""
        furthest = {
            name: nlargest(
                2, ((self.completed[rank].get(name, -1), rank) for rank in group.ranks if rank in self.dumps)
            )
            for name, group in self.groups.items()
        }
        waited_for = set[int]().union(*waits.values())
        for rank, operations in sorted(self.pending.items()):
            behind = [
                operation
                for operation in operations
                if not operation.is_message
                and any(last >= operation.sequence for last, member in furthest[operation.group] if member != rank)
            ]
            together = [operation for operation in behind if operation.kind in TOGETHER]
            held = self.held_up.get(rank, {})
            if len(together) > 1 or (behind and (held or rank in waited_for)):
                first = (together or behind)[0]
                yield Culprit(
                    "device",
                    (rank,),
                    "high" if len(together) > 1 else "medium" if together else "low",
                    first.created_ns,
                    first,
                    (self.groups[first.group],),
                    tuple(sorted(held)),
                    len(together or behind),
                )

    def _mismatches(self) -> Iterator[Culprit]:
        """Collectives that members enqueued with another kind, size or type than most; the first of each group."""
        sides: dict[Key, dict[int, DumpedOperation]] = defaultdict(dict)
        for rank, dump in self.dumps.items():
            for operation in dump.operations:
                if not operation.is_message:
                    sides[operation.group, operation.sequence].setdefault(rank, operation)  # of a batch the first
        seen: set[str] = set()
        for (name, _), of_rank in sorted(sides.items(), key=lambda side: side[0][1]):
            of_type = all(each.dtypes for each in of_rank.values())
            forms: dict[int, Form] = {
                rank: (each.kind, each.sent, tuple(dict.fromkeys(each.dtypes * of_type)))
                if each.kind in EQUAL_SIZES
                else (each.kind, 0, ())
                for rank, each in of_rank.items()
            }
            if len(set(forms.values())) == 1 or name in seen or all(each.done for each in of_rank.values()):
                continue
            seen.add(name)
            alike: dict[Form, list[int]] = defaultdict(list)
            for rank, form in sorted(forms.items()):
                alike[form].append(rank)
            sides_by_size = sorted(alike.items(), key=lambda side: (len(side[1]), side[1]))
            told_apart = len(sides_by_size[-1][1]) > len(sides_by_size[-2][1])
            ranks = tuple(sorted(set(forms).difference(sides_by_size[-1][1] if told_apart else ())))
            first = of_rank[ranks[0]]
            yield Culprit(
                "mismatch",
                ranks,
                "high" if told_apart and len(forms) > 2 else "medium",
                first.created_ns,
                first,
                (self.groups[name],),
                tuple(sorted(set(forms).difference(ranks))),
                differences=tuple((tuple(ranks), form) for form, ranks in sides_by_size),
            )

    def _circles(self, oldest: dict[int, DumpedOperation], waits: dict[int, set[int]]) -> Iterator[Culprit]:
        """Ranks that wait for each other in different operations."""
        seen = set[int]()
        for begin in sorted(waits):
            path, rank = list[int](), begin
            while rank not in seen and waits.get(rank):
                seen.add(rank)
                path.append(rank)
                rank = min(waits[rank])
            if rank not in path:
                continue
            circle = set(path[path.index(rank) :])
            places = {(oldest[member].group, oldest[member].sequence) for member in circle}
            messages = any(oldest[member].is_message for member in circle)
            if not messages:  # all members of these groups that wait in either
                of_all = set(oldest).intersection(*(self.groups[name].ranks for name, _ in places))
                circle |= {each for each in of_all if (oldest[each].group, oldest[each].sequence) in places}
                seen |= circle
            ranks = tuple(sorted(circle))
            first = oldest[ranks[0]]
            yield Culprit(
                "group" if messages else "order",
                ranks,
                "low" if messages else "medium",
                min(oldest[member].created_ns for member in circle),
                first,
                (self.groups[first.group],),
                waiting_for(circle, waits),
            )

    def _stuck_groups(self, oldest: dict[int, DumpedOperation], waits: dict[int, set[int]]) -> Iterator[Culprit]:
        """Groups whose members all wait in the same operation."""
        stuck: dict[Key, list[int]] = defaultdict(list)
        for rank, operation in oldest.items():
            if not waits[rank]:
                stuck[operation.group, -1 if operation.is_message else operation.sequence].append(rank)
        for (name, sequence), ranks in sorted(stuck.items()):
            others = set(self.groups[name].ranks) & set(self.dumps) - set(ranks)
            if len(ranks) < 2 or (sequence >= 0 and others):
                continue  # completed by the others: dumped a moment later than here
            first = min((oldest[rank] for rank in ranks), key=lambda operation: operation.created_ns)
            rest, group = waiting_for(set(ranks), waits), (self.groups[name],)
            yield Culprit("group", tuple(sorted(ranks)), "low", first.created_ns, first, group, rest)


def waiting_for(ranks: set[int], waits: dict[int, set[int]]) -> tuple[int, ...]:
    """The other ranks that wait directly for one of ``ranks``, by for whom each rank waits."""
    return tuple(sorted(rank for rank, others in waits.items() if rank not in ranks and not ranks.isdisjoint(others)))


def held_up_by(culprits: Sequence[Culprit], waiting: Sequence[Waiting]) -> set[int]:
    """The ranks whose oldest operation waits for ``culprits``, themselves among them, directly or through others."""
    through = {rank for culprit in culprits for rank in culprit.ranks}
    differ = {
        (each.groups[0].name, each.operation.sequence) for each in culprits if each.differences and each.operation
    }
    of = ((each.rank, (each.operation.group, each.operation.sequence)) for each in waiting)
    held = {rank for rank, collective in of if rank in through or collective in differ}
    through |= held
    while more := {each.rank for each in waiting if each.rank not in held and not through.isdisjoint(each.waits_for)}:
        held |= more
        through = more
    return held


def _joined(culprits: Sequence[Culprit]) -> Iterator[Culprit]:
    """Culprits with those of one cause in one operation as one, and all that lack a dump."""
    alike: dict[object, list[Culprit]] = defaultdict(list)
    for number, each in enumerate(culprits):
        where: object = number
        if each.operation and not each.operation.is_message and each.cause in ("host", "device"):
            where = _place(each)
        alike[each.cause, each.cause == "no_dump" or (each.confidence, where)].append(each)
    for every in alike.values():
        first = min(every, key=lambda each: (each.confidence == "low", each.since_ns or 0))
        ranks = tuple(sorted({rank for each in every for rank in each.ranks}))
        yield replace(
            first,
            ranks=ranks,
            since_ns=min((each.since_ns for each in every if each.since_ns is not None), default=None),
            groups=tuple(dict.fromkeys(each.groups[0] for each in every if _place(each) == _place(first))),
            waiting=tuple(sorted({rank for each in every for rank in each.waiting}.difference(ranks))),
            ran_ahead=max(each.ran_ahead for each in every),
        )


def _place(culprit: Culprit) -> tuple[str, int, int | None, str]:
    operation = culprit.operation
    assert operation is not None
    name = culprit.groups[0].description or culprit.groups[0].name
    return operation.kind, operation.sequence, operation.peer, name


def _last(dump: RankDump) -> int:
    """The time of the last operation that a rank enqueued before it dumped."""
    return times_of([dump])[1]


def times_of(dumps: Sequence[RankDump]) -> tuple[int, int]:
    """When the ranks of ``dumps`` enqueued the first and the last operation that they list, Unix time in ns."""
    times = [operation.created_ns for dump in dumps for operation in dump.operations]
    return min(times, default=0), max(times, default=0)


def of_last_run(dumps: Sequence[RankDump]) -> list[RankDump]:
    """Those ``dumps`` that are not of a run that ended long before the others began."""
    kept, ended = list[RankDump](), 0
    for first, last, dump in sorted(
        ((*times_of([each]), each) for each in dumps if each.operations), key=lambda each: each[:2]
    ):
        kept = [dump] if first > ended + APART_NS else [*kept, dump]
        ended = max(ended, last)
    return [*kept, *(each for each in dumps if not each.operations)]


def _completed(dump: RankDump) -> bool:
    """Whether the status of a rank says that it has completed whatever it has enqueued."""
    last = dump.progress.values()
    return all(enqueued <= completed for enqueued, completed in last) and any(each[1] >= 0 for each in last)


def _answers(other: DumpedOperation, message: DumpedOperation, rank: int) -> bool:
    """Whether ``other``, of the peer of a ``message`` of ``rank``, is the peer's side of it."""
    return other.peer == rank and other.group == message.group and other.kind != message.kind


def _different(culprit: Culprit) -> str:
    """``rank 5 has 2,048 elements; the others have 1,024 elements``: of what ranks enqueued what is not equal."""
    kinds, elements, types = (len({form[place] for _, form in culprit.differences}) > 1 for place in range(3))
    sides = list[str]()
    for ranks, (kind, count, dtypes) in (*culprit.differences[:-1][:MOST_SIDES], culprit.differences[-1]):
        what = [f"{count:,} elements"] * elements + [listed(dtypes)] * types
        who = _ranks(ranks) if {*ranks} <= {*culprit.ranks} else "the other" if len(ranks) == 1 else "the others"
        has = "has" if len(ranks) == 1 else "have"
        sides.append(f"{who} {has} {kind.lstrip('_') if kinds else ' of '.join(what)}")
    more = sum(len(ranks) for ranks, _ in culprit.differences[MOST_SIDES:-1])
    return "; ".join(sides) + f"; {counted(more, 'rank')} something else" * (more > 0)


_ADVICE = {
    "host": "Look at the Python stack there (py-spy dump --native): a lock, an exception, a data loader, a "
    "checkpoint, or a branch that the other ranks did not take",
    "device": "Look for Xid errors and lost devices there (nvidia-smi -q, dmesg), and leave the node out",
    "no_dump": "Look at how the process ended (log of the scheduler, out of memory, segmentation fault)",
    "mismatch": "Compare what these ranks do there: another branch, another batch or another data type",
    "order": "Let all ranks enqueue the collectives of different groups in one order",
    "group": "Test the links between them (nccl-tests), and record NCCL_DEBUG=INFO",
}


def report_on_dumps(dumps: Sequence[RankDump], name: str) -> dict[str, Any]:
    """The report of ``augment diagnose`` on the dumps of a job's ranks."""
    kept = of_last_run(dumps)
    earlier = sorted({dump.rank for dump in dumps} - {dump.rank for dump in kept})
    hang = judge(kept)
    what = f"job {name}, {counted(hang.dumps, 'dump')} of the flight recorder"
    times = Counter(rank for rank, _ in {(dump.rank, _last(dump)) for dump in dumps})
    several = sorted(rank for rank, count in times.items() if count > 1)
    newest = [f"Several dumps of {_ranks(several)} are here: the newest is judged."] if several else []
    newest += [f"What {_ranks(earlier)} dumped is of an earlier run, and left out."] if earlier else []
    return {"input": what, "verdict": [*verdict(hang), *newest], "rows": rows(hang), "summary": None}


def verdict(hang: Hang) -> list[str]:
    """What hangs, and since when; who holds it up; what is missing."""
    gone = {rank for culprit in hang.culprits if culprit.cause == "no_dump" for rank in culprit.ranks}
    unknown = []
    if hang.silent:
        dumps, lists = ("dump", "lists") if len(hang.silent) == 1 else ("dumps", "list")
        unknown.append(f"The {dumps} of {_ranks(hang.silent)} {lists} no operation.")
    if lacking := sorted({*hang.without_dump} - gone):
        elsewhere = "" if hang.is_collected else " (of another node?): name the folders of all nodes"
        unknown.append(f"No dump of {_ranks(lacking)} was read{elsewhere}.")
    if not hang.culprits:
        stuck = len(hang.waiting)
        if not stuck and len(hang.silent) == hang.dumps:
            return ["Whether a collective hangs cannot be told.", *unknown]
        if not stuck:
            number = counted(hang.dumps - len(hang.silent), "dump")
            return [f"No collective hangs in {number}: every operation there is completed.", *unknown]
        seen = f"{counted(stuck, 'rank')} of {hang.ranks} had something left to complete at the time of the dump"
        if hang.without_dump or any(waiting.waits_for for waiting in hang.waiting):
            return [f"{seen}. Who holds the job up cannot be told from {counted(hang.dumps, 'dump')}.", *unknown]
        return [f"{seen}, but no rank waits for another: no collective hangs as far as the dumps tell.", *unknown]
    sure = [culprit for culprit in hang.culprits if culprit.confidence != "low"]
    blamed = sorted({rank for culprit in sure for rank in culprit.ranks})
    since = min(culprit.since_ns for culprit in hang.culprits if culprit.since_ns is not None)
    victims = sorted(held_up_by(sure, hang.waiting) - {*blamed})
    verb = "waits" if len(victims) == 1 else "wait"
    others = f"; {counted(len(victims), 'other rank')} ({ranges_text(victims)}) {verb}" if victims else ""
    holds = f": {_ranks(blamed)} {'holds' if len(blamed) == 1 else 'hold'} it up{others}"
    who = holds if blamed else ". The dumps do not tell which rank holds it up"
    sentences = [f"The job has hung since {instant(since)} UTC{who}.", *(f"{title(each)}." for each in hang.culprits)]
    explained = held_up_by(hang.culprits, hang.waiting)
    if rest := [waiting.rank for waiting in hang.waiting if waiting.waits_for and waiting.rank not in explained]:
        sentences.append(f"Who holds {_ranks(rest)} up cannot be told.")
    return [*sentences, *unknown]


def title(culprit: Culprit) -> str:
    """What a culprit does not do, in one sentence without the period."""
    ranks, is_one = _ranks(culprit.ranks).capitalize(), len(culprit.ranks) == 1
    it, them, have, process = (
        ("it", "it", "has", "its process") if is_one else ("they", "them", "have", "their processes")
    )
    where = called(culprit.operation, *culprit.groups) if culprit.operation and culprit.groups else ""
    stopped = "may have stopped" if culprit.confidence == "low" else "stopped"
    if culprit.cause == "host":
        why = f"{where} is in no dump of {them}" if culprit.confidence == "low" else f"{it} never enqueued {where}"
        return f"{ranks} {stopped} on the host: {why}"
    if culprit.cause == "device":
        number = counted(culprit.ran_ahead, "collective")
        missing = f"{number} that others completed" if is_one else f"what others completed (up to {number})"
        return f"{ranks} {stopped} on the device: {it} {have} not completed {missing}, the first {where}"
    if culprit.cause == "no_dump":
        lacking = _ranks(culprit.ranks)
        return f"No dump of {lacking} was read: {process} may be gone. Others wait for {them}, first in {where}"
    if culprit.cause == "mismatch":
        return f"{ranks} {'differs' if is_one else 'differ'} in {where}: {_different(culprit)}"
    if culprit.cause == "order":
        return f"{ranks} wait for each other: they enqueued the collectives of their groups in different order"
    waiting = [rank for rank in culprit.waiting if rank in culprit.ranks] or culprit.ranks  # of a message its side
    fault = f"one of {'them' if len(waiting) == len(culprit.ranks) else ranks.lower()}, or the link between them"
    return f"{_ranks(waiting).capitalize()} {'waits' if len(waiting) == 1 else 'wait'} in {where}: {fault}, is at fault"


def rows(hang: Hang) -> list[dict[str, Any]]:
    """One finding for each culprit."""
    return [
        {
            "rule": "hang",
            "status": "found",
            "severity": "high",
            "title": title(culprit),
            "confidence": culprit.confidence,
            "advice": _ADVICE[culprit.cause],
            "evidence": _evidence(culprit, hang.waiting),
            "in_verdict": True,
            "cause": culprit.cause,
            "ranks": list(culprit.ranks),
            "waiting": list(culprit.waiting),
            "since_ns": culprit.since_ns,
        }
        for culprit in hang.culprits
    ]


def called(operation: DumpedOperation, *groups: DumpedGroup) -> str:
    """``all_to_all number 20947 of EXPERT_MODEL_PARALLEL_GROUP [8-11]``, ``recv from rank 3``."""
    name = groups[0].description or f"group {groups[0].name}"
    if operation.peer is not None:
        direction = "to" if operation.kind == "send" else "from"
        return f"{operation.kind} {direction} rank {operation.peer} in {name}"
    members = listed([f"[{ranges_text(group.ranks)}]" for group in groups])
    return f"{operation.kind.lstrip('_')} number {operation.sequence} of {name} {members}"


def _ranks(ranks: Sequence[int]) -> str:
    spans = [ranges_text(range(first, last + 1)) for first, last in runs(ranks)]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(spans, len(spans))}"


def _evidence(culprit: Culprit, waiting: Sequence[Waiting]) -> list[str]:
    lines, of_culprit = list[str](), set(culprit.ranks)
    them = "it" if len(of_culprit) == 1 else "them"
    first = [each.rank for each in waiting if of_culprit & {*each.waits_for}] or culprit.waiting
    if first:
        lines.append(f"waiting for {them} directly: {_ranks(first)}")
    if later := sorted({*culprit.waiting} - {*first}):
        lines.append(f"would wait for {them} next: {_ranks(later)}")
    operation = culprit.operation
    if operation is not None and operation.frames:
        frame = operation.frames[0]
        lines.append(f"enqueued at {frame.filename}:{frame.line} in {frame.name}")
    if operation is not None and operation.timeout_ms:
        lines.append(f"timeout of the group: {time(operation.timeout_ms * 1e6)}")
    alike = defaultdict[str, list[int]](list)
    for wait in [each for each in waiting if each.rank in first or each.rank in of_culprit]:
        behind = f", held up by {_ranks(wait.waits_for)}" if wait.waits_for else ""
        alike[f"oldest not completed is {called(wait.operation, wait.group)}{behind}"].append(wait.rank)
    return lines + [f"{_ranks(ranks)}: {text}" for text, ranks in [*alike.items()][:4]]

"""Logs of ``NCCL_DEBUG`` (NCCL 2.4 to 2.30, RCCL): communicators, rings and transports, what was tuned, collectives.

Lines may begin with what mpirun, srun or Ray put there, and lines of several processes may be glued together, so each
line is cut at every header ``host:pid:tid [device] NCCL INFO``. A pointer of a communicator is unique in its process
alone. The formats are those of NCCL's src/debug.cc, init.cc, enqueue.cc and graph/ of these versions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from sys import intern

from augment.core.records import Communicator, LoggedCollective, NcclLog, RankConnection, TreeOfRank, Tuned
from augment.errors import UnknownFormat
from augment.readers.containers import bounded_lines
from augment.readers.limits import UNLIMITED, Limits

LONGEST_LINE = 1 << 16  #: bytes; the rest of a line is passed over and counted
MOST_WARNINGS, MOST_HOSTS = 1000, 64  #: as many failures, and as many other warnings; of hosts those with equal pids
MOST_KEPT = 2_000_000  #: messages that say something, and collectives of a job's logs; those after them are counted
_DIGITS = 18  #: of a decimal number below 2**63

#: by NCCL's numbers: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, two of FP8
TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")

_HEADER = re.compile(
    r"(?:(?P<host>[^\s:\[\]()<>]{1,255}):(?P<pid>\d+):(?P<tid>\d+) )?\[(?P<device>-?\d+)\] (?:\d{10,} )?"
    r"(?:(?P<info>NCCL INFO )|(?P<where>\S{1,999}?:\d+) (?:\(\w+\) )?NCCL WARN )"
)
_VERSION = re.compile(r"(NCCL|RCCL) version(?:\s*:)?\s*(\d+\.\d+(?:\.\d+)*)")
_COLLECTIVE = re.compile(
    r"\b(?P<kind>\w+): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+(?: acc \S+)? count (?P<count>\d+) "
    r"datatype (?P<type>\d+) op \d+ root -?\d+ comm (?P<comm>0x[0-9a-f]+) \[nranks="
)
_TUNED = re.compile(
    r"(?:\b(?P<kind>\w+): )?(?<!\d)(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_INIT = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<ranks>\d+) cudaDev (?P<device>\d+)"
    r"(?: nvmlDev \d+)?(?: busId [0-9a-f]+)?.{0,999}?- Init (?P<what>START|COMPLETE)"
)
_ID = re.compile(r" commId (0x[0-9a-f]+)")
_LAYOUT = re.compile(r"comm (?P<comm>0x[0-9a-f]+) rank \d+ nRanks \d+ nNodes (?P<nodes>\d+) localRanks \d+")
_RING = re.compile(r"Channel (\d+)(?:/\d+)? :((?: +\d+)+)\s*$")
_EDGE = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d+)(?:/\d+)? : (?P<from>\d+)(?:\[\w+\])? -> (?P<to>\d+)(?:\[\w+\])? "
    r"(?:\[\w+\] )?via (?P<via>(?:NET/AWS Libfabric|P2P/direct pointer|direct shared memory|\S)\S*)"
)
_TREES = re.compile(r"Trees((?: \[\d+\] [\d/|>-]+)+)")
_TREE = re.compile(r"\[(\d+)\] (-?\d+(?:/-?\d+)*)->(-?\d+)->(-?\d+(?:/-?\d+)*)")
_CHANNELS = re.compile(
    r"(?<!\d)(\d+) coll channels, (?:\d+ collnet channels, )?(?:\d+ nvls channels, )?\d+ p2p channels, \d+ p2p"
)
_SYSTEM = re.compile(r"=== System : max(?:Bw|Width) ([\d.]+)(?: totalBw ([\d.]+))? ===")
_PATTERN = re.compile(
    r"Pattern (?P<pattern>\d+), crossNic \d+, nChannels (?P<channels>\d+), (?:speed|bw) (?P<inside>[\d.]+)/"
    r"(?P<between>[\d.]+), type (?P<type>\w+)/(?P<type_between>\w+)"
)
_TIMINGS = re.compile(r"Init timings(?: - \w+)?: rank (\d+) nranks (\d+) total ([\d.]+)")
_NETWORK = re.compile(r"Using network (.+)")
_ENVIRONMENT = re.compile(r"\b((?:NCCL|RCCL)_\w+) set (?:by environment )?to (.+?)\.?$")
#: warnings that are written where a connection breaks or a call fails, so that the job ends; others may be advice
_FAILURE = re.compile(
    r"Connection closed by remote peer|Got completion .*?with (?:error|status)|async fatal event|Cuda failure"
    r"|Connect to \S+ (?:failed|returned)|Call to (?:recv|send|connect|poll|ibv_(?:modify|poll|post|reg)_\w+)\b.*failed"
    r"|[Ss]ocket (?:recv|send) failed|Failed to execute operation|Could not receive type|no socket interface found"
    r"|Error while (?:creating|attaching to) shared memory|Duplicate GPU detected"
)


def read_nccl_log(path: str, limits: Limits = UNLIMITED, most: int | None = None) -> NcclLog:
    """What NCCL or RCCL logged at ``path``, plain or compressed, among other lines: ``most`` collectives.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: no line is NCCL's.
    """
    log = NcclLog(path)
    reading = _LogReading(log, MOST_KEPT if most is None else most)
    for line, is_cut in bounded_lines(path, LONGEST_LINE, limits):
        log.lines += 1
        log.long_lines += is_cut
        if b"NCCL" in line or b"RCCL" in line:
            try:
                reading.line(line.decode("utf-8", "replace"))
            except ValueError:  # a number of many digits, or with two points
                log.unreadable_lines += 1
    reading.finish()
    if not (log.messages or log.warnings or log.versions):
        raise UnknownFormat(path, "no log of NCCL: no line of it; record one with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=…")
    return log


def identities_in(path: str) -> set[str]:
    """The ids of the communicators (NCCL 2.16 on) in the log at ``path``, of which nothing else is read.

    Raises:
        InputError: the file cannot be read.
    """
    lines = (line.decode("utf-8", "replace") for line, _ in bounded_lines(path, LONGEST_LINE) if b" commId 0x" in line)
    return {each for line in lines if _HEADER.search(line) and _INIT.search(line) for each in _ID.findall(line)}


class _LogReading:
    def __init__(self, log: NcclLog, most: int) -> None:
        self.log, self.most, self.kept, self.has_processes = log, most, 0, False
        self.warned = (set[str](), set[str]())  #: what was warned of by any process, and the failures by who warns
        self.known: dict[tuple[str, int | None, str], int] = {}
        self.hosts: dict[tuple[int | None, str], dict[str, int]] = defaultdict(dict)  #: by process and pointer
        self.latest: dict[tuple[str, int | None, int], int] = {}
        #: the communicator of the last collective on a device: NCCL from 2.22 on connects ranks when they first need it
        self.running: dict[tuple[str, int | None, int], int] = {}
        self.of_device: dict[tuple[str, int | None, int], int] = defaultdict(int)  #: how many began
        #: lines about a communicator that is not known yet: before NCCL 2.18 its beginning is not logged
        self.early: dict[tuple[str, int | None, int], list[str]] = defaultdict(list)

    def line(self, line: str) -> None:
        logged = dict.fromkeys(" ".join(words) for words in _VERSION.findall(line))
        self.log.versions += [version for version in logged if version not in self.log.versions]
        headers = list(_HEADER.finditer(line))
        self.log.messages += sum(header["info"] is not None for header in headers)
        self.log.glued_lines += len(headers) > 1
        for place, header in enumerate(headers):
            end = headers[place + 1].start() if place + 1 < len(headers) else len(line)
            message = line[header.end() : end].rstrip()
            self.has_processes |= header["pid"] is not None
            process = (header["host"] or "", _int(header["pid"]) if header["pid"] else None)
            if header["info"] and self.kept >= MOST_KEPT:
                self.log.left_out += 1
            elif header["info"]:
                self.kept += self.message(process, _int(header["device"]), message)
            else:
                is_failure, message = _FAILURE.search(message) is not None, f"{header['where']} {message}"
                who = f"{process[0]}:{process[1]} " if header["pid"] else ""
                warning, known = f"{who}[{header['device']}] {message}", self.warned[is_failure]
                if (key := warning if is_failure else message) not in known and len(known) < MOST_WARNINGS:
                    known.add(key)
                    self.log.warnings[warning] = is_failure
                self.log.warnings_left_out += key not in known

    def message(self, process: tuple[str, int | None], device: int, text: str) -> bool:
        """Keep what a message says; whether it says anything."""
        log, here = self.log, (*process, device)
        if match := _SYSTEM.search(text):
            log.max_bandwidth = max(log.max_bandwidth or 0.0, float(match[1]))
        if match := _COLLECTIVE.search(text):
            number = _int(match["type"])
            size = _int(match["count"]) * (TYPE_BYTES[number] if number < len(TYPE_BYTES) else 1)
            self.running[here] = self.communicator_at(process, match["comm"])
            if len(log.collectives) >= self.most:
                log.left_out += 1
                return False
            log.collectives.append(LoggedCollective(self.running[here], intern(match["kind"]), size))
        elif match := _TUNED.search(text):
            channels = _int(match["high"]) - _int(match["low"]) + 1 if match["low"] else None
            tuned = Tuned(
                match["kind"] or "",
                _int(match["bytes"]),
                _named(match["algorithm"], ALGORITHMS),
                _named(match["protocol"], PROTOCOLS),
                channels,
            )
            log.tuned[tuned] += 1
            if not log.left_out:  # else it may be of a collective that is
                self._tune(process, tuned)
        elif match := _INIT.search(text):
            self._communicator(process, match, text)
        elif match := _LAYOUT.search(text):
            if (place := self.communicator_at(process, match["comm"])) >= 0:
                log.communicators[place].nodes = _int(match["nodes"])
        elif match := _PATTERN.search(text):
            if int(match["channels"][-9:]):  # without any the pattern is not used
                log.patterns[match["type"], match["type_between"]] += 1
        elif match := _NETWORK.search(text):
            log.networks[match[1]] += 1
        elif match := _ENVIRONMENT.search(text):
            log.environment[match[1]] = match[2]
        elif (index := self.latest.get(here)) is not None and not log.communicators[index].is_complete:
            _add(log.communicators[index], text)
        elif any(pattern.search(text) for pattern in (_EDGE, _RING, _TREES, _CHANNELS, _TIMINGS, _SYSTEM)):
            if index is not None and log.communicators[index].is_begun and not _TIMINGS.search(text):
                index = self.running.get(here, index if self.of_device[here] == 1 else -1)
                if index >= 0:
                    _add(log.communicators[index], text)
                log.unplaced += index < 0
            else:
                self.early[here].append(text)
        else:
            return False
        return True

    def communicator_at(self, process: tuple[str, int | None], pointer: str) -> int:
        """The index of a process' communicator, -1 if unknown; text may be glued to the name of the host."""
        host, pid = process
        if (index := self.known.get((host, pid, pointer))) is not None:
            return index
        hosts = self.hosts.get((pid, pointer), {})
        return next((index for other, index in hosts.items() if host.endswith(other)), -1)

    def _communicator(self, process: tuple[str, int | None], match: re.Match[str], text: str) -> None:
        key, here = (*process, match["comm"]), (*process, _int(match["device"]))
        index = self.known.get(key, -1)
        if match["what"] == "START":
            self.end(here)
        if index < 0 or (match["what"] == "START" and self.log.communicators[index].is_complete):
            index = self.known[key] = len(self.log.communicators)
            self.of_device[here] += 1
            hosts = self.hosts[process[1], match["comm"]]
            if process[0] in hosts or len(hosts) < MOST_HOSTS:
                hosts[process[0]] = index
            self.log.communicators.append(
                Communicator(*process, match["comm"], _int(match["rank"]), _int(match["ranks"]), _int(match["device"]))
            )
        communicator = self.log.communicators[index]
        communicator.is_complete |= match["what"] == "COMPLETE"
        communicator.is_begun |= match["what"] == "START"
        if identity := _ID.search(text):
            communicator.identity = identity[1]
        self.latest[here] = index
        self.end(here)

    def end(self, here: tuple[str, int | None, int]) -> None:
        """Give the lines that wait to the communicator that the device of a process began last."""
        if here in self.latest:
            for text in self.early.pop(here, ()):
                _add(self.log.communicators[self.latest[here]], text)

    def finish(self) -> None:
        """The file has ended."""
        for here in list(self.early):
            self.end(here)
        for (host, pid, device), texts in self.early.items():
            glued = (index for (name, *of), index in self.latest.items() if of == [pid, device] and name.endswith(host))
            if (index := next(glued, -1)) < 0 and pid is None and self.has_processes:
                self.log.cut_lines += len(texts)
                continue
            if index < 0:
                self.log.unnamed.append(Communicator(host, pid, "", -1, -1, device))
            for text in texts:
                _add(self.log.unnamed[-1] if index < 0 else self.log.communicators[index], text)

    def _tune(self, process: tuple[str, int | None], tuned: Tuned) -> None:
        """Give what was tuned to the collectives of the process that it was tuned for: the last ones of the size."""
        for collective in reversed(self.log.collectives[-64:]):
            communicator = self.log.communicators[collective.communicator] if collective.communicator >= 0 else None
            same = communicator is not None and (communicator.host, communicator.pid) == process
            if same and collective.kind == (tuned.kind or collective.kind) and not collective.algorithm:
                collective.algorithm, collective.protocol = tuned.algorithm, tuned.protocol
                collective.channels = tuned.channels
                return


def _add(communicator: Communicator, text: str) -> None:
    """A line about a communicator."""
    if match := _EDGE.search(text):
        communicator.edges[RankConnection(_int(match["from"]), _int(match["to"]), match["via"])] += 1
    elif match := _RING.search(text):
        communicator.rings[_int(match[1])] = tuple(map(_int, match[2].split()))
    elif match := _CHANNELS.search(text):
        if communicator.channels is None:  # said once: another line is that of a communicator whose beginning is lost
            communicator.channels = _int(match[1])
    elif match := _TIMINGS.search(text):
        communicator.init_seconds = float(match[3])
    elif match := _SYSTEM.search(text):
        communicator.max_bandwidth = float(match[1])
    elif match := _TREES.search(text):
        for channel, left, rank, right in _TREE.findall(match[1]):
            # down->rank->up; NCCL 2.4 to 2.6 the other way round, whose down has slashes, too
            down, up = (right, left) if "/" in right else (left, right)
            above, below = None if up == "-1" else _int(up), (_int(each) for each in down.split("/") if each != "-1")
            communicator.trees[_int(channel)] = TreeOfRank(_int(rank), above, tuple(below))


def _named(text: str, names: tuple[str, ...]) -> str:
    """A name, or the name of NCCL's number of it."""
    return names[_int(text)] if text.isdecimal() and _int(text) < len(names) else text


def _int(text: str) -> int:
    """The number that columns hold; ValueError for one of more digits."""
    if len(text) > _DIGITS:
        raise ValueError(text)
    return int(text)

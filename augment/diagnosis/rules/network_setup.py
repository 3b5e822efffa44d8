"""Does NCCL's log show ranks that do not fit each other, or a path between ranks that is slower than the machine has?

From logs of ``NCCL_DEBUG=INFO`` beside the trace (``--nccl-log``), of the trace's communicators: warnings of a
connection that broke or a call that failed; ranks that begin to make a communicator and never end; ranks that enqueue
another collective than the others of their communicator (``COLL``); pairs of ranks of a node that are joined through
the memory of their host (``SHM``), not from device to device; sockets between nodes where InfiniBand, RoCE or a
vendor's plugin is expected; paths between devices of a node through the host's bridge or between sockets (``PHB``,
``SYS``) although others are joined directly; one or two channels between devices that NVLink joins; large collectives
inside a node of which the fastest reaches less than a third of the ``maxBw`` of NCCL's topology (``GRAPH``; durations
of the trace, or of the Inspector); rings for all-reduces of at most 64 KiB among 16 ranks or more (``TUNING``, or the
Inspector); what else NCCL warns of. Settings of the environment that force such a choice are its evidence. Nothing is
predicted: the log does not say what another path would take.

That ranks differ is only said where lost lines are unlikely to be the reason: what a rank enqueues the others never do,
and what follows is equal again; where no majority agrees, this holds for both sides. So a rank that leaves one of many
equal collectives out is not seen here; dumps of the flight recorder tell that.

**What to do**: the advice names the setting, if the log says that the environment has it;
``NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,NET`` shows why NCCL chose so.
"""

from __future__ import annotations

from typing import Literal

from augment import facts
from augment.core import Trace, records, text
from augment.diagnosis import rule

NAME = "network_setup"
Problem = Literal[
    "failures", "unfinished", "differing", "sockets", "host_memory", "host_bridge", "few_channels", "low_bandwidth",
    "rings", "warnings",
]  # fmt: skip
_MEMORY = "SHM"  #: NCCL's transport between ranks of a node that have no peer access
_LEAST_REACHED = 1 / 3  #: of NCCL's maxBw
_ADVICE: dict[Problem, str] = {
    "failures": "Look first at the rank on the other side: a connection also breaks where a process died, and the "
    "first failure by time is often the cause of the others; if all processes live, look at the links, the memory in "
    "/dev/shm and the devices (dmesg)",
    "unfinished": "See whether the processes of all ranks of the group run and reach this call; if they do, whether "
    "they reach each other by the interface of NCCL_SOCKET_IFNAME",
    "differing": "Let all ranks of the group call the same collectives in the same order: look for a branch that "
    "depends on the data or the rank; TORCH_DISTRIBUTED_DEBUG=DETAIL names the call",
    "low_bandwidth": "Measure the links alone with nccl-tests; if they are as slow there, NCCL_DEBUG_SUBSYS=INIT,GRAPH "
    "shows the paths; if not, ranks that wait for each other, or kernels beside them, take the time",
    "rings": "Try NCCL_ALGO=Tree for little data; put small all-reduces together",
    "sockets": "Let NCCL find the network: load the vendor's plugin, mount /dev/infiniband into the container, name "
    "the interface by NCCL_IB_HCA",
    "host_memory": "The log does not say why: nvidia-smi topo -p2p r shows whether the devices have peer access, and "
    "NCCL_P2P_LEVEL=SYS lets NCCL use it between sockets",
    "host_bridge": "Allow peer access: switch ACS off, set NCCL_P2P_LEVEL, place the ranks on devices that are joined",
    "few_channels": "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH shows what limits them: a setting of the environment, or the "
    "topology that NCCL found; nvidia-smi nvlink --status shows links that are down",
    "warnings": "Read the lines of NCCL's log; the first warning is often the cause of those after it",
}
#: the settings that force such a choice
_SHAPE = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE")
_FORCING: dict[Problem, tuple[str, ...]] = {
    "rings": ("NCCL_ALGO",),
    "sockets": ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN"),
    "host_memory": _SHAPE,
    "host_bridge": _SHAPE,
    "few_channels": ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", *_SHAPE),
}


class NetworkSetup(rule.Seen, frozen=True):
    """What the log shows, the gravest first."""

    problems: list[Problem]
    communicator_count: int
    node_count: int
    network: str
    path: str
    pairs: dict[str, int]  #: of ranks, by what joins them
    channel_count: int
    failures: list[str]  #: who warns, where in NCCL, and of what, in the order of the log
    unfinished: tuple[str, int, list[int], list[int]]  #: a communicator's id and size, ranks that begin it, silent ones
    warnings: list[str]  #: the others
    settings: dict[str, str]  #: of the environment
    differing_ranks: list[int]
    has_majority: bool  #: whether most ranks agree on another collective
    differing: list[tuple[str, int]]  #: kind and bytes, the commonest first
    at: str  #: which collective of which communicator
    large: tuple[int, int, float, float]  #: collectives, ranks, the bus bandwidth of the fastest and the topology's
    rings: tuple[int, int, int]  #: all-reduces, the largest one's bytes, ranks

    def title(self, words: text.Words) -> str:
        said: dict[Problem, str] = {
            "failures": f"NCCL warns of a failure: {text.short(self.failures[0], 160) if self.failures else ''}",
            "unfinished": self._unfinished,
            "differing": self._differing,
            "low_bandwidth": "The fastest of {} large collectives of {} ranks inside a node reaches {:.0f} GB/s, and "
            "NCCL's topology has {:.0f}".format(*self.large),
            "rings": f"NCCL runs {self.rings[0]} all-reduces of at most {text.size(self.rings[1])} among "
            f"{self.rings[2]} ranks as rings, of {2 * (self.rings[2] - 1)} steps each",
            "sockets": f"NCCL connects the {self.node_count} nodes over sockets ({self.network})",
            "host_memory": f"NCCL joins {self.pairs_by_memory} of ranks of a node through its host's memory (SHM) and "
            f"{self.pairs.get('P2P', 0) or 'none'} from device to device (P2P)",
            "host_bridge": f"NCCL's path between devices of a node is {self.path}, through the host",
            "few_channels": f"NCCL uses {text.counted(self.channel_count, 'channel')} although NVLink joins devices",
            "warnings": f"NCCL warns: {text.short(self.warnings[0], 120) if self.warnings else ''}",
        }
        return said[self.problems[0]]

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"{text.counted(self.communicator_count, 'NCCL communicator')} over {self.network or 'devices alone'}"

    def advice(self, words: text.Words) -> str:
        problem = self.problems[0]
        forcing = [
            f"{name} (it is {self.settings[name]})"
            for name in _FORCING.get(problem, ())
            if name in self.settings and not (name.endswith("_DISABLE") and self.settings[name] == "0")
        ]
        return f"Unset or correct {text.listed(forcing)} in the environment" if forcing else _ADVICE[problem]

    def evidence(self, words: text.Words) -> list[str]:
        more = [self.title_of(problem) for problem in self.problems[1:]]
        set_to = [f"set by the environment: {name}={value}" for name, value in self.settings.items()]
        return [*more, *set_to, *(text.short(warning, 200) for warning in (*self.failures, *self.warnings)[:3])]

    def title_of(self, problem: Problem) -> str:
        """What is said of a problem that is not the first."""
        return {"failures": text.counted(len(self.failures), "failure"),
                "unfinished": self._unfinished,
                "differing": self._differing,
                "low_bandwidth": "{2:.0f} of {3:.0f} GB/s inside a node".format(*self.large),
                "rings": f"rings for all-reduces of at most {text.size(self.rings[1])}",
                "sockets": "sockets between nodes",
                "host_memory": f"{self.pairs_by_memory} of ranks by SHM",
                "host_bridge": f"path inside a node: {self.path}",
                "few_channels": text.counted(self.channel_count, "channel"),
                "warnings": text.counted(len(self.warnings), "warning")}[problem]  # fmt: skip

    @property
    def pairs_by_memory(self) -> str:
        return text.counted(self.pairs.get(_MEMORY, 0), "pair")

    @property
    def _unfinished(self) -> str:
        identity, size, begun, silent = self.unfinished
        who, others = (f"rank{'s' * (len(ranks) > 1)} {text.ranges_text(ranks)}" for ranks in (begun, silent))
        what = f"communicator {identity}" if identity else "a communicator"
        without = f"; it has no line of {others}" if silent else ""
        return f"NCCL's log does not say that {what} of {size} ranks became complete on {who}{without}"

    @property
    def _differing(self) -> str:
        ranks = text.listed([str(rank) for rank in self.differing_ranks])
        calls = [f"{kind} of {text.size(moved)}" for kind, moved in self.differing]
        if self.has_majority:
            who = f"Rank {ranks} enqueues" if len(self.differing_ranks) == 1 else f"Ranks {ranks} enqueue"
            return f"{who} {text.listed(calls[1:])} where the others enqueue {calls[0]}, as {self.at}"
        return f"Ranks {ranks} enqueue different collectives, {text.listed(calls)}, as {self.at}"


def check(trace: Trace) -> rule.Answer:
    """Look at the communicators of the trace's process."""
    setup = facts.collectives.network(trace)
    if setup is None:
        return rule.NotApplicable("no log of NCCL (NCCL_DEBUG=INFO) is given with --nccl-log")
    slow = [each for each in setup.reached if each.best_gbps < _LEAST_REACHED * each.max_gbps]
    shown: dict[Problem, bool] = {
        "failures": bool(setup.failures),
        "unfinished": setup.unfinished is not None,
        "differing": setup.differing is not None,
        "sockets": setup.node_count > 1 and "socket" in setup.network.lower(),
        "host_memory": _MEMORY in setup.paths,
        "host_bridge": setup.path in ("PHB", "SYS", "NODE") and setup.joins_directly,
        "few_channels": setup.joins_directly and 0 < setup.channel_count <= 2,
        "low_bandwidth": bool(slow),
        "rings": setup.rings is not None,
        "warnings": bool(setup.warnings),
    }
    problems = [problem for problem, is_there in shown.items() if is_there]
    differing, rings, unfinished = setup.differing, setup.rings, setup.unfinished
    seen = NetworkSetup(
        problems,
        setup.communicator_count,
        setup.node_count,
        setup.network,
        setup.path,
        setup.paths,
        setup.channel_count,
        list(setup.failures),
        (unfinished.communicator, unfinished.size, list(unfinished.ranks), list(unfinished.silent))
        if unfinished
        else ("", 0, [], []),
        list(setup.warnings),
        setup.settings,
        list(differing.ranks) if differing else [],
        differing is not None and differing.has_majority,
        list(differing.collectives) if differing else [],
        f"collective {differing.place + 1} of communicator {differing.communicator}" if differing else "",
        (slow[0].count, slow[0].ranks, slow[0].best_gbps, slow[0].max_gbps) if slow else (0, 0, 0.0, 0.0),
        (rings.count, rings.most_bytes, rings.ranks) if rings else (0, 0, 0),
    )
    if not problems:
        return rule.Fine(seen)
    is_sure = problems[0] == "sockets" or (problems[0] == "differing" and seen.has_majority)
    is_likely = problems[0] in ("failures", "unfinished", "differing", "host_memory", "few_channels")
    sure: rule.Confidence = "high" if is_sure else "medium" if is_likely else "low"
    is_grave = problems[0] in ("failures", "unfinished", "differing", "sockets")
    return rule.Found(seen, rule.NOWHERE, sure, severity="warning" if is_grave else "info")


def sentences_alone(trace: Trace) -> list[str]:
    """What records of collectives say without a trace: how NCCL joins the ranks, what is wrong with that, and the
    collectives that take most of the records; empty without such records."""
    setup, joined = facts.collectives.network(trace), facts.collectives.joined_records(trace)
    said: list[str] = []
    attached = trace.context.attached(records.NcclLogs)
    if setup is not None:
        where = f" on {text.counted(setup.node_count, 'node')}" if setup.node_count > 1 else ""
        network = f"; its network is {setup.network}" if setup.network else ""
        path = f", its slowest path inside a node {setup.path}" if setup.path else ""
        if attached:
            count = setup.communicator_count
            known = any(log.messages for log in attached.logs)
            lacks = "lacks the beginning of its communicators" if known else "has no communicator: set NCCL_DEBUG=INFO"
            made = f"has {text.counted(count, 'communicator')}" if count else lacks
            pairs = [f"{way} ({text.counted(count, 'pair')})" for way, count in setup.paths.items()]
            joins = f"; ranks are joined by {text.listed(pairs)}" if pairs else ""
            said.append(f"NCCL's log {made}{where}{network}{path}{joins}")
        answer = check(trace)
        if isinstance(answer, rule.Found) and isinstance(seen := answer.seen, NetworkSetup):
            words = text.words_of("nvidia")
            said += [seen.title(words), seen.advice(words)]
            said += [f"NCCL warns, too: {text.short(warning, 200)}" for warning in seen.failures[1:3]]
            more = [seen.title_of(problem) for problem in seen.problems[1:]]
            said += [f"Beside that: {text.listed(more)}"] if more else []
    if joined:
        count = sum(len(each.records) for each in joined)
        once = setup.collective_count if setup and all(each.recorder == "nccl_log" for each in joined) else count
        of = f"{text.counted(count, 'record')} of" if once < count else "records of"
        kinds = dict.fromkeys(each.key[1] for each in sorted(joined, key=lambda each: -len(each.records)))
        said.append(f"There are {of} {text.counted(once, 'collective')}: {text.listed(list(kinds))}")
    if attached and (count := sum(log.left_out for log in attached.logs)):
        said.append(f"NCCL's logs have {text.counted(count, 'more message')} than are kept, so less could be judged")
    return [f"{sentence}." for sentence in said]

"""Does NCCL's log show a path between ranks that is slower than the machine has?

From logs of ``NCCL_DEBUG=INFO`` beside the trace (``--nccl-log``), of the trace's communicators: sockets between nodes
where InfiniBand, RoCE or a vendor's plugin is expected; paths between devices of a node through the host's bridge or
between sockets (``PHB``, ``SYS``) although others are joined directly; one or two channels between devices that NVLink
joins; what NCCL warns of. Settings of the environment that force such a choice are its evidence. Nothing is predicted:
the log does not say what another path would take.

**What to do**: the advice names the setting; ``NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET`` shows why NCCL chose so.
"""

from __future__ import annotations

from typing import Literal

from augment import facts
from augment.core import text
from augment.core.trace import Trace
from augment.diagnosis import rule

NAME = "network_setup"
Problem = Literal["sockets", "host_bridge", "few_channels", "warnings"]
_ADVICE: dict[Problem, str] = {
    "sockets": "Let NCCL find the network: unset NCCL_IB_DISABLE and NCCL_NET, load the vendor's plugin, mount "
    "/dev/infiniband into the container, name the interface by NCCL_IB_HCA",
    "host_bridge": "Allow peer access: switch ACS off, set NCCL_P2P_LEVEL, place the ranks on devices that are joined",
    "few_channels": "Unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS, which limit what the links carry",
    "warnings": "Read the lines of NCCL's log; the first warning is often the cause of those after it",
}


class NetworkSetup(rule.Seen, frozen=True):
    """What the log shows, the gravest first."""

    problems: list[Problem]
    communicator_count: int
    node_count: int
    network: str
    path: str
    channel_count: int
    warnings: list[str]
    settings: list[str]

    def title(self, words: text.Words) -> str:
        said: dict[Problem, str] = {
            "sockets": f"NCCL connects the {self.node_count} nodes over sockets ({self.network})",
            "host_bridge": f"NCCL's path between devices of a node is {self.path}, through the host",
            "few_channels": f"NCCL uses {text.counted(self.channel_count, 'channel')} although NVLink joins devices",
            "warnings": f"NCCL warns: {text.short(self.warnings[0], 120) if self.warnings else ''}",
        }
        return said[self.problems[0]]

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"{text.counted(self.communicator_count, 'NCCL communicator')} over {self.network or 'devices alone'}"

    def advice(self, words: text.Words) -> str:
        return _ADVICE[self.problems[0]]

    def evidence(self, words: text.Words) -> list[str]:
        more = [self.title_of(problem) for problem in self.problems[1:]]
        set_to = [f"set by the environment: {setting}" for setting in self.settings]
        return [*more, *set_to, *(text.short(warning, 200) for warning in self.warnings[:3])]

    def title_of(self, problem: Problem) -> str:
        """What is said of a problem that is not the first."""
        return {"sockets": "sockets between nodes", "host_bridge": f"path inside a node: {self.path}",
                "few_channels": text.counted(self.channel_count, "channel"),
                "warnings": text.counted(len(self.warnings), "warning")}[problem]  # fmt: skip


def check(trace: Trace) -> rule.Answer:
    """Look at the communicators of the trace's process."""
    setup = facts.collectives.network(trace)
    if setup is None:
        return rule.NotApplicable("no log of NCCL (NCCL_DEBUG=INFO) is given with --nccl-log")
    problems: list[Problem] = []
    if setup.node_count > 1 and "socket" in setup.network.lower():
        problems.append("sockets")
    if setup.path in ("PHB", "SYS", "NODE") and setup.joins_directly:
        problems.append("host_bridge")
    if setup.joins_directly and 0 < setup.channel_count <= 2:
        problems.append("few_channels")
    if setup.warnings:
        problems.append("warnings")
    seen = NetworkSetup(
        problems, setup.communicator_count, setup.node_count, setup.network, setup.path, setup.channel_count,
        list(setup.warnings), list(setup.settings),
    )  # fmt: skip
    if not problems:
        return rule.Fine(seen)
    sure: rule.Confidence = "high" if problems[0] == "sockets" else "medium" if problems[0] == "few_channels" else "low"
    return rule.Found(seen, rule.NOWHERE, sure, severity="warning" if problems[0] == "sockets" else "info")


def sentences_alone(trace: Trace) -> list[str]:
    """What records of collectives say without a trace: how NCCL joins the ranks, what is wrong with that, and the
    collectives that take most of the records; empty without such records."""
    setup, joined = facts.collectives.network(trace), facts.collectives.joined_records(trace)
    said: list[str] = []
    if setup is not None:
        where = f" on {text.counted(setup.node_count, 'node')}" if setup.node_count > 1 else ""
        network = f"; its network is {setup.network}" if setup.network else ""
        path = f", its slowest path inside a node {setup.path}" if setup.path else ""
        made = text.counted(setup.communicator_count, "communicator")
        said.append(f"NCCL's log has {made}{where}{network}{path}")
        answer = check(trace)
        if isinstance(answer, rule.Found):
            words = text.words_of("nvidia")
            said += [answer.seen.title(words), answer.seen.advice(words)]
    if joined:
        records = sum(len(each.records) for each in joined)
        kinds = dict.fromkeys(each.key[1] for each in sorted(joined, key=lambda each: -len(each.records)))
        said.append(f"There are records of {text.counted(records, 'collective')}: {text.listed(list(kinds))}")
        said.append("augment show lists them by group, kind and size (collective_records)")
    return [f"{sentence}." for sentence in said]

"""Logs of ``TORCH_TRACE`` (PyTorch 2.3 to 2.15): what was compiled, when, for how long, why again, and graph breaks.

A record is a line of glog's form that ends in JSON, and the indented lines after it are its payload
(torch/_logging/_internal.py: ``trace_structured``). Its own time has neither year nor zone; the events of Chrome's form
in payloads have Unix times. Keys decide what a record is; others are passed over. Also what Inductor writes of the
origin of its kernels, which is in such logs or in files of its debug folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from augment.core import records
from augment.core.source_code import CodeLine, innermost_line, lines_of
from augment.errors import UnknownFormat
from augment.readers.attachments import files_at
from augment.readers.containers import at_least, bounded_lines, open_text
from augment.readers.limits import UNLIMITED, Limits

LONGEST_LINE = 1 << 20  #: bytes; a record with a longer line is passed over and counted
LONGEST_PAYLOAD = 1 << 26
MOST_FILES = 10_000  #: of a folder
LONGEST_TEXT = 500  #: of a reason
STACKS = "inductor_provenance_tracking_kernel_stack_traces"
_GRAPH = "after_post_grad_graph"
_MADE_OF = ("inductor_provenance_tracking_node_mappings", "inductor_triton_kernel_to_post_grad_nodes")
_PREFIX = re.compile(rb"\[[^\]]{1,40}\]: ?")  #: with the rank, or what torchrun puts before each line
_HEAD = re.compile(rb"[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d{6} (?:\d{1,20} )?\S{1,4096}?:\d{1,9}\] (\{.*)")
_OF_FRAME = re.compile(r"(?:^|/)-?_(\d{1,9})_(\d{1,9})_\d{1,9}[/.]")  #: of tlparse's folders
_AT = re.compile(r"Graph break in user code at (.{1,4096}):(\d{1,9})")
_WHY = re.compile(r"(?:^|\n)(?:Graph Break Reason: )?([^\n]{1,999})\n\s*Explanation: ([^\n]{1,999})")
_WHY_BEFORE = re.compile(r"(?:Reason|Unsupported): ([^\n]{1,999})")
_CONDITION = re.compile(r"(?:\d{1,9}/\d{1,9}: )?(?:- )?(.*)")
_PLACE = re.compile(r"([^\s:#]{1,4096}):(\d{1,9}) in (\S{1,999})\s*$")
_AHEAD = "compile_fx_aot"  #: the event around a compilation of AOTInductor
_CACHE = re.compile(r"(?:fx_graph|aotautograd|autograd)_cache_(?:hit|miss|bypass)")


def read_compile_log(path: str, limits: Limits = UNLIMITED) -> records.CompileLog:
    """The compiler's log at ``path``, plain or compressed. Records that are no JSON are counted.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: no line is a record.
    """
    log = records.CompileLog(path)
    reading = _CompileReading(log)
    for record, payload in _records(path, limits):
        log.records += 1
        try:
            reading.record(msgspec.json.decode(record), payload)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):  # another's keys
            log.unreadable_records += 1
    if log.records == log.unreadable_records:
        raise UnknownFormat(path, "no log of TORCH_TRACE: no line of it is a record")
    for compilation, span in reading.stated:
        if not compilation.spans:
            compilation.spans.append(span)
    for compilation in log.compilations:
        compilation.spans.sort(key=lambda span: span.start_ns)
    return log


def _records(path: str, limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    """Each record, and its payload without the indentation; of a text that is too long, nothing that can be read."""
    record, lines, size = b"", list[bytes](), 0
    for line, is_cut in bounded_lines(path, LONGEST_LINE, limits):
        line = line[prefix.end() :] if (prefix := _PREFIX.match(line)) else line
        if line.startswith(b"\t"):
            size += len(line)
            if size <= LONGEST_PAYLOAD:
                lines.append(line[1:])
        elif head := _HEAD.match(line):
            if record:
                yield record, b"\n".join(lines)
            record, lines, size = b"" if is_cut else head[1], [], 0
    if record:
        yield record, b"\n".join(lines)


class _CompileReading:
    def __init__(self, log: records.CompileLog) -> None:
        self.log, self.files = log, dict[int, str]()
        self.latest: dict[str, records.Compilation] = {}
        self.nodes: dict[str, tuple[dict[str, records.GraphNode], frozenset[str]]] = {}  #: of the last graph of each id
        self.open: dict[tuple[str, Any], list[records.CompileSpan]] = {}  #: spans that have begun, by id and thread
        #: by metrics, where there are no events
        self.stated: list[tuple[records.Compilation, records.CompileSpan]] = []

    def record(self, content: dict[str, Any], payload: bytes) -> None:
        if "str" in content:
            text, number = content["str"]
            self.files[int(number)] = str(text)
        if isinstance(content.get("rank"), int) and self.log.rank is None:
            self.log.rank = content["rank"]
        autograd, number = content.get("compiled_autograd_id"), records.AHEAD_OF_TIME
        if "frame_id" in content:
            number = f"{content['frame_id']}/{content['frame_compile_id']}"
            number = number if autograd is None else f"!{int(autograd)}/{number}"
        if "chromium_event" in content:
            self.event(number, msgspec.json.decode(payload))
        elif "dynamo_start" in content:
            of = self.compilation(number, begins=not content.get("attempt"))
            if (frames := content["dynamo_start"].get("stack")) and of.line is None:
                last = frames[-1]
                of.line = CodeLine(self.files.get(last["filename"], "?"), int(last["line"]), str(last["name"]))
        elif "compilation_metrics" in content:
            of = self.compilation(number, begins=number == records.AHEAD_OF_TIME)
            self.metrics(of, content["compilation_metrics"])
        elif "artifact" in content and (number != records.AHEAD_OF_TIME or number in self.latest):
            self.artifact(number, str(content["artifact"]["name"]), payload)

    def compilation(self, number: str, *, begins: bool = False) -> records.Compilation:
        """The compilation with this id that goes on; another one if it ``begins`` and the last one is finished, as
        after ``torch._dynamo.reset()``."""
        if number not in self.latest or (begins and self.latest[number].is_finished):
            self.latest[number] = records.Compilation(number)
            self.log.compilations.append(self.latest[number])
        return self.latest[number]

    def event(self, number: str, event: dict[str, Any]) -> None:
        name, phase, at = str(event["name"]), event["ph"], event.get("ts")
        if phase == "B":
            begun = self.open.setdefault((number, event.get("tid")), [])
            if number == records.AHEAD_OF_TIME and not begun and not name.startswith(_AHEAD):
                return  # of no frame and of no compilation: what loads modules, tunes kernels
            begun.append(records.CompileSpan(name, _ns(at), 0))
            if name.startswith(("dynamo", _AHEAD)) and len(begun) == 1:
                self.compilation(number, begins=True)
        elif phase == "E":
            begun = self.open.get((number, event.get("tid")), [])
            while begun and begun[-1].name != name:  # whose end was not written
                begun.pop()
            if begun:
                span = begun.pop()
                span.end_ns = _ns(at)
                if not begun and span.end_ns >= span.start_ns:
                    self.compilation(number).spans.append(span)
        elif _CACHE.fullmatch(name):
            self.compilation(number).caches.append(name)

    def metrics(self, of: records.Compilation, metrics: dict[str, Any]) -> None:
        of.is_finished = True
        if name := metrics.get("co_name"):
            line = int(metrics.get("co_firstlineno") or 0)
            of.line = CodeLine(str(metrics.get("co_filename") or "?"), line, str(name))
        if metrics.get("fail_type"):
            reason = str(metrics.get("fail_reason")).replace(":\n", ": ")  # "backend='inductor' raised:\nRuntimeError"
            of.failure = f"{metrics['fail_type']}: {_first(reason)}"[:LONGEST_TEXT]
        taken = _ns(_number(metrics.get("entire_frame_compile_time_s")) * 1e6)
        of.stated_ns = taken or _ns(_number(metrics.get("dynamo_cumulative_compile_time_us")))
        if of.compile_id == records.AHEAD_OF_TIME and metrics.get("start_time") and metrics.get("end_time_us"):
            taken = _ns(_number(metrics["end_time_us"]) - _number(metrics["start_time"]) * 1e6)
            of.stated_ns = taken
        if taken and metrics.get("start_time"):
            start = _ns(_number(metrics["start_time"]) * 1e6)
            self.stated.append((of, records.CompileSpan("dynamo", start, start + of.stated_ns)))
        said = [_first(str(reason)) for reason in metrics.get("restart_reasons") or ()]
        if not of.breaks:
            of.breaks += [records.GraphBreak(reason[:LONGEST_TEXT]) for reason in said if "graph_break" in reason]

    def artifact(self, number: str, name: str, payload: bytes) -> None:
        if name == STACKS:
            self.log.graphs.append(records.GraphOrigins(number, _lines(msgspec.json.decode(payload))))
        if name == _GRAPH:
            self.nodes[number] = graph_nodes(payload.decode("utf-8", "replace"))
        elif name in _MADE_OF and number in self.nodes:
            mapping = msgspec.json.decode(payload)
            mapping = mapping.get("cppCodeToPost", {}) if name == _MADE_OF[0] else mapping
            made_of = {str(kernel): tuple(map(str, nodes)) for kernel, nodes in mapping.items()}
            nodes, results = self.nodes.pop(number)
            self.log.graphs.append(records.GraphOrigins(number, {}, nodes, results, made_of))
        text = payload.decode("utf-8", "replace") if name in ("dynamo_graph_break_reason", "recompile_reasons") else ""
        if name == "dynamo_graph_break_reason":
            reason = graph_break(text)
            of = self.compilation(number)
            if reason not in of.breaks:
                of.breaks.append(reason)
        elif name == "recompile_reasons":
            of = self.compilation(number, begins=True)
            of.guard, of.guard_line = failed_guard(text)
        elif _CACHE.fullmatch(name) and name not in self.compilation(number).caches:
            self.compilation(number).caches.append(name)


def graph_break(text: str) -> records.GraphBreak:
    """What the log says of a break: a heading with an explanation since PyTorch 2.7, one sentence before."""
    at, why, before = _AT.search(text), _WHY.search(text), _WHY_BEFORE.search(text)
    reason = f"{why[1].strip()}: {why[2].strip()}" if why else before[1].strip() if before else _first(text)
    line = CodeLine(at[1], int(at[2])) if at else innermost_line(text)
    return records.GraphBreak(reason[:LONGEST_TEXT], line)


def failed_guard(text: str) -> tuple[str, CodeLine | None]:
    """The first condition that failed, and the line of the program that it comes from, if the log says it."""
    try:
        listed = msgspec.json.decode(text)
        text = "\n".join(map(str, listed)) if isinstance(listed, list) else text
    except ValueError:
        pass  # a text since PyTorch 2.8
    first = _first(text)
    place, stack = _PLACE.search(first), innermost_line(text)
    condition = _CONDITION.match(first.partition("  # ")[0])
    guard = condition[1].strip() if condition else ""
    line = CodeLine(place[1], int(place[2]), place[3]) if place else None
    return guard[:LONGEST_TEXT], stack or line


def read_provenance(path: str, limits: Limits = UNLIMITED) -> records.KernelOrigins:
    """What Inductor wrote of its kernels' origin, at ``path``: files, or a folder with such files at any depth.

    Raises:
        InputError: a file cannot be read.
        UnknownFormat: none has stacks of kernels.
        LimitExceeded: a file is larger than the limits allow.
    """
    graphs, others = [], 0
    for file in [each for each in files_at(path) if not os.path.isdir(each)][:MOST_FILES]:
        with open_text(file, limits) as text:
            content = at_least(text, LONGEST_PAYLOAD)
        try:
            stacks = msgspec.json.decode(content)
        except (ValueError, RecursionError) as error:
            raise UnknownFormat(file, f"no JSON of Inductor: {error}") from error
        if isinstance(stacks, dict) and (lines := _lines(stacks)):
            frame = _OF_FRAME.search(file)
            graphs.append(records.GraphOrigins(f"{frame[1]}/{frame[2]}" if frame else "", lines))
        others += isinstance(stacks, dict) and "cppCodeToPost" in stacks
    if not graphs:
        mappings = "; node mappings alone name no lines" if others else ""
        raise UnknownFormat(path, f"no {STACKS}.json{mappings}; record with TORCH_COMPILE_DEBUG=1")
    return records.KernelOrigins(graphs)


def _lines(stacks: dict[str, Any]) -> dict[str, tuple[CodeLine, ...]]:
    """The lines of each kernel: of a list of stacks, or of a record that has one (``stack_traces``)."""
    lists = {name: known.get("stack_traces") if isinstance(known, dict) else known for name, known in stacks.items()}
    lines = {name: lines_of(known) for name, known in lists.items() if isinstance(known, list)}
    return {name: known for name, known in lines.items() if known}


def _first(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _number(value: Any) -> float:
    """A number, 0 for none; TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        raise TypeError(value)
    return value or 0


def _ns(us: Any) -> int:
    """Unix ns of a time in µs; ValueError for one that columns cannot hold."""
    ns = round(_number(us) * 1000)
    if not 0 <= ns < 1 << 62:
        raise ValueError(us)
    return ns


# The code of a compiled graph, as TORCH_TRACE has it: its nodes with their operands, shapes, strides and types.

_NAMED = r'(\w+): "?(\w+)\[([\w, ]*)\](?:\[([\w, ]*)\])?'  #: mm: "f32[8, 16][16, 1]cuda:0"
_INPUT = re.compile(_NAMED)
_NODE = re.compile(rf'\s*(?:{_NAMED}[^"=]*"?|(\w+)) = (torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?\(|(\w+)\[\d)')
_RETURN = re.compile(r"\s*return \(?(.*)")
_NAME = re.compile(r"\w+")


def graph_nodes(text: str) -> tuple[dict[str, records.GraphNode], frozenset[str]]:
    """The nodes of a graph by their names, in order, and the names of its results. Lines of other forms are passed
    over: what uses them has operands without a node."""
    nodes: dict[str, records.GraphNode] = {}
    results: frozenset[str] = frozenset()
    for line in text.splitlines():
        if node := _NODE.match(line):
            named, kind, sizes, steps, alone, _, space, operator, taken_from = node.groups()
            operands = (taken_from,) if taken_from else tuple(_arguments(line[node.end() :]))
            called = f"{space}::{operator}" if operator else "getitem"
            nodes[named or alone] = records.GraphNode(called, operands, _numbers(sizes), _numbers(steps), kind or "")
        elif "def forward(" in line:
            for named, kind, sizes, steps in _INPUT.findall(line):
                nodes[named] = records.GraphNode("", (), _numbers(sizes), _numbers(steps), kind)
        elif back := _RETURN.match(line):
            results = frozenset(name for name in _NAME.findall(back[1]) if name in nodes)
    return nodes, results


def _arguments(text: str) -> Iterator[str]:
    """The arguments up to the bracket that closes them, those with a keyword last, as their values."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif depth and letter in ")]}":
            depth -= 1
        elif (letter == "," and not depth) or letter == ")":
            argument = text[begin:place].strip()
            begin = place + 1
            if argument:
                yield argument.partition(" = ")[2] or argument
            if letter == ")":
                return


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """Sizes or strides; None if one is a symbol, or none were written."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(map(int, parts)) if all(part.isdigit() and len(part) < 19 for part in parts) else None

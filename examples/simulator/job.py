"""The job: ranks that play steps and write their traces as they go, with the true figures beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from simulator import kineto
from simulator.causes import Ledger
from simulator.gz import open_gzip
from simulator.model import build_step
from simulator.options import JobOptions
from simulator.parallel import place_of
from simulator.path import job_figures, path_of_rank, shares
from simulator.program import ID_KINDS, Int64s, Program
from simulator.recording import Played, kept_of, window_of
from simulator.timing import Clock, StepTimes
from simulator.truth import Truth

MARGIN_NS = 50_000  #: the recorded window beyond the first and last event
START_NS = 6_322_354_000_000_000  #: since ``baseTimeNanoseconds``
FIRST_IDS = {
    "external": 1025,
    "correlation": 45001,
    "sequence": 11001,
    "fwdbwd": 1,
    "python": 1,
    "address": 139637976727552,
}


class _RankFile:
    """One rank's trace being written."""

    def __init__(self, options: JobOptions, rank: int, directory: Path, programs: dict[bool, Program]) -> None:
        self.options, self.rank = options, rank
        self.pid = 4200 + 7 * rank
        self.tids = self.pid, self.pid + 350
        self.device = rank % kineto.DEVICES_A_NODE
        self.programs = {
            waits: program.played_by(self.pid, self.tids, self.device) for waits, program in programs.items()
        }
        self.ops = next(iter(programs.values())).ops
        self.truth = Truth(self.ops, str(self.device))
        self.played: list[Played] = []  #: of a job of which all is kept
        self.path = directory / f"rank{rank}.pt.trace.json.gz"
        self.raw_bytes = self.events = 0
        self.first_ns = self.last_ns = 0
        self._file, self._beneath = open_gzip(self.path)
        self._bases = np.array([FIRST_IDS.get(kind, 0) for kind in ID_KINDS], np.int64)
        self._bases[ID_KINDS.index("step")] = options.first_step
        self._lines = options.layout == "lines"
        self._write(kineto.header(options, rank))
        if self._lines:
            self._write(kineto.one_key_a_line(self._names()))

    def _names(self) -> str:
        """The metadata events."""
        threads = ((self.tids[0], "python"), (self.tids[1], "pt_autograd_0"))
        streams = sorted({op.stream for op in self.ops})
        start = START_NS + self.options.offset_of(self.rank)
        return kineto.names(start, self.pid, threads, self.device, streams)

    def _write(self, text: str) -> None:
        text = kineto.whole_us(text) if self.options.whole_us else text
        self._file.write(text.encode())
        self.raw_bytes += len(text)  # the simulator writes ASCII alone

    def _on_clock(self, times: Int64s) -> Int64s:
        """Times as the rank's clock has them."""
        if self.options.stretch != 1:
            times = START_NS + np.rint((times - START_NS) * self.options.stretch).astype(np.int64)
        drift = self.options.drift_of(self.rank)
        ahead = np.rint(drift * (times - START_NS)).astype(np.int64) if drift else 0
        out = times + self.options.offset_of(self.rank) + ahead
        return out // 1000 * 1000 if self.options.whole_us else out

    def step(self, number: int, times: StepTimes) -> None:
        """Write one step and count it, or keep it for later."""
        program = self.programs[self.options.waits_in(number)]
        host, start, end = (self._on_clock(column) for column in (times.host, times.start, times.end))
        if self.options.keeps_all:
            self.played.append(Played(number, program, times, host, start, end))
            return
        self._write(program.render(host, start, end, self._bases))
        self._bases += program.id_counts
        self.events += program.event_count
        calls = host[[op.launch for op in program.ops]], host[[op.launch_end for op in program.ops]]
        self.truth.add(start, end, *calls)
        self.first_ns = self.first_ns or int(host[0])
        self.last_ns = int(host[-1])

    def write_kept(self) -> Ledger:
        """Write what was recorded of all steps; what is true of the rank."""
        window = window_of(self.options, self.rank, self.played)
        lost = self.options.lost_every if self.rank == self.options.lost_rank else None
        kept = [kept_of(step, window, lost) for step in self.played]
        for step, part in zip(self.played, kept, strict=True):
            texts = step.program.render_part(step.host, step.start, step.end, self._bases, part)
            self._write("".join(texts))
            self.events += len(texts)
            self._bases += step.program.id_counts
        ledger = Ledger(self.options, self.rank, self.played, kept, window)
        self.truth = ledger.device_truth(str(self.device))
        recording = ledger.window_figures()
        self.first_ns, self.last_ns = recording["begin"], recording["finish"]
        return ledger

    def close(self, steps: list[int], causes: dict[str, Any] | None) -> dict[str, Any]:
        """Finish the file; write and return the truth."""
        if not self._lines:
            self._write(self._names())
        end = kineto.footer(self.path.name.removesuffix(".gz"), self.first_ns - MARGIN_NS, self.last_ns + MARGIN_NS)
        self._write(kineto.one_key_a_line(end) if self._lines else end)
        self._file.close()
        self._beneath.close()
        truth = self.truth.figures()
        truth["file"] = {
            "rank": self.rank,
            "raw_bytes": self.raw_bytes,
            "step_events": self.events,
            "steps": steps,
            "options": asdict(self.options),
        }
        if causes is not None:
            truth["causes"] = causes
        stem = self.path.name.removesuffix(".pt.trace.json.gz")
        members = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in truth.items())
        (self.path.parent / f"{stem}.truth.json").write_text(f"{{\n{members}\n}}\n")
        return truth


def _programs(options: JobOptions) -> list[dict[bool, Program]]:
    """Each rank's step, by whether the host waits at its end; they differ only where ranks have parts of their own."""
    alike = options.tp == options.pp == options.ep == 1
    first = options.first_step
    ways = {options.waits_in(number) for number in range(first, first + max(options.sync_every, 1))}
    shape = options.shape
    places = [place_of(options, 0 if alike else rank) for rank in range(options.ranks)]
    return [{waits: build_step(shape, place, waits=waits) for waits in ways} for place in places]


def simulate(options: JobOptions, directory: str | Path) -> list[tuple[Path, dict[str, Any]]]:
    """Write each rank's ``rankN.pt.trace.json.gz`` and ``rankN.truth.json`` into ``directory``; paths and truths."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    ranks = options.write_ranks if options.write_ranks is not None else tuple(range(options.ranks))
    programs = _programs(options)
    files = [_RankFile(options, rank, folder, programs[rank]) for rank in ranks]
    clock = Clock(options, programs, START_NS)
    steps: list[int] = []
    while len(steps) < options.steps or files[0].raw_bytes < options.size_bytes:
        number = options.first_step + len(steps)
        times = clock.step(number)
        for file in files:
            file.step(number, times[file.rank])
        steps.append(number)
    if not options.keeps_all:
        return [(file.path, file.close(steps, None)) for file in files]
    ledgers = {file.rank: file.write_kept() for file in files}
    job = job_figures(ledgers) if len(ledgers) == options.ranks else None
    out = []
    for file in files:
        ledger = ledgers[file.rank]
        path = {"path_shares": shares(path_of_rank(ledger)), "job": job}
        out.append((file.path, file.close(steps, ledger.figures() | path)))
    return out

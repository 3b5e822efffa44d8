"""How long would a conversion take with N cores, and what runs alone? Computed from measured parts, whatever else runs.

    python benchmarks/serial.py FILE [--cores 2,4,8,16,1000] [--to FORMAT] [--most 25] [--json]

The file is converted once. Every fact, analysis, stage, and call that may run side by side is measured in CPU s of its
thread; facts that are asked for are noted. Then N threads run these parts again, on paper, in the order in which
``augment.core.threads`` begins them: a part waits for the facts that it asks for, and a stage for what runs beside it.
*Serial* is the share of all CPU time that, by Amdahl's law, gives the same wall time; 1000 cores: the longest chain.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import json
import sys
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from time import thread_time
from typing import Any

from bench import ROOT, cache

Programs = dict[str, list[Any]]  #: of each part: CPU s; the name of a part that it needs; a list of those side by side
STAGES = {
    "augment.readers.chrome": ("_Reading.all", "EventScanner.finish", "pair", "assemble"),
    "augment.writers.perfetto": ("plan", "Tracks", "SourceEvents", "EventsFile.write_beside"),
    "augment.writers.chrome": ("_begun", "GzipWriter.finish"),
    "augment.writers.metrics": ("document", "encode"),
}


class Recorder:
    """Measures the parts of one conversion."""

    def __init__(self) -> None:
        self.programs: Programs = {}
        self._stack: list[tuple[str, list[Any], list[str]]] = []
        self._last = thread_time()

    def part(self, name: str, call: Callable[[], Any], note: bool = True) -> Any:
        """Run a call as a part, which the part around it needs."""
        self._lap(name if note else None)
        self._stack.append((name, [], []))
        try:
            return call()
        finally:
            self._lap()
            name, steps, beside = self._stack.pop()
            if beside:
                self.programs[f"{name}, itself"] = steps
            self.programs[name] = [[f"{name}, itself", *beside]] if beside else steps

    def _lap(self, then: Any = None) -> None:
        now = thread_time()
        if self._stack:
            self._stack[-1][1].extend([now - self._last] if then is None else [now - self._last, then])
        self._last = thread_time()

    def numbered(self, name: str) -> str:
        """A name that no part has yet."""
        taken = {*self.programs, *(each for each, _, _ in self._stack)}
        return next(each for n in itertools.count(1) if (each := f"{name} {n}" if n > 1 else name) not in taken)

    def all(self, calls: Any) -> list[Any]:
        """Instead of ``Threads.all``: one after another, noted as side by side."""
        names, results = [], []
        for call in list(calls):
            inner = call.args[0] if isinstance(call, functools.partial) and call.args else call
            label = getattr(inner, "NAME", f"call of {self._stack[-1][0]}")
            names.append(self.numbered(str(label)))
            results.append(self.part(names[-1], call, note=False))
        self._lap(names)
        return results

    def derived(self, compute: Any = None, *, until: str = "") -> Any:  # noqa: ARG002 - nothing is dropped
        """Instead of ``context.derived``."""
        if compute is None:
            return self.derived
        key = f"{compute.__module__.removeprefix('augment.')}.{compute.__qualname__}"

        @functools.wraps(compute)
        def fact(trace: Any) -> Any:
            if key not in trace.context.facts:
                trace.context.facts[key] = self.part(self.numbered(key), lambda: compute(trace))
            elif key in self.programs:
                self._lap(key)
            return trace.context.facts[key]

        return fact

    def end_thread(self) -> None:
        """Called at the end of any other thread: it ran beside the part that runs now."""
        name = self.numbered(f"{threading.current_thread().name} beside {self._stack[-1][0]}")
        self.programs[name] = [thread_time()]
        self._stack[-1][2].append(name)

    def record(self, path: Path, formats: tuple[str, ...]) -> Programs:
        """The parts of the conversion of a file."""
        from augment.core import context, threads

        context.derived = self.derived  # type: ignore[assignment]

        def all_(_: object, calls: Any) -> list[Any]:
            return self.all(calls)

        threads.Threads.all = all_  # type: ignore[method-assign]
        run = threading.Thread.run

        def measured(thread: threading.Thread) -> None:
            run(thread)
            self.end_thread()

        threading.Thread.run = measured  # type: ignore[method-assign]

        def convert() -> None:
            from augment.batch.conversion import Progress, RunPlan, convert_or_raise
            from augment.batch.inputs import Input
            from augment.core.threads import keep_freed_memory
            from augment.pipeline.request import Request

            keep_freed_memory()
            for module, names in STAGES.items():
                for name in names:
                    self._watch(import_module(module), name)
            plan = RunPlan(Request(formats=formats), threads=2)
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                convert_or_raise(Input(str(path), folder, named=True), plan, Progress())

        self.part("all else", convert)
        return self.programs

    def _watch(self, module: Any, name: str) -> None:
        *holders, last = name.split(".")
        holder = functools.reduce(getattr, holders, module)
        function = getattr(holder, last)

        @functools.wraps(function)
        def watched(*args: Any, **options: Any) -> Any:
            return self.part(self.numbered(name), lambda: function(*args, **options))

        setattr(holder, last, watched)


class Replay:
    """Runs programs on a number of cores. ``end`` is the wall time, ``alone`` the seconds in which a part ran alone."""

    def __init__(self, programs: Programs, cores: int) -> None:
        self._programs, self._known, self._running = programs, set[str](), dict[str, list[Any]]()
        self._tasks: deque[Any] = deque()
        self._idle: list[Any] = []
        self._heap: list[Any] = []
        self._number, self._clock, self.end = itertools.count(), 0.0, 0.0
        self._busy: list[tuple[float, int, str]] = []
        self._resume([self._main(), *(self._helper() for _ in range(cores - 1))])
        while not self.end:
            self._clock, _, process = heapq.heappop(self._heap)
            for waits in process:
                if isinstance(waits, float):
                    heapq.heappush(self._heap, (self._clock + waits, next(self._number), process))
                else:
                    waits.append(process)
                break

    @property
    def alone(self) -> dict[str, float]:
        """By part, the dearest first."""
        result, running, last = defaultdict[str, float](float), defaultdict[str, int](int), 0.0
        for moment, change, name in sorted(self._busy):
            if sum(running.values()) == 1:
                result[next(each for each, count in running.items() if count)] += moment - last
            running[name] += change
            last = moment
        return dict(sorted(result.items(), key=lambda item: -item[1]))

    def _resume(self, waiting: list[Any]) -> None:
        for process in waiting:
            heapq.heappush(self._heap, (self._clock, next(self._number), process))
        waiting.clear()

    def _main(self) -> Iterator[Any]:
        yield from self._run("all else")
        self.end = self._clock

    def _helper(self) -> Iterator[Any]:
        while True:
            while not self._tasks:
                yield self._idle
            yield from self._call(self._tasks.popleft())

    def _call(self, task: tuple[str, list[Any]]) -> Iterator[Any]:
        name, join = task
        yield from self._run(name)
        join[0] -= 1
        if not join[0]:
            self._resume(join[1])

    def _run(self, name: str) -> Iterator[Any]:
        if name in self._known:
            return
        if name in self._running:
            yield self._running[name]
            return
        self._running[name] = []
        for step in self._programs[name]:
            if isinstance(step, float):
                self._busy += (self._clock, 1, name), (self._clock + step, -1, name)
                yield step
            elif isinstance(step, str):
                yield from self._run(step)
            else:
                join: list[Any] = [len(step), []]
                tasks = [(each, join) for each in step]
                self._tasks.extendleft(reversed(tasks))
                self._resume(self._idle)
                for task in tasks:
                    if task in self._tasks:
                        self._tasks.remove(task)
                        yield from self._call(task)
                if join[0]:
                    yield join[1]
        self._known.add(name)
        self._resume(self._running.pop(name))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cores", default="2,4,8,16,1000")
    parser.add_argument("--to", default="perfetto")
    parser.add_argument("--most", type=int, default=25, help="parts that run alone to list")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    began = thread_time()
    programs = Recorder().record(chosen.file.resolve(), (chosen.to,))
    programs["all else"].insert(0, began)  # what Python itself took
    total = sum(step for steps in programs.values() for step in steps if isinstance(step, float))
    rows = []
    for cores in map(int, chosen.cores.split(",")):
        replay = Replay(programs, cores)
        share = replay.end / total
        rows.append({"cores": cores, "wall_s": replay.end, "share": share, "serial": (cores * share - 1) / (cores - 1)})
        if not chosen.json:
            of = f"{share:.3f} of {total:.2f} CPU s"
            print(f"{cores:5} cores {replay.end:7.2f} s  {of}  serial {rows[-1]['serial']:.3f}")
    if chosen.json:
        print(json.dumps(rows))
        return 0
    for name, seconds in list(replay.alone.items())[: chosen.most]:
        print(f"{seconds:8.3f} s alone  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

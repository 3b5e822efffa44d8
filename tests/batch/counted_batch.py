"""A batch that tells of each conversion in a file, a line each: the input, the process, and the memory it has taken.

python counted_batch.py LOG JOBS INPUTS OUTPUT [LINES]

With LINES it kills itself when so many lines have been added to the manifest.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from augment.batch import execution, manifest, workers
from augment.batch.conversion import Progress, Result, RunPlan, convert
from augment.batch.inputs import Input, choose_inputs
from augment.batch.workers import convert_apart

LOG = "COUNTED_BATCH_LOG"


def peak_kb() -> int:
    """The most memory that this process ever had."""
    status = Path("/proc/self/status")
    if status.exists():  # the other figure has that of the process that started this one in it
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def tell(what: str) -> None:
    """Append a line; short ones are written whole, whoever else writes."""
    with open(os.environ[LOG], "ab", buffering=0) as log:
        log.write(f"{what} {os.getpid()} {peak_kb()}\n".encode())


def converted(item: Input, plan: RunPlan, progress: Progress) -> Result:
    """In this process."""
    tell(item.basename)
    return convert(item, plan, progress)


def converted_apart(item: Input, plan: RunPlan) -> Result:
    """In a process of its own."""
    tell(item.basename)
    return convert_apart(item, plan)


def die_after(lines: int) -> None:
    """Kill this process, which adds the lines, after so many more."""
    append, left = manifest._LocalJournal.append, iter(range(lines - 1, -1, -1))

    def counted(self: manifest._LocalJournal, line: bytes) -> None:
        append(self, line)
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    manifest._LocalJournal.append = counted  # type: ignore[method-assign]


def main() -> int:
    log, jobs, source, out, *lines = sys.argv[1:]
    os.environ[LOG] = log
    if lines:
        die_after(int(lines[0]))
    execution.convert, workers.convert_apart = converted, converted_apart  # type: ignore[attr-defined]
    run = execution.Run(choose_inputs([source], out).inputs, RunPlan(compares=True, jobs=int(jobs)))
    results = list(run.convert())
    list(run.conclude())
    tell("end")
    return int(not all(result.status in ("augmented", "done_before") for result in results))


if __name__ == "__main__":
    # what is called shall be found in a module of the same name in every process
    import counted_batch

    sys.exit(counted_batch.main())

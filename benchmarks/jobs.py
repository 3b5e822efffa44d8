"""What the cross-rank part costs: CPU time for each rank, from the ranks' summaries to job.metrics.json.

    python benchmarks/jobs.py [--ranks 8,64,512,2048] [--steps 20]

Eight ranks are simulated and converted; larger jobs have their summaries again and again, each with a clock and an
arrival of its own. Told are the summary's size, what making it adds to a conversion, and the cost of concluding, with
the most memory of the process so far.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from augment.findings import Skipped  # noqa: E402
from augment.job.answer import answer  # noqa: E402
from augment.job.sidecar import content  # noqa: E402
from augment.job.summary import read_summary, summarize  # noqa: E402
from augment.pipeline import augment  # noqa: E402
from augment.readers import read  # noqa: E402
from simulator import JobOptions, simulate  # noqa: E402


def summaries(ranks: int, steps: int, folder: Path) -> tuple[list[bytes], float, float]:
    """Of simulated ranks; the CPU seconds for a rank without, and for its summary."""
    options = JobOptions(ranks=ranks, steps=steps, layers=8, collectives="fsdp", uneven_buckets=True)
    made, whole, summary_s = [], 0.0, 0.0
    for path, _ in simulate(options, folder):
        began = time.process_time()
        augmented = augment(read(str(path)))
        analysed = time.process_time()
        made.append(summarize(augmented))
        whole, summary_s = whole + analysed - began, summary_s + time.process_time() - analysed
    return made, whole / ranks, summary_s / ranks


def more(few: Sequence[bytes], count: int) -> Iterator[bytes]:
    """``count`` ranks like ``few``, of one process group: one after the other, as a batch reads them from files."""
    random = np.random.default_rng(0)
    for rank in range(count):
        summary = read_summary(few[rank % len(few)], "")
        summary.rank = rank
        for group in summary.groups:
            group[2], group[4] = "", count
        start, end, offset = summary.column("ts"), summary.column("end"), int(random.integers(-(10**10), 10**10))
        late = np.minimum(random.integers(0, 20_000, len(start)), end - start - 1)
        summary.columns |= {"ts": (start + offset + late).tobytes(), "end": (end + offset).tobytes()}
        summary.steps |= {side: (summary.step_column(side) + offset).tobytes() for side in ("start", "end")}
        moments = np.frombuffer(summary.states.ts, np.int64).copy()
        moments[:1] += offset
        summary.states.ts = moments.tobytes()
        yield zlib.compress(msgspec.msgpack.encode(summary), 1)


def timed(contents: Iterator[bytes], spent: list[float]) -> Iterator[bytes]:
    """The same, with the CPU time of making them added to ``spent``."""
    while True:
        began = time.process_time()
        content = next(contents, None)
        spent[0] += time.process_time() - began
        if content is None:
            return
        yield content


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,512,2048,8192")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few, whole, summary_s = summaries(8, arguments.steps, Path(folder))
    print(
        f"summary: {len(few[0]) / 1e3:.0f} kB, {len(read_summary(few[0], '').column('ts'))} collectives, "
        f"{summary_s * 1e3:.0f} CPU ms beside {whole * 1e3:.0f} for reading and analysing"
    )
    for count in map(int, arguments.ranks.split(",")):
        making = [0.0]
        began = time.process_time()
        result = answer(timed(more(few, count), making), [""] * count)
        began += making[0]
        matched = time.process_time()
        path = result.path
        followed = time.process_time()
        size = len(content(result, "job"))
        spent = time.process_time() - began
        print(
            f"{count} ranks: {spent * 1e3 / count:.2f} CPU ms a rank ({(matched - began) * 1e3 / count:.2f} for clocks "
            f"and waits, {(followed - matched) * 1e3 / count:.2f} for the critical path), {spent:.2f} s in all; "
            f"{len(result.matched)} collectives, {0 if isinstance(path, Skipped) else len(path)} pieces of the path; "
            f"job.metrics.json {size / 1e6:.1f} MB; "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB of memory"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

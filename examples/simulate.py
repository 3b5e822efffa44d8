"""Write the Kineto traces of a simulated training job, and what is true of them.

    python examples/simulate.py -o DIR [--ranks 2] [--steps 3] [--layers 4] [--size 200MB] …

Each rank becomes ``rankN.pt.trace.json.gz``, and ``rankN.truth.json`` has its figures, known to the simulator and not
read back from the file. The same options and seed give the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import get_args

from simulator import GPUS, JobOptions, simulate
from simulator.options import Schedule

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def size_of(text: str) -> int:
    """``200MB``, ``1.5GB`` or a number of bytes."""
    match = re.fullmatch(r"([0-9.]+)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: say 200MB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated integers."""
    return tuple(int(part) for part in text.split(","))


def drifts(text: str) -> tuple[float, ...]:
    """Comma-separated numbers."""
    return tuple(float(part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = out.add_argument, JobOptions()
    add("-o", "--output", required=True, type=Path, metavar="DIR", help="where to write")
    add("--ranks", type=int, default=default.ranks)
    add("--steps", type=int, default=default.steps)
    add("--layers", type=int, default=default.layers)
    add("--collectives", choices=("ddp", "fsdp", "none"), default=default.collectives)
    add("--gpu", choices=tuple(GPUS), default=default.gpu)
    add("--stacks", action="store_true", help="Python functions, as with_stack records them")
    add("--counters", action="store_true", help="CUPTI counters of each kernel, as its range profiler records them")
    add("--memory", action="store_true", help="[memory] instants, as profile_memory records them")
    add("--jitter", type=float, default=default.jitter, help="spread of all durations")
    add("--seed", type=int, default=default.seed)
    add("--first-step", type=int, default=default.first_step, metavar="N")
    add("--layout", choices=("classic", "lines"), default=default.layout, help="lines: as PyTorch 2.13 writes")
    add("--work", type=float, default=default.work, help="factor on every kernel's duration")
    add(
        "--size",
        type=size_of,
        default=0,
        dest="size_bytes",
        metavar="200MB",
        help="repeat steps until rank 0's text is so long",
    )
    add("--write-ranks", type=numbers, metavar="0,1", help="write these ranks only")
    add("--clock-offset-ns", type=numbers, default=(), metavar="0,1500", help="each rank's clock ahead of rank 0's")
    add("--clock-drift-ppm", type=drifts, default=(), metavar="0,20", help="each rank's clock so much faster")
    add("--end-spread-ns", type=float, default=0.0, metavar="N", help="deviation of a collective's ends among ranks")
    add("--uneven-buckets", action="store_true", help="collectives of four sizes")
    add("--straggler", type=int, metavar="RANK", help="this rank's kernels are slower")
    add("--straggler-factor", type=float, default=default.straggler_factor)
    add("--host-stall-us", type=float, default=0.0, metavar="N", help="the data loader takes so much longer")
    add("--host-stall-step", type=int, metavar="N", help="in this step only")
    add("--slow-kernel", metavar="TEXT", help="kernels with this in their name take longer")
    add("--slow-percent", type=float, default=default.slow_percent)
    add("--extra-operator", metavar="NAME", help="an operator added to each layer's forward")
    add("--drop-collective", type=int, metavar="N", help="leave the Nth collective of each step out")
    parallel = out.add_argument_group("parallelism", "of RANKS = TP x DP x PP")
    parallel.add_argument("--tp", type=int, default=1, metavar="N", help="ranks that share each layer")
    parallel.add_argument("--pp", type=int, default=1, metavar="N", help="pipeline stages, with sends between them")
    parallel.add_argument("--ep", type=int, default=1, metavar="N", help="data-parallel ranks that share experts")
    parallel.add_argument("--microbatches", type=int, default=1, metavar="N", help="of a step")
    parallel.add_argument("--schedule", choices=get_args(Schedule), default="gpipe", help="of microbatches")
    parallel.add_argument(
        "--stage-labels", choices=("none", "torch", "megatron"), default="none", help="ranges around each microbatch"
    )
    parallel.add_argument("--bucket-mib", type=float, default=0.0, metavar="N", help="DDP's cap; 0: a bucket a layer")
    add_unkind(out.add_argument_group("as unkind as reality", "with --causes and most of these, truth has causes"))
    return out


def add_unkind(group: argparse._ArgumentGroup) -> None:
    """What real training code does, and tidy jobs do not."""
    add, default = group.add_argument, JobOptions()
    add("--causes", action="store_true", help="tell in the truth what everything waited for")
    add("--sync-every", type=int, default=1, metavar="N", help="the host waits after every N steps; 0: never")
    add("--run-ahead", type=int, metavar="K", help="the host waits for the end of the step K before instead")
    add("--side-streams", type=int, default=0, metavar="N", help="streams with a little work after each layer")
    add("--warmup", type=float, default=1.0, metavar="X", help="factor on all of the first recorded step")
    add("--step-jitter", type=float, default=0.0, metavar="S", help="spread of a factor on all of a step")
    add("--step-drift", type=float, default=0.0, metavar="X", help="each step takes so much longer, 0.01: 1 %%")
    add("--step-tail", type=float, default=0.0, metavar="X", help="some steps take much longer")
    add("--step-seed", type=int, metavar="N", help="of the factors on steps: the same in runs of different --seed")
    add(
        "--record-from",
        type=drifts,
        default=(),
        metavar="1.4,2.3",
        help="each rank's recording begins after so many steps",
    )
    add("--record-until", type=drifts, default=(), metavar="4.7,5.2", help="and ends after so many steps")
    add("--cross-ns", type=int, default=0, metavar="N", help="operators end so long after one that they are in")
    add("--cross-every", type=int, default=default.cross_every, metavar="N", help="every Nth of those inside another")
    add("--whole-us", action="store_true", help="clocks of whole microseconds")
    add("--graphs", action="store_true", help="a CUDA graph for each layer's forward and backward")
    kinds = ("full", "no_seq", "no_group", "none")
    add("--collective-args", choices=kinds, default="full", help="what the args of collectives lack")
    add("--lost-rank", type=int, metavar="RANK", help="its recording lacks kernels of collectives")
    add("--lost-every", type=int, default=default.lost_every, metavar="N", help="every Nth")
    add("--stretch", type=float, default=1.0, metavar="X", help="factor on all times")
    add("--host-stall-rank", type=int, metavar="RANK", help="where --host-stall-us is")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    command = parser()
    values = vars(command.parse_args(arguments))
    directory = values.pop("output")
    try:
        options = JobOptions(**values)
    except ValueError as error:
        command.error(str(error))
    began = time.process_time()
    written = simulate(options, directory)
    spent = time.process_time() - began
    total = 0
    for path, truth in written:
        raw = truth["file"]["raw_bytes"]
        total += raw
        print(
            f"{path}: {path.stat().st_size / 1e6:.1f} MB, {raw / 1e6:.1f} MB of text, "
            f"{truth['file']['step_events']} events, {len(truth['file']['steps'])} steps"
        )
    print(f"{spent:.1f} CPU s, {total / 1e6 / spent:.0f} MB of text per CPU s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

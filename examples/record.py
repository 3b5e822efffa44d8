"""Record small real traces with ``torch.profiler``: what the project's readers are tried on besides simulated ones.

    python examples/record.py -o examples/traces [NAME …] [--list]

Needs PyTorch (nothing else of the project does). Names that begin with ``cuda_`` need a GPU; ``*_gloo``, ``*_fsdp``,
``*_pipeline`` and ``*_nccl`` run two processes. Before a trace is stored its text is scrubbed: no path, host or user
name of the machine stays in it.
"""

from __future__ import annotations

import argparse
import getpass
import gzip
import importlib
import os
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

WARM_UP, ACTIVE = 2, 2
_LEFT_PATH = re.compile(r"""(?<=["'\s(=:,<])/(?:[^/\s"'()<>]+/)+([^/\s"'()<>]+)""")
_NAMED_HOST = re.compile(r'^ *"(?:host_name|hostname|username|user|tw_\w+|mast_\w+)": .*\n', re.MULTILINE)


def torch() -> Any:
    """PyTorch, imported when something is recorded."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise SystemExit("record.py: recording takes PyTorch: pip install torch") from error


# --- scrubbing ---


def scrub(text: str) -> str:
    """``text`` without paths, host or user name of this machine."""
    places = {
        sysconfig.get_path("purelib"): "site-packages",
        sysconfig.get_path("platlib"): "site-packages",
        sysconfig.get_path("stdlib"): "lib/python",
        str(Path(__file__).resolve().parent): "examples",
    }
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    text = _LEFT_PATH.sub(r"\1", _NAMED_HOST.sub("", text))
    for secret in (socket.gethostname(), getpass.getuser()):
        text = re.sub(rf"(?<![\w.]){re.escape(secret)}(?![\w(])", "somebody", text)
    return text


def remains(text: str) -> list[str]:
    """What of this machine can still be read in ``text``: nothing, or :func:`scrub` is wrong."""
    here = str(Path(__file__).resolve().parent)
    secrets = [tempfile.gettempdir(), str(Path.home()), sys.prefix, sys.base_prefix, here]
    places = [secret for secret in secrets if secret + "/" in text]
    return places + [match[0] for match in _LEFT_PATH.finditer(text)]


def store(profiler: Any, path: Path) -> None:
    """Export, scrub and compress, the same bytes for the same recording."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        text = scrub(raw.read_text(encoding="utf-8"))
    if remains(text):
        raise SystemExit(f"{path}: {remains(text)[:3]} would be stored")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, {len(text) / 1e6:.1f} MB of text")


# --- jobs ---


def model(device: str) -> Any:
    """A small network; functional parts alone, so that nothing needs a class."""
    nn = torch().nn
    return nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
    ).to(device)


def loader() -> Any:
    """A few batches, the same each time."""
    t = torch()
    t.manual_seed(0)
    data = t.utils.data.TensorDataset(t.randn(64, 64), t.randint(0, 10, (64,)))
    return t.utils.data.DataLoader(data, batch_size=8)


def train_step(network: Any, optimizer: Any, batch: Any, device: str) -> None:
    """Forward, backward and optimizer, named as a user would name them."""
    t = torch()
    inputs, targets = (part.to(device, non_blocking=True) for part in batch)
    optimizer.zero_grad()
    with t.profiler.record_function("forward"):
        loss = t.nn.functional.cross_entropy(network(inputs), targets)
    with t.profiler.record_function("backward"):
        loss.backward()
    optimizer.step()
    loss.item()


def profile(network: Any, device: str, path: Path, **options: bool) -> None:
    """Train for a few steps, the last ``ACTIVE`` of them recorded."""
    t = torch()
    optimizer = t.optim.AdamW(network.parameters(), lr=1e-3)
    activities = [t.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(t.profiler.ProfilerActivity.CUDA)
    schedule = t.profiler.schedule(wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with t.profiler.profile(
        activities=activities, schedule=schedule, on_trace_ready=lambda done: store(done, path), **options
    ) as profiler:
        for number, batch in enumerate(loader()):
            if number == WARM_UP + ACTIVE:
                break
            train_step(network, optimizer, batch, device)
            profiler.step()


def record_all_options(device: str, path: Path) -> None:
    """Stacks, shapes, memory and FLOPs."""
    profile(model(device), device, path, with_stack=True, record_shapes=True, profile_memory=True, with_flops=True)


def record_compile(device: str, path: Path) -> None:
    """The same network through ``torch.compile``, compiled before it is recorded."""
    network = torch().compile(model(device))
    optimizer = torch().optim.AdamW(network.parameters())
    for batch in loader():
        train_step(network, optimizer, batch, device)
    profile(network, device, path, record_shapes=True)


def record_graph(device: str, path: Path) -> None:
    """A CUDA graph of the forward pass, replayed: many kernels to one launch."""
    t = torch()
    network, inputs = model(device), t.randn(64, 64, device=device)
    side = t.cuda.Stream()
    with t.cuda.stream(side), t.no_grad():
        network(inputs)
    t.cuda.current_stream().wait_stream(side)
    graph = t.cuda.CUDAGraph()
    with t.cuda.graph(graph), t.no_grad():
        network(inputs)
    kinds = t.profiler.ProfilerActivity
    with t.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiler:
        for _ in range(4):
            graph.replay()
        t.cuda.synchronize()
    store(profiler, path)


def _worker(rank: int, backend: str, device: str, folder: str, meeting: str, what: str, count: int) -> None:
    """One process of ``count``."""
    t = torch()
    group = importlib.import_module("torch.distributed")
    group.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=count)
    where = f"{device}:{rank}" if device == "cuda" else device
    if device == "cuda":
        t.cuda.set_device(rank)
    path = Path(folder) / f"rank{rank}.pt.trace.json.gz"
    {"ddp": _ddp, "fsdp": _fsdp, "pipeline": _pipeline}[what](where, path)
    group.barrier()
    group.destroy_process_group()


def _ddp(where: str, path: Path) -> None:
    """Data parallelism with several buckets."""
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel(model(where), bucket_cap_mb=0.03)
    profile(parallel, where, path, record_shapes=True)


def _fsdp(where: str, path: Path) -> None:
    """FSDP2: the linear layers are units, the rest belongs to the root."""
    network = model(where)
    shard = importlib.import_module("torch.distributed.fsdp").fully_shard
    for layer in network:
        if isinstance(layer, torch().nn.Linear):
            shard(layer)
    profile(shard(network), where, path, record_shapes=True)


def _pipeline(where: str, path: Path) -> None:
    """Interleaved 1F1B of torch.distributed.pipelining: each process has two stages; four microbatches a step."""
    t = torch()
    group, pipelining = (importlib.import_module(f"torch.distributed{part}") for part in ("", ".pipelining"))
    rank, count = group.get_rank(), group.get_world_size()
    t.manual_seed(rank)
    parts = [t.nn.Sequential(t.nn.Linear(64, 256), t.nn.GELU(), t.nn.Linear(256, 64)).to(where) for _ in range(2)]
    stages = [
        pipelining.PipelineStage(part, rank + place * count, 2 * count, t.device(where))
        for place, part in enumerate(parts)
    ]
    schedule = pipelining.ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=t.nn.functional.mse_loss)
    optimizer = t.optim.SGD([parameter for part in parts for parameter in part.parameters()], lr=0.1)
    inputs = (t.randn(512, 64, device=where),) if rank == 0 else ()
    target = {"target": t.randn(512, 64, device=where), "losses": []} if rank == count - 1 else {}

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*inputs, **target)
        optimizer.step()

    plan = t.profiler.schedule(wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with t.profiler.profile(schedule=plan, on_trace_ready=lambda done: store(done, path)) as profiler:
        for _ in range(WARM_UP + ACTIVE):
            step()
            profiler.step()


def record_several(backend: str, what: str = "ddp", count: int = 2) -> Callable[[str, Path], None]:
    """Training on ``count`` processes, a file each, in the folder ``path``."""

    def record(device: str, path: Path) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with tempfile.TemporaryDirectory() as folder:
            spawn = importlib.import_module("torch.multiprocessing").spawn
            meeting = str(Path(folder) / "meeting")
            spawn(_worker, args=(backend, device, str(path), meeting, what, count), nprocs=count)

    return record


RECORDINGS: dict[str, Callable[[str, Path], None]] = {
    "stacks_shapes_memory": record_all_options,
    "compile": record_compile,
    "gloo": record_several("gloo"),
    "fsdp": record_several("gloo", "fsdp"),
    "pipeline": record_several("gloo", "pipeline"),
    "graph": record_graph,
    "nccl": record_several("nccl"),
}
FOLDERS = ("gloo", "fsdp", "pipeline", "nccl")  #: recordings of several processes
CPU = ("stacks_shapes_memory", "compile", "gloo", "fsdp", "pipeline")
CUDA = ("stacks_shapes_memory", "compile", "graph", "nccl")


def possible() -> list[str]:
    """What can be recorded on this machine."""
    names = [f"cpu_{name}" for name in CPU]
    gpus = torch().cuda.device_count() if torch().cuda.is_available() else 0
    return names + [f"cuda_{name}" for name in CUDA if gpus > (1 if name == "nccl" else 0)]


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to record; everything that this machine can")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "traces", metavar="DIR")
    parser.add_argument("--list", action="store_true", help="say what this machine can record")
    chosen = parser.parse_args(arguments)
    names = possible()
    if chosen.list:
        print("\n".join(names))
        return 0
    for name in chosen.names or names:
        if name not in names:
            parser.error(f"{name} is none of {', '.join(names)}")
        device, _, what = name.partition("_")
        folder = what in FOLDERS
        RECORDINGS[what](device, chosen.output / (name if folder else f"{name}.pt.trace.json.gz"))
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        raise SystemExit(main())

"""Writes the profiler's traces and has each augmented by a process of its own; and a profiler whose settings are those
that the analyses need.

The training process only writes the trace, as ``torch.profiler.tensorboard_trace_handler`` does, and starts the other
process. Threads that wait for it sleep. A failure becomes one line of the logger ``augment.torch``.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from augment.errors import UsageError

WAIT_S = 120.0  #: how long the end of the training process waits for traces that are being augmented
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOG = logging.getLogger("augment.torch")


class Profiler(Protocol):
    """What is needed of ``torch.profiler.profile``."""

    step_num: int

    def export_chrome_trace(self, path: str) -> None:
        """Write the trace."""


def profile(
    folder: str | os.PathLike[str],
    *,
    wait: int = 10,
    warmup: int = 2,
    active: int = 5,
    repeat: int = 1,
    shapes: bool = True,
    memory: bool = False,
    stacks: bool = False,
    syncs: bool = True,
    run: str | None = None,
    server: str | None = None,
    keep_source: bool = True,
    wait_s: float = WAIT_S,
    **more: Any,
) -> Any:
    """A ``torch.profiler.profile`` whose traces are augmented: call its ``step()`` after each step.

    Args:
        folder: where traces and outputs go.
        wait: steps that are not recorded; the first ones compile kernels and fill caches.
        warmup: steps in which the profiler runs and nothing is kept: its start takes time.
        active: steps that are recorded; five are few enough for a browser and enough to see how steps vary.
        repeat: how often to do all this; 0: until the end.
        shapes: record the shapes of operators, which rooflines and MFU need.
        memory: record each allocation, which the memory analyses need.
        stacks: record Python functions and modules, which times by module need; the slowest setting by far.
        syncs: record synchronization of streams (``cuda_sync``), which critical paths need; CUDA only.
        run: see :func:`trace_handler`, as for ``server``, ``keep_source`` and ``wait_s``.
        server: a service that does the work.
        keep_source: whether to keep the traces themselves.
        wait_s: how long the end of the process waits for traces that are being augmented.
        more: further arguments of ``torch.profiler.profile``, which replace those of the preset.

    Raises:
        UsageError: PyTorch is not installed.
    """
    try:
        import torch.profiler as profiler
    except ImportError as error:
        raise UsageError("augment.torch.profile needs PyTorch: pip install torch") from error
    schedule: Callable[[int], Any] = profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    settings: dict[str, Any] = {
        "activities": profiler.supported_activities(),
        "schedule": schedule,
        "on_trace_ready": trace_handler(folder, run=run, server=server, keep_source=keep_source, wait_s=wait_s),
        "record_shapes": shapes,
        "profile_memory": memory,
        "with_stack": stacks,
        "experimental_config": None,
    }
    if syncs:
        with contextlib.suppress(ImportError, TypeError):  # a PyTorch before 2.1 lacks the setting
            from torch._C._profiler import _ExperimentalConfig

            settings["experimental_config"] = _ExperimentalConfig(enable_cuda_sync_events=True)
    return profiler.profile(**{**settings, **more})


def trace_handler(
    folder: str | os.PathLike[str],
    *,
    run: str | None = None,
    server: str | None = None,
    keep_source: bool = True,
    arguments: Sequence[str] = (),
    wait_s: float = WAIT_S,
) -> Callable[[Any], None]:
    """A handler for ``torch.profiler.profile(on_trace_ready=…)`` that writes each trace and has it augmented.

    The trace is ``rank3_step20.TIME.pt.trace.json``, in ``folder`` or its subfolder ``run``. Another process, of the
    lowest priority, compresses it and writes the augmented trace and the metrics beside it. On each machine one such
    process works at a time. The handler never raises: what fails is logged in one line.

    Args:
        folder: where traces and outputs go; made if necessary.
        run: the name of this run, a subfolder.
        server: ``HOST:PORT`` of a service (``augment serve``) that does the work.
        keep_source: whether to keep the trace itself once it is augmented.
        arguments: more arguments of ``augment run``, such as ``["--only", "steps"]`` or ``["--token-file", FILE]``.
        wait_s: how long the training process waits at its end for traces that are being augmented. Those that are not
            ready go on, unless the machine or container ends with the process.
    """
    target = Path(folder, run) if run else Path(folder)
    follow_up = file_handler(server=server, keep_source=keep_source, arguments=arguments, wait_s=wait_s)

    def handle(profiler: Profiler) -> None:
        try:
            trace = _written(profiler, target)
        except Exception as error:  # whatever it is, the training goes on
            _LOG.warning("augment: no trace in %s: %s: %s", target, type(error).__name__, error)
        else:
            follow_up(trace)

    return handle


def file_handler(
    *, server: str | None = None, keep_source: bool = True, arguments: Sequence[str] = (), wait_s: float = WAIT_S
) -> Callable[[str | os.PathLike[str]], None]:
    """A function to call with the path of a trace that has been written, which is then augmented.

    It is for trainers that write traces themselves and call a function afterwards, as torchtitan does. All else is as
    with :func:`trace_handler`, also the arguments.
    """
    flags = () if keep_source else ("--remove-source",)
    run_arguments = (*(("--server", server) if server else ()), *map(os.fspath, arguments))
    started: list[threading.Thread] = []
    atexit.register(_wait, started, wait_s)

    def handle(trace: str | os.PathLike[str]) -> None:
        try:
            started[:] = [thread for thread in started if thread.is_alive()]
            started.append(_started((*flags, os.fspath(trace), *run_arguments), Path(trace)))
        except Exception as error:  # whatever it is, the training goes on
            _LOG.warning("augment: %s is not augmented: %s: %s", trace, type(error).__name__, error)

    return handle


def _written(profiler: Profiler, folder: Path) -> Path:
    """The trace, in a file that appears when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = _rank()
    who = f"{socket.gethostname()}_{os.getpid()}" if rank is None else f"rank{rank}"
    trace = folder / f"{who}_step{profiler.step_num}.{time.time_ns()}.pt.trace.json"
    unfinished = trace.with_name(f".{trace.name}")
    try:
        profiler.export_chrome_trace(str(unfinished))
        unfinished.replace(trace)
    finally:
        unfinished.unlink(missing_ok=True)
    return trace


def _rank() -> int | None:
    """The rank of this process, from PyTorch or from what started the job; None if it is not part of one."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    known = (os.environ.get(name, "") for name in _RANKS)
    return next((int(value) for value in known if value.isdecimal()), None)


def _started(arguments: Sequence[str], trace: Path) -> threading.Thread:
    """A thread that waits for the process that augments ``trace``; a signal to the training does not reach that."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "augment.torch.follow_up", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )

    def watch() -> None:
        _, said = process.communicate()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        if process.returncode:
            why = lines[-1] if lines else f"exit {process.returncode}"
            _LOG.warning("augment: %s is not augmented: %s", trace, why)
        else:
            _LOG.info("augment: %s is augmented", trace)

    thread = threading.Thread(target=watch, name="augment", daemon=True)
    thread.start()
    return thread


def _wait(started: Sequence[threading.Thread], wait_s: float) -> None:
    """At the end of the training process: wait for the traces that are being augmented."""
    deadline = time.monotonic() + wait_s
    for thread in started:
        thread.join(max(0.0, deadline - time.monotonic()))
    if late := sum(thread.is_alive() for thread in started):
        _LOG.warning("augment: after %g s, %d traces are still being augmented", wait_s, late)

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
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from augment.errors import UsageError

MOST_WAITING = 8  #: traces of one process that wait to be augmented
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
    made = profiler.profile(**{**settings, **more})
    _stopped_by_sigterm(made, Path(folder, run or ""))
    return made


def _stopped_by_sigterm(profiler: Any, folder: Path) -> None:
    """Have SIGTERM, which ends jobs whose time is over, leave the trace of what was recorded; then it ends the process
    as before. Nothing is changed where the program has a handler of its own, nor in other threads than the first."""

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # launchers send it twice: to the process and to its group
        if profiler.current_action.name.startswith("RECORD"):
            said = "augment: SIGTERM: what was recorded is written to %s; augment run %s augments it"
            _LOG.warning(said, folder, folder)
        try:
            profiler.stop()  # as leaving its "with" does: writes the trace if steps are being recorded
        except Exception as error:  # whatever it is, the process is to end
            _LOG.warning("augment: no trace of what was recorded: %s: %s", type(error).__name__, error)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


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
        server: ``grpc://HOST:PORT`` of a service (``augment serve``) that does the work.
        keep_source: whether to keep the trace itself once it is augmented.
        arguments: more arguments of ``augment run``, such as ``["--only", "steps"]``.
        wait_s: how long the training process waits at its end for traces that are being augmented. One that is not
            ready goes on, unless the machine or container ends with the process; those that wait are named in the log.
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
    queue = Queue(flags, run_arguments)
    atexit.register(queue.wait, wait_s)

    def handle(trace: str | os.PathLike[str]) -> None:
        try:
            queue.put(Path(trace))
        except Exception as error:  # whatever it is, the training goes on
            _LOG.warning("augment: %s is not augmented: %s: %s", trace, type(error).__name__, error)

    return handle


class Queue:
    """Traces that wait to be augmented, one after the other, each by a process of its own; at most
    :data:`MOST_WAITING`: a training that records faster than that is not to be overtaken by its traces."""

    def __init__(self, flags: Sequence[str], arguments: Sequence[str]) -> None:
        """``flags`` and ``arguments`` of the other process, before and after the trace."""
        self._flags, self._arguments = flags, arguments
        self._waiting: deque[Path] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: Path | None = None

    def put(self, trace: Path) -> None:
        """Have ``trace`` augmented, unless too many wait."""
        with self._lock:
            self._last = trace
            if len(self._waiting) >= MOST_WAITING:
                _LOG.warning(
                    "augment: %s is not augmented: %d traces wait already; augment run %s augments it afterwards",
                    *(trace, MOST_WAITING, trace.parent),
                )
                return
            self._waiting.append(trace)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="augment", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                trace = self._waiting.popleft()
            try:
                _augment((*self._flags, os.fspath(trace), *self._arguments), trace)
            except Exception as error:  # whatever it is, the training goes on
                _LOG.warning("augment: %s is not augmented: %s: %s", trace, type(error).__name__, error)

    def wait(self, wait_s: float) -> None:
        """At the end of the training process: wait for the traces that are being augmented, and say what is left."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, wait_s))
        with self._lock:
            left, self._waiting = self._waiting, deque()  # none begins once the process has ended
        if self._thread is not None:
            _LOG.warning("augment: after %g s, a trace is still being augmented", wait_s)
        if left:
            _LOG.warning(
                "augment: after %g s, %d traces are not augmented: augment run %s", wait_s, len(left), left[0].parent
            )
        if self._last is not None and _rank() == 0 and os.environ.get("WORLD_SIZE", "1") != "1":
            _LOG.info("augment: figures of the whole job, once all ranks are done: augment run %s", self._last.parent)


def _written(profiler: Profiler, folder: Path) -> Path:
    """The trace, in a file that appears when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = _rank()
    who = f"{socket.gethostname()}_{os.getpid()}" if rank is None else f"rank{rank}"
    trace = folder / f"{who}_step{profiler.step_num}.{time.time_ns()}.pt.trace.json"
    unfinished = trace.with_name(f".{trace.name}")
    try:
        profiler.export_chrome_trace(str(unfinished))
        if not unfinished.exists():  # PyTorch raises nothing then
            raise OSError("PyTorch could not write it; is the disk full?")
        unfinished.replace(trace)
    finally:
        for left in (unfinished, Path(f"{unfinished}.tmp")):
            left.unlink(missing_ok=True)
    return trace


def _rank() -> int | None:
    """The rank of this process, from PyTorch or from what started the job; None if it is not part of one."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    known = (os.environ.get(name, "") for name in _RANKS)
    return next((int(value) for value in known if value.isdecimal()), None)


def _augment(arguments: Sequence[str], trace: Path) -> None:
    """Run the process that augments ``trace``, to its end; a signal to the training does not reach it."""
    from augment.torch.follow_up import killed_by  # here: the process runs that module as its program

    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "augment.torch.follow_up", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment,
        check=False,
    )
    if not done.returncode:
        _LOG.info("augment: %s is augmented", trace)
        return
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    why = killed_by(done.returncode) or (lines[-1] if lines else f"exit {done.returncode}")
    _LOG.warning("augment: %s is not augmented: %s", trace, why)

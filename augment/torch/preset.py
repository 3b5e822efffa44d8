"""A profiler with the settings that the analyses need."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from augment.errors import UsageError
from augment.torch.handler import WAIT_S, trace_handler


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
        "experimental_config": _with_syncs() if syncs else None,
    }
    return profiler.profile(**{**settings, **more})


def _with_syncs() -> Any:
    """The setting that records synchronization; None with a PyTorch that lacks it (before 2.1)."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(enable_cuda_sync_events=True)
    except (ImportError, TypeError):
        return None

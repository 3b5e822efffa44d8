"""Record in a training script, and augment beside it: a handler and a preset for PyTorch's profiler.

::

    import augment.torch

    with augment.torch.profile("traces") as profiler:
        for batch in batches:
            train(batch)
            profiler.step()

PyTorch is imported only by :func:`profile`.
"""

from __future__ import annotations

from augment.torch.handler import file_handler, profile, trace_handler

__all__ = ["file_handler", "profile", "trace_handler"]

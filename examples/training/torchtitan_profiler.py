"""Has torchtitan's traces augmented: a change of its configuration, and of none of its code.

In a function of a ``config_registry.py``::

    Trainer.Config(…, profiler=augmented(Profiler.Config(profile_freq=100)))

torchtitan writes ``profiling/traces/iteration_100/rank0_trace.json.gz``; the augmented trace and the metrics appear
beside it, so that each folder of an iteration is a job: ``augment run profiling/traces/iteration_100``.
"""

from __future__ import annotations

from typing import Any

from torchtitan.config.function import Function
from torchtitan.tools.profiler import Profiler

import augment.torch


def augmented(profiler: Profiler.Config, **settings: Any) -> Profiler.Config:
    """The configuration of a profiler that is switched on, and whose traces are augmented.

    Args:
        profiler: the configuration, which is changed.
        settings: arguments of :func:`augment.torch.file_handler`.
    """
    profiler.enable_profiling = True
    profiler.trace_post_processor = Function.Config(fn=augment.torch.file_handler(**settings))
    return profiler

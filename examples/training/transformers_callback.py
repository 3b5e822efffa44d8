"""A callback for Hugging Face's Trainer: ``Trainer(…, callbacks=[AugmentCallback("traces")])``.

A step is an optimizer step, with all its micro-batches.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

import augment.torch


class AugmentCallback(TrainerCallback):
    """Records some steps of each rank and has them augmented.

    Args:
        folder: where traces and outputs go.
        settings: arguments of :func:`augment.torch.profile`.
    """

    def __init__(self, folder: str, **settings: Any) -> None:
        self._folder, self._settings = folder, settings

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._profiler = augment.torch.profile(self._folder, **self._settings)
        self._profiler.start()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._profiler.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._profiler.stop()

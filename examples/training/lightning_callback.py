"""A callback for Lightning: ``Trainer(callbacks=[AugmentCallback("traces")])``."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

import augment.torch


class AugmentCallback(pl.Callback):
    """Records some steps of each rank and has them augmented.

    Args:
        folder: where traces and outputs go.
        settings: arguments of :func:`augment.torch.profile`.
    """

    def __init__(self, folder: str, **settings: Any) -> None:
        self._folder, self._settings = folder, settings

    def on_train_start(self, *_: Any) -> None:
        self._profiler = augment.torch.profile(self._folder, **self._settings)
        self._profiler.start()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._profiler.step()

    def on_train_end(self, *_: Any) -> None:
        self._profiler.stop()

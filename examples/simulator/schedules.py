"""The order in which a stage goes forward and backward with its microbatches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from simulator.communication import Communication


@dataclass(kw_only=True)
class Schedules(Communication):
    """A rank's step as passes of microbatches."""

    final: int = 0  #: the last microbatch of the backward

    def forward(self, batch: int, *, receives: bool = True) -> None:
        """The forward pass of a microbatch."""
        raise NotImplementedError

    def backward(self, batch: int, *, sends: bool = True) -> None:
        """Its backward pass."""
        raise NotImplementedError

    def label(self, what: str, batch: int) -> AbstractContextManager[object]:
        """The range of a program around the ``forward`` or ``backward`` of a microbatch."""
        if self.options.stage_labels == "torch":
            return self.b.annotation(f"{what.capitalize()} {batch}")
        if self.options.stage_labels == "megatron":
            line = {"forward": 225, "backward": 379}[what]
            return self.b.frame(f"megatron/core/pipeline_parallel/schedules.py({line}): {what}_step")
        return nullcontext()

    def run_schedule(self) -> None:
        """Forward and backward of all microbatches.

        By 1F1B (arXiv 1806.03377), a stage goes forward as often as there are stages after it, then once forward and
        once backward in turn, then backward. Between two of these it receives before it sends, as Megatron does in one
        call: else two neighbours would wait for each other.
        """
        many = self.options.microbatches
        ahead = many if self.options.schedule == "gpipe" else min(self.place.stages - 1 - self.place.stage, many)
        self.final = 0 if self.options.schedule == "gpipe" else many - 1
        for batch in range(ahead):
            with self.label("forward", batch):
                self.forward(batch)
        for batch in range(ahead, many):
            with self.label("forward", batch):
                self.forward(batch, receives=batch == ahead)
            last = batch == many - 1
            self.run_backward(batch - ahead, sends=last)
            if not last:
                self.message("recv", -1)
                self.message("send", -1)
        rest = reversed(range(many)) if self.options.schedule == "gpipe" else range(many - ahead, many)
        for batch in rest:
            self.run_backward(batch)

    def run_backward(self, batch: int, *, sends: bool = True) -> None:
        """The backward of a microbatch, as the engine runs it."""
        with (
            self.label("backward", batch),
            self.b.frame("torch/autograd/__init__.py(354): _engine_run_backward"),
        ):
            self.backward(batch, sends=sends)

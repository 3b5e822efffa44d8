"""The order in which a stage goes forward and backward with its microbatches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from simulator.communication import Communication
from simulator.orders import Action, chunks_of, goes_back, order_of, parts_in, parts_of, stage_of


@dataclass(kw_only=True)
class Schedules(Communication):
    """A rank's step as passes of microbatches."""

    final: int = 0  #: the last microbatch of the backward
    part: int = -1  #: the part of the model that is at work, if the schedule has actions

    @property
    def layers(self) -> range:
        """Of this stage, or of its part of the model that is at work."""
        chunks = chunks_of(self.options.schedule)
        count = self.options.layers // parts_in(self.options.schedule, self.place.stages)
        if self.part < 0:
            return range(chunks * count)
        first = count * parts_of(self.options.schedule, self.place.stage, self.place.stages).index(self.part)
        return range(first, first + count)

    @property
    def last(self) -> bool:
        """Whether this is the stage that has the loss, or the part of it."""
        last = parts_in(self.options.schedule, self.place.stages) - 1
        parts = parts_of(self.options.schedule, self.place.stage, self.place.stages)
        return last in parts if self.part < 0 else self.part == last

    def forward(self, batch: int, *, receives: bool = True) -> None:
        """The forward pass of a microbatch."""
        raise NotImplementedError

    def backward(self, batch: int, *, sends: bool = True, half: str = "B") -> None:
        """Its backward pass, whole or the ``half`` for inputs (``I``) or weights (``W``)."""
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
        if self.options.schedule not in ("gpipe", "1f1b"):
            self.run_actions()
            return
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

    def run_actions(self) -> None:
        """The actions of a schedule in their order. Messages are received when they are needed, and never waited for by
        their sender."""
        for action in order_of(self.options.schedule, self.place.stage, self.place.stages, self.options.microbatches):
            passes = action.passes()
            with self.action_label(action):
                for each in passes:
                    self.receive_from(each)
                for each in passes:
                    self.run_action(each)
                for each in passes:
                    self.send_on(each)

    def run_action(self, action: Action) -> None:
        """One pass."""
        schedule, many = self.options.schedule, self.options.microbatches
        self.part = action.part
        self.final = many - 1 if schedule != "dualpipe" or goes_back(schedule, action.batch, many) else many // 2 - 1
        if action.kind == "F":
            self.forward(action.batch)
        else:
            with self.b.frame("torch/autograd/__init__.py(354): _engine_run_backward"):
                self.backward(action.batch, half=action.kind)

    def stage_with(self, part: int, batch: int) -> int | None:
        """The other stage that has a part of the model, for this microbatch; None if it is this one, or none."""
        schedule, stages = self.options.schedule, self.place.stages
        if not 0 <= part < parts_in(schedule, stages):
            return None
        back = goes_back(schedule, batch, self.options.microbatches)
        stage = stage_of(schedule, part, stages, back=back)
        return stage if stage != self.place.stage else None

    def receive_from(self, action: Action) -> None:
        """Receive what a pass needs."""
        origin = self.stage_with(action.part - (1 if action.kind == "F" else -1), action.batch)
        if action.kind != "W" and origin is not None:
            self.receive_for(origin, Action("F" if action.kind == "F" else "B", action.part, action.batch))

    def send_on(self, action: Action) -> None:
        """Send what comes after a pass needs."""
        after = action.part + (1 if action.kind == "F" else -1)
        target = self.stage_with(after, action.batch)
        if action.kind != "W" and target is not None:
            self.send_for(target, Action("F" if action.kind == "F" else "B", after, action.batch))

    def action_label(self, action: Action) -> AbstractContextManager[object]:
        """The range of a program around an action."""
        if self.options.stage_labels == "torch" and action.kind == "O":
            part, batch = action.also
            return self.b.annotation(f"PP:({action.part}F{action.batch};{part}B{batch})OVERLAP_F_B")
        if self.options.stage_labels == "torch":
            return self.b.annotation(f"PP:{action.part}{action.kind}{action.batch}")
        return self.label("forward" if action.kind == "F" else "backward", action.batch)

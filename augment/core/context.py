"""What a run keeps beside a trace: what was recorded with it, the facts known so far, and the threads that share work.

A *fact* is a function of a trace that several analyses request. :func:`derived` makes one: computed at its first use,
by one thread, then kept until the stage of the run after which nobody requests it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar, get_args, overload

from augment.core.threads import ALONE, Threads

#: what a run does, in this order; ``augment/pipeline/__init__.py`` lists the analyses of each stage
Stage = Literal["critical path", "rules", "diagnosis", "operations", "breakdowns", "idle time", "summary", "writing"]
STAGES: tuple[Stage, ...] = get_args(Stage)
UNTIL: dict[str, Stage] = {}  #: by the key of a fact, the last stage that requests it; the others are kept

Attachment = TypeVar("Attachment")


class Context:
    """What surrounds a trace: ``facts`` by their key, ``threads``, and attachments: one object of a type.

    Args:
        attachments: what was recorded with the trace (``augment/core/attachments.py``).
        facts: those known already, which are shared; None: there are none.
        threads: that share the work on the trace.
        planned: the stage of each task of a run, and of what follows it; without any, all facts are kept.
    """

    __slots__ = ("_attachments", "_changing", "_left", "_locks", "facts", "threads")

    def __init__(
        self,
        attachments: Iterable[object] = (),
        facts: dict[str, Any] | None = None,
        threads: Threads = ALONE,
        planned: Sequence[Stage] = (),
    ) -> None:
        self._attachments = {type(each): each for each in attachments}
        self._locks: dict[str, threading.RLock] = {}
        self._left, self._changing = [*planned], threading.Lock()
        self.facts: dict[str, Any] = {} if facts is None else facts
        self.threads = threads

    def __reduce__(self) -> tuple[type[Context], tuple[list[object], dict[str, Any]]]:
        return Context, ([*self._attachments.values()], self.facts)

    def attached(self, kind: type[Attachment]) -> Attachment | None:
        """The attachment of this type, if there is one."""
        return self._attachments.get(kind)  # type: ignore[return-value]

    def fresh(self, *attachments: object) -> Context:
        """The context of a trace that was changed: with these ``attachments``, too, and without facts."""
        return Context([*self._attachments.values(), *attachments], None, self.threads)

    def of_run(self, threads: Threads, planned: Sequence[Stage] = ()) -> Context:
        """The same attachments and facts, for a run by these threads of the tasks of ``planned``."""
        return Context(self._attachments.values(), self.facts, threads, planned)

    def end(self, stage: Stage) -> None:
        """A task of ``stage`` has ended: drop the facts that none of those left, nor a stage to come, requests."""
        with self._changing:
            if stage in self._left:
                self._left.remove(stage)
                self.begin(min(self._left, key=STAGES.index))

    def begin(self, stage: Stage) -> None:
        """Drop the facts that nobody requests from ``stage`` on. One that is requested nevertheless is made again."""
        ended = STAGES[: STAGES.index(stage)]
        for key in list(self.facts):
            if UNTIL.get(key) in ended:
                self.facts.pop(key, None)

    def lock(self, key: str) -> threading.RLock:
        """The lock of a fact. Who holds it requests only facts further down, so threads never wait in a circle."""
        return self._locks.setdefault(key, threading.RLock())


class HasContext(Protocol):
    """A trace."""

    @property
    def context(self) -> Context:
        """What surrounds it."""


Recording = TypeVar("Recording", bound=HasContext)
Fact = TypeVar("Fact")
_UNKNOWN: Any = object()


@overload
def derived(compute: Callable[[Recording], Fact], /) -> Callable[[Recording], Fact]: ...
@overload
def derived(*, until: Stage) -> Callable[[Callable[[Recording], Fact]], Callable[[Recording], Fact]]: ...
def derived(compute: Callable[[Any], Any] | None = None, /, *, until: Stage | None = None) -> Any:
    """Make ``compute`` a fact of the trace.

    Args:
        compute: a function of the trace alone.
        until: the last stage of a run that requests the fact, which is dropped then; None: it is kept. What is small
            may be kept. ``tests/core/test_context.py`` fails if a later stage requests it.
    """
    if compute is None:
        return functools.partial(_fact, until=until)
    return _fact(compute)


def _fact(compute: Callable[[Recording], Fact], until: Stage | None = None) -> Callable[[Recording], Fact]:
    key = f"{compute.__module__}.{compute.__qualname__}"
    if until is not None:
        UNTIL[key] = until

    @functools.wraps(compute)
    def fact(trace: Recording) -> Fact:
        context = trace.context
        known: Fact = context.facts.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            with context.lock(key):
                known = context.facts.get(key, _UNKNOWN)
                if known is _UNKNOWN:
                    known = context.facts[key] = compute(trace)
        return known

    return fact

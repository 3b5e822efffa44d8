"""The catalogue of facts: what is known of a trace, as functions of the trace that are computed once.

::

    from augment import facts

    work = facts.gpu.work(trace)
    stacks = facts.host.stacks(trace)

A namespace is a folder; its ``__init__.py`` lists its public facts, and a fact's record says what each column is:
``docs/facts.md`` shows all of them. Other modules hold what a few facts share.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from augment.facts import collectives, critical, gpu, host, memory, names, operators, source, steps, waits

__all__ = ["collectives", "critical", "gpu", "host", "memory", "names", "operators", "source", "steps", "waits"]


def __getattr__(name: str) -> Any:
    """A namespace, loaded when it is first used."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Which facts a function may request, determined from its code and the code of everything that it names.

The result may be inexact: a fact that is dropped too early is computed once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from augment.trace import FACT_KEY

_MOST_ITEMS = 500  #: of a collection that may hold functions
_ASKING = (FunctionType, MethodType, ModuleType, staticmethod, classmethod, property, partial, type, tuple, list, dict)


def facts_asked(asking: Iterable[Any]) -> set[str]:
    """The keys in ``Trace.facts`` of the facts that functions, or the functions of modules or classes, may request."""
    direct = _Direct()
    return _closure(set[str]().union(*map(direct.of, asking)), direct.within)


def _closure(keys: Iterable[str], within: Mapping[str, Iterable[str]]) -> set[str]:
    """``keys``, and what is reached from them by ``within``."""
    reached, waiting = set[str](), list(keys)
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting += within[key]
    return reached


class _Part:
    """A function, or an object that holds functions, and its key if it is a fact."""

    __slots__ = ("_within", "key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._within: list[_Part] | None = None
        self.key: str | None = getattr(value, FACT_KEY, None)

    def within(self, known: dict[int, _Part]) -> list[_Part]:
        """The objects that it names or holds."""
        if self._within is None:
            values = _within(getattr(self.value, "__wrapped__", self.value))
            self._within = [_part(value, known) for value in values if _may_ask(value)]
        return self._within


def _part(value: object, known: dict[int, _Part]) -> _Part:
    part = known.get(id(value))
    if part is None:
        part = known[id(value)] = _Part(value)
    return part


def _may_ask(value: Any) -> bool:
    """Whether ``value`` may lead to facts: nothing outside of the package does, nor a collection without functions."""
    if isinstance(value, FunctionType | type):
        return _is_ours(value.__module__) or hasattr(value, "__wrapped__")
    if isinstance(value, ModuleType):
        return _is_ours(value.__name__)
    if isinstance(value, tuple | list | dict):
        return len(value) <= _MOST_ITEMS and any(map(_is_asking, value.values() if isinstance(value, dict) else value))
    return _is_asking(value)


def _is_asking(value: Any) -> bool:
    return isinstance(value, _ASKING) or hasattr(value, "__wrapped__")


class _Direct:
    """Which facts functions request themselves, not by way of other facts; and the same of each of these facts.

    Args:
        apart: objects that are not followed, except where they are asked for themselves.
    """

    def __init__(self, apart: Iterable[object] = ()) -> None:
        self._known: dict[int, _Part] = {}
        self._apart = {_part(each, self._known) for each in apart}
        self.within: dict[str, set[str]] = {}  #: by the key of a fact

    def of(self, value: object) -> set[str]:
        """The keys of the facts that ``value`` requests, or its own if it is one."""
        part = _part(value, self._known)
        return self._reached(part) if part.key is None else {self._of_fact(part.key, part)}

    def _of_fact(self, key: str, fact: _Part) -> str:
        """``key``, once it is known what its fact requests."""
        if key not in self.within:
            self.within[key] = set()  # a fact may name itself
            self.within[key] = self._reached(fact)
        return key

    def _reached(self, start: _Part) -> set[str]:
        keys, seen, waiting = set[str](), set(self._apart), list(start.within(self._known))
        while waiting:
            part = waiting.pop()
            if part in seen:
                continue
            seen.add(part)
            if part.key is None:
                waiting += part.within(self._known)
            else:
                keys.add(self._of_fact(part.key, part))
        return keys


class Forgetting:
    """Drops facts that nobody will request any more.

    A known fact requests no others: what went into it is dropped as soon as nobody else requests that.

    Args:
        facts: those of a trace.
        asking: who asks, by name.
        later: who asks after all of them.
        parts: those who are asked by one of ``asking``, by name: what they request counts for them alone.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        asking: Mapping[str, object],
        later: Iterable[object],
        parts: Mapping[str, object] | None = None,
    ) -> None:
        parts = parts or {}
        direct = _Direct(parts.values())
        self._facts, self._lock, self._within = facts, Lock(), direct.within
        self._later = set[str]().union(*map(direct.of, later))
        self._asked = {name: direct.of(each) for name, each in {**asking, **parts}.items()}

    def ended(self, name: str) -> None:
        """Record that the one called ``name`` will request no more facts."""
        with self._lock:
            self._asked.pop(name, None)
            needed = self._needed()
            for key in self._facts.keys() - needed:
                self._facts.pop(key, None)

    def _needed(self) -> set[str]:
        within = {key: () if key in self._facts else asked for key, asked in self._within.items()}
        return _closure(self._later.union(*self._asked.values()), within)


def _within(value: Any) -> Iterator[Any]:
    """The objects that a function of the package names, and the members of its modules, classes and small
    collections.
    """
    match value:
        case MethodType() | staticmethod() | classmethod():
            yield value.__func__
        case property():
            yield value.fget
        case partial():
            yield from (value.func, *value.args)
        case FunctionType() if _is_ours(value.__module__):
            names = set(_names(value.__code__))
            yield from (value.__globals__[name] for name in names if name in value.__globals__)
            yield from _imported(names)
            yield from (cell.cell_contents for cell in value.__closure__ or ())
        case ModuleType() if _is_ours(value.__name__):
            yield from (part for part in vars(value).values() if getattr(part, "__module__", "") == value.__name__)
        case type() if _is_ours(value.__module__):
            yield from vars(value).values()
        case tuple() | list() if len(value) <= _MOST_ITEMS:
            yield from value
        case dict() if len(value) <= _MOST_ITEMS:
            yield from value.values()


def _is_ours(module: str | None) -> bool:
    return bool(module) and str(module).startswith("augment.")


def _imported(names: set[str]) -> Iterator[Any]:
    """The modules of the package that a function imports itself."""
    for package in filter(_is_ours, names):
        module = import_module(package)
        for name in (name for name in names if "." not in name):
            if hasattr(module, name):
                yield getattr(module, name)
            elif hasattr(module, "__path__") and find_spec(f"{package}.{name}"):
                yield import_module(f"{package}.{name}")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

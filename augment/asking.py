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
    """A function, or an object that holds functions: the objects that it names or holds, and its key if it is a
    fact.
    """

    __slots__ = ("key", "value", "within")

    def __init__(self, value: Any, within: list[Any]) -> None:
        self.value, self.within = value, [part for part in within if _may_ask(part)]
        self.key: str | None = getattr(value, FACT_KEY, None)


def _part(value: object, known: dict[int, _Part]) -> _Part:
    if id(value) not in known:
        known[id(value)] = _Part(value, list(_within(getattr(value, "__wrapped__", value))))
    return known[id(value)]


def _may_ask(value: Any) -> bool:
    return isinstance(value, _ASKING) or hasattr(value, "__wrapped__")


class _Direct:
    """Which facts functions request themselves, not by way of other facts; and the same of each of these facts.

    Args:
        apart: objects that are not followed, except where they are asked for themselves.
    """

    def __init__(self, apart: Iterable[object] = ()) -> None:
        self._apart = {id(each) for each in apart}
        self._known: dict[int, _Part] = {}
        self.within: dict[str, set[str]] = {}  #: by the key of a fact

    def of(self, value: object) -> set[str]:
        """The keys of the facts that ``value`` requests, or its own if it is one."""
        part = _part(value, self._known)
        if part.key is None:
            return self._reached(part.within)
        if part.key not in self.within:
            self.within[part.key] = set()  # a fact may name itself
            self.within[part.key] = self._reached(part.within)
        return {part.key}

    def _reached(self, values: Iterable[object]) -> set[str]:
        keys, seen, waiting = set[str](), set(self._apart), list(values)
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            part = _part(value, self._known)
            if part.key is None:
                waiting += part.within
            else:
                keys |= self.of(value)
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

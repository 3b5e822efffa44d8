"""A faster ``dataclass`` for hundreds of records: methods are made at their first use.

The standard library writes and compiles the text of up to seven methods for each class when its module is loaded, which
took a quarter of ``augment run`` on a small file. Most classes of a run make no instance. Type checkers see the
standard library's.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: Any = None, /, *, frozen: bool = False, slots: bool = False, **others: bool) -> Any:
        """``dataclasses.dataclass``, with the options that the package uses: frozen, slots, eq and repr."""

        def made(cls: Any) -> Any:
            return _record(cls, frozen=frozen, slots=slots, **others)

        return made if cls is None else made(cls)


def _record(cls: Any, *, frozen: bool, slots: bool, eq: bool = True, repr: bool = True) -> Any:  # noqa: A002
    given = set(cls.__dict__)
    if not cls.__doc__:
        cls.__doc__ = ""  # the standard library would write one, from the signature
    above = [vars(base)["__dataclass_params__"] for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    if any(params.frozen for params in above):
        return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, repr=repr)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    wanted = ["__init__", *(["__repr__"] if repr else []), *(["__eq__"] if eq else [])]
    if eq and frozen:
        wanted.append("__hash__")
    for name in wanted:
        if name not in given:
            setattr(made, name, _Late(made, name, frozen))
    if eq and not frozen and "__hash__" not in given:
        made.__hash__ = None
    if frozen:
        made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
        if slots and "__getstate__" not in given:
            made.__getstate__, made.__setstate__ = _state, _set_state
    params = made.__dataclass_params__
    params.frozen, params.eq, params.repr, params.init = frozen, eq, repr, True
    return made


class _Late:
    """A method of a record that is made at its first use, and then replaces this placeholder."""

    def __init__(self, cls: Any, name: str, frozen: bool) -> None:
        self._cls, self._name, self._frozen = cls, name, frozen

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        cls, name = self._cls, self._name
        if isinstance(cls.__dict__[name], _Late):  # otherwise another thread was faster
            setattr(cls, name, self._method())
        method = cls.__dict__[name]
        return method if instance is None else method.__get__(instance, owner)

    def _method(self) -> Callable[..., Any]:
        if self._name == "__init__":
            method = _init(self._cls, self._frozen)
        else:
            method = _by_the_standard_library(self._cls, self._name)
        method.__qualname__ = f"{self._cls.__qualname__}.{self._name}"
        return method


class _Factory:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: Any, frozen: bool) -> Callable[..., Any]:
    """The method that sets the fields. Most classes need it; the standard library takes ten times as long to make it
    together with its other methods.
    """
    parameters, lines = ["self"], []
    names: dict[str, Any] = {"_put": object.__setattr__, "_factory": _FACTORY}
    for field in dataclasses.fields(cls):
        name, made = field.name, f"_make_{field.name}"
        value = name
        if field.default_factory is not dataclasses.MISSING:
            names[made] = field.default_factory
            value = f"{made}() if {name} is _factory else {name}" if field.init else f"{made}()"
        elif not field.init:
            continue  # __post_init__ sets the value
        if field.init:
            names[f"_of_{name}"] = field.default
            has_default = value != name or field.default is not dataclasses.MISSING
            parameters.append(f"{name}={'_factory' if value != name else f'_of_{name}'}" if has_default else name)
        lines.append(f"_put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
    exec(text, names)  # noqa: S102 - built from names of fields, as in the standard library
    init: Callable[..., Any] = names["__init__"]
    init.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    init.__annotations__["return"] = None
    return init


def _by_the_standard_library(cls: Any, name: str) -> Callable[..., Any]:
    """A method, made for a class of the same fields."""
    fields = [(field.name, field.type, copy.copy(field)) for field in dataclasses.fields(cls)]
    alike = dataclasses.make_dataclass(
        cls.__name__,
        fields,
        namespace={"__module__": cls.__module__, "__doc__": ""},
        init=False,
        repr=name == "__repr__",
        eq=name != "__repr__",
        frozen=name == "__hash__",
    )
    method: Callable[..., Any] = alike.__dict__[name]
    return method


def _refuse_to_set(_self: Any, name: str, _value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

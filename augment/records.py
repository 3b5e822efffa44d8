"""A faster ``dataclass`` for hundreds of records: methods are made at their first use.

The standard library writes and compiles the text of up to seven methods for each class when its module is loaded, which
took a quarter of ``augment run`` on a small file. Most classes of a run make no instance. Type checkers see the
standard library's.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
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
    above = [getattr(base, _PARAMS) for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    if any(params.frozen for params in above):
        return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, repr=repr)
    annotations = cls.__annotations__
    plain = cls.__bases__ == (object,) and not any(map(_is_special, annotations.values()))
    made: Any = _shaped(cls, annotations, slots, (frozen, eq, repr)) if plain else _standard(cls, slots)
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
    if not plain:
        _set_params(made.__dataclass_params__, frozen, eq, repr)
    return made


def _is_special(annotation: Any) -> bool:
    """Whether an annotation may declare something else than a field."""
    return not isinstance(annotation, str) or any(word in annotation for word in ("ClassVar", "InitVar", "KW_ONLY"))


def _standard(cls: Any, slots: bool) -> Any:
    return dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)


def _set_params(params: Any, frozen: bool, eq: bool, repr: bool) -> None:  # noqa: A002
    params.frozen, params.eq, params.repr, params.init = frozen, eq, repr, True


def _shaped(cls: Any, annotations: dict[str, Any], slots: bool, params: tuple[bool, bool, bool]) -> Any:
    """``cls`` as the standard library makes it, without methods; its description is made when somebody asks for it."""
    namespace = dict(vars(cls))
    defaults = {name: namespace.pop(name) for name in annotations if name in namespace}
    late = _Description(annotations, defaults, params)
    fields = [name for name, default in defaults.items() if isinstance(default, dataclasses.Field)]
    match = tuple(name for name in annotations if name not in fields or defaults[name].init)
    described: dict[str, Any] = {name: _LatePart(late, name) for name in ("__dataclass_fields__", _PARAMS)}
    described |= {"__match_args__": match, _DESCRIPTION: late}
    if slots:
        namespace.pop("__dict__", None)
        namespace.pop("__weakref__", None)
        made = type(cls)(cls.__name__, (), {**namespace, **described, "__slots__": tuple(annotations)})
        made.__qualname__ = cls.__qualname__
    else:
        made = cls
        for name, value in described.items():
            setattr(made, name, value)
        for name in fields:  # a default alone stays an attribute
            delattr(made, name)
            if defaults[name].default is not dataclasses.MISSING:
                setattr(made, name, defaults[name].default)
    late.cls = made
    return made


_DESCRIPTION, _PARAMS = "__record__", "__dataclass_params__"  #: the first is the attribute with a :class:`_Description`
_describing = threading.RLock()  #: a default may be a record itself


class _Description:
    """The fields of a record, as its class lists them."""

    def __init__(self, annotations: dict[str, Any], defaults: dict[str, Any], params: tuple[bool, bool, bool]) -> None:
        self.annotations, self.defaults, self.params = annotations, defaults, params
        self.cls: Any = None

    def expand(self) -> None:
        """Put the standard library's description of the fields in place of the placeholders."""
        with _describing:
            if not isinstance(vars(self.cls)["__dataclass_fields__"], _LatePart):
                return  # another thread was faster
            fields = [
                (name, kind, self.defaults[name]) if name in self.defaults else (name, kind)
                for name, kind in self.annotations.items()
            ]
            namespace = {"__module__": self.cls.__module__, "__doc__": ""}
            alike: Any = dataclasses.make_dataclass(
                self.cls.__name__, fields, namespace=namespace, init=False, repr=False, eq=False
            )
            _set_params(alike.__dataclass_params__, *self.params)
            self.cls.__dataclass_params__ = alike.__dataclass_params__
            self.cls.__dataclass_fields__ = alike.__dataclass_fields__

    def parameters(self) -> Iterator[tuple[str, Any, bool, Any, Any]]:
        """Of each field: its name, its type, whether it is a parameter, its default and its factory."""
        for name, kind in self.annotations.items():
            default = self.defaults.get(name, dataclasses.MISSING)
            if isinstance(default, dataclasses.Field):
                yield name, kind, default.init, default.default, default.default_factory
            else:
                yield name, kind, True, default, dataclasses.MISSING


class _LatePart:
    """A part of the standard library's description of a class, made when it is first asked for."""

    def __init__(self, description: _Description, name: str) -> None:
        self._description, self._name = description, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self._description.expand()
        return vars(self._description.cls)[self._name]


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
    annotations: dict[str, Any] = {}
    for name, kind, init, default, factory in _parameters(cls):
        value, made = name, f"_make_{name}"
        if factory is not dataclasses.MISSING:
            names[made] = factory
            value = f"{made}() if {name} is _factory else {name}" if init else f"{made}()"
        elif not init:
            continue  # __post_init__ sets the value
        if init:
            annotations[name] = kind
            names[f"_of_{name}"] = default
            has_default = value != name or default is not dataclasses.MISSING
            parameters.append(f"{name}={'_factory' if value != name else f'_of_{name}'}" if has_default else name)
        lines.append(f"_put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
    exec(text, names)  # noqa: S102 - built from names of fields, as in the standard library
    method: Callable[..., Any] = names["__init__"]
    method.__annotations__ = {**annotations, "return": None}
    return method


def _parameters(cls: Any) -> Iterator[tuple[str, Any, bool, Any, Any]]:
    """See :meth:`_Description.parameters`."""
    description = vars(cls).get(_DESCRIPTION)
    if description is not None:
        return description.parameters()  # type: ignore[no-any-return]
    fields = dataclasses.fields(cls)
    return ((each.name, each.type, each.init, each.default, each.default_factory) for each in fields)


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

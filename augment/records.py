"""A faster ``dataclass`` for hundreds of records: methods are made at their first use.

The standard library writes and compiles the text of up to seven methods for each class when its module is loaded, which
took a quarter of ``augment run`` on a small file. Most classes of a run make no instance, or few; only the constructor
of those with many is compiled. Type checkers see the standard library's.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
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
    if not cls.__doc__:
        cls.__doc__ = ""  # the standard library would write one, from the signature
    above = [getattr(base, _PARAMS) for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    if any(params.frozen for params in above):
        return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, repr=repr)
    params = (frozen, eq, repr)
    methods = _methods(vars(cls), params, slots)
    annotations = cls.__annotations__
    if not above and not any(map(_is_special, annotations.values())):
        made = _shaped(cls, annotations, slots, params, methods)
    else:
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        _set_params(made.__dataclass_params__, params)
        for name, method in methods.items():
            setattr(made, name, method)
    for method in methods.values():
        if isinstance(method, _Late):
            method.cls = made
    return made


def _methods(given: Mapping[str, Any], params: tuple[bool, bool, bool], slots: bool) -> dict[str, Any]:
    """The methods of a record that its class does not have."""
    frozen, eq, has_repr = params
    wanted = ["__init__", *(["__repr__"] if has_repr else []), *(["__eq__"] if eq else [])]
    if eq and frozen:
        wanted.append("__hash__")
    methods: dict[str, Any] = {name: _Late(name, frozen) for name in wanted if name not in given}
    if "__init__" in methods:
        methods["__init__"] = _LateInit("__init__", frozen)
    if eq and not frozen and "__hash__" not in given:
        methods["__hash__"] = None
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots and "__getstate__" not in given:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    return methods


def _is_special(annotation: Any) -> bool:
    """Whether an annotation may declare something else than a field."""
    return not isinstance(annotation, str) or any(word in annotation for word in ("ClassVar", "InitVar", "KW_ONLY"))


def _set_params(description: Any, params: tuple[bool, bool, bool]) -> None:
    description.frozen, description.eq, description.repr = params
    description.init = True


def _shaped(
    cls: Any, annotations: dict[str, Any], slots: bool, params: tuple[bool, bool, bool], methods: dict[str, Any]
) -> Any:
    """``cls`` as the standard library makes it, with ``methods``; its description is made when somebody asks for it."""
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
        namespace |= {**described, **methods, "__qualname__": cls.__qualname__, "__slots__": tuple(annotations)}
        made = type(cls)(cls.__name__, cls.__bases__, namespace)
    else:
        made = cls
        for name, value in (*described.items(), *methods.items()):
            setattr(made, name, value)
        for name in fields:  # a default alone stays an attribute
            delattr(made, name)
            if defaults[name].default is not dataclasses.MISSING:
                setattr(made, name, defaults[name].default)
    late.cls = made
    return made


_DESCRIPTION, _PARAMS = "__record__", "__dataclass_params__"  #: the first is the attribute with a :class:`_Description`
_describing = threading.RLock()  #: a default may be a record itself


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Described:
    """Without this text, the standard library would write one, for which it loads and compiles much."""

    field: Any


_TEMPLATE: Any = _Described  #: a class as the standard library describes it


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
            fields = {name: _described(name, kind, self.defaults) for name, kind in self.annotations.items()}
            params = copy.copy(_TEMPLATE.__dataclass_params__)
            _set_params(params, self.params)
            self.cls.__dataclass_params__ = params
            self.cls.__dataclass_fields__ = fields

    def parameters(self) -> Iterator[tuple[str, Any, bool, Any, Any]]:
        """Of each field: its name, its type, whether it is a parameter, its default and its factory."""
        for name, kind in self.annotations.items():
            default = self.defaults.get(name, dataclasses.MISSING)
            if isinstance(default, dataclasses.Field):
                yield name, kind, default.init, default.default, default.default_factory
            else:
                yield name, kind, True, default, dataclasses.MISSING


def _described(name: str, kind: Any, defaults: Mapping[str, Any]) -> Any:
    """The description of a field, as the standard library makes it together with a class."""
    default = defaults.get(name, dataclasses.MISSING)
    made: Any = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
    made.name, made.type, made.kw_only = name, kind, False
    made._field_type = _TEMPLATE.__dataclass_fields__["field"]._field_type  # an ordinary field
    return made


class _LatePart:
    """A part of the standard library's description of a class, made when it is first asked for."""

    def __init__(self, description: _Description, name: str) -> None:
        self._description, self._name = description, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self._description.expand()
        return vars(self._description.cls)[self._name]


class _Late:
    """A method of a record that is made at its first use, and then replaces this placeholder in ``cls``."""

    cls: Any

    def __init__(self, name: str, frozen: bool) -> None:
        self._name, self._frozen = name, frozen

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        method = self.made()
        return method if instance is None else method.__get__(instance, owner)

    def made(self) -> Callable[..., Any]:
        """The method."""
        cls, name = self.cls, self._name
        if isinstance(cls.__dict__[name], _Late):  # otherwise another thread was faster
            method = _init(cls, self._frozen) if name == "__init__" else _MAKERS[name](cls)
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
        return cls.__dict__[name]  # type: ignore[no-any-return]


_MANY = 40  #: instances, from which on compiling a method takes less time than setting the fields of each in a loop


class _LateInit(_Late):
    """The first instances of a class are set up without a method: most classes of a run have one or two."""

    def __init__(self, name: str, frozen: bool) -> None:
        super().__init__(name, frozen)
        self._set_up: Callable[..., None] | None = None
        self._calls = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self._calls += 1
        if instance is None or self._calls > _MANY:
            return super().__get__(instance, owner)
        if self._set_up is None:
            self._set_up = self._in_a_loop()
        return partial(self._set_up, instance)

    def _in_a_loop(self) -> Callable[..., None]:
        fields = [(name, *rest) for name, _, *rest in _parameters(self.cls)]
        names = [name for name, is_parameter, *_ in fields if is_parameter]
        put = object.__setattr__ if self._frozen else setattr
        prepare = getattr(self.cls, "__post_init__", None)
        missing = dataclasses.MISSING

        def set_up(self_: Any, *values: Any, **named: Any) -> None:
            given = dict(zip(names, values, strict=False)) | named
            expected = len(values) + len(named)
            for name, is_parameter, default, factory in fields:
                if is_parameter and name in given:
                    put(self_, name, given[name])
                    expected -= 1
                elif factory is not missing:
                    put(self_, name, factory())
                elif is_parameter:
                    if default is missing:
                        expected = -1
                        break
                    put(self_, name, default)
            if expected:
                self.made()(self_, *values, **named)  # raises TypeError: the arguments are not those of the class
            elif prepare is not None:
                self_.__post_init__()

        return set_up


class _Factory:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: Any, frozen: bool) -> Callable[..., Any]:
    """The method that sets the fields."""
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


def _values(cls: Any, wanted: Callable[[dataclasses.Field[Any]], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the values of the wanted fields."""
    names = [field.name for field in dataclasses.fields(cls) if wanted(field)]
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda record: (getattr(record, names[0]),)) if names else (lambda _record: ())


def _eq(cls: Any) -> Callable[..., Any]:
    values = _values(cls, lambda field: field.compare)

    def __eq__(self: Any, other: Any) -> Any:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(cls: Any) -> Callable[..., Any]:
    values = _values(cls, lambda field: field.compare if field.hash is None else field.hash)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _repr(cls: Any) -> Callable[..., Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


_MAKERS = {"__eq__": _eq, "__hash__": _hash, "__repr__": _repr}


def _refuse_to_set(_self: Any, name: str, _value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

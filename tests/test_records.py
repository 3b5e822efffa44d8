"""Records against the standard library's dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from augment import records
from augment.trace import Track

OPTIONS = [
    {}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}, {"slots": True, "repr": False},
    {"frozen": True, "slots": True, "eq": False},
]  # fmt: skip


def classes(decorator: Any, options: dict[str, bool]) -> tuple[Any, Any]:
    """A class with each kind of field, and one that inherits from it."""

    class Example:
        """An example."""

        number: int
        text: str = "a"
        items: list[int] = dataclasses.field(default_factory=list)
        hidden: int = dataclasses.field(default=3, compare=False, repr=False)
        counted: dict[str, int] = dataclasses.field(default_factory=dict, init=False, hash=False)

    base = decorator(**options)(Example)

    class Derived(base):
        more: int = 5

        def __post_init__(self) -> None:
            object.__setattr__(self, "more", self.more + 1)

    return base, decorator(**options)(Derived)


def seen(first: Any, other: Any) -> dict[str, Any]:
    """What can be observed of two instances."""
    made: dict[str, Any] = {"repr": repr(first).split("at 0x")[0], "equal": first == other, "unequal": first != other}
    made |= {"values": dataclasses.asdict(first), "match": first.__match_args__, "slots": hasattr(first, "__dict__")}
    made["not"] = first == 1
    for name, act in {
        "hash": lambda: hash(first) == hash(copy.copy(first)),
        "set": lambda: setattr(first, "number", 1),
        "delete": lambda: delattr(first, "text"),
        "foreign": lambda: type(first)(),
    }.items():
        try:
            made[name] = act()
        except Exception as error:
            made[name] = type(error)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_records_are_what_dataclasses_are(options: dict[str, bool]) -> None:
    def observed(decorator: Any) -> list[Any]:
        output: list[Any] = []
        for cls in classes(decorator, options):
            output.append(str(inspect.signature(cls)))
            output.append([(field.name, field.init, field.compare) for field in dataclasses.fields(cls)])
            params = cls.__dataclass_params__
            output.append((params.frozen, params.eq, params.repr, params.init))
            for each, other in [((1,), (1,)), ((1, "b"), (2, "b")), ((1, "c", [1], 4), (1, "c", [1], 5))]:
                output.append(seen(cls(*each), cls(*other)))
            output.append(seen(cls(number=1), dataclasses.replace(cls(1), number=2)))
            output.append(seen(copy.deepcopy(cls(7, items=[1])), cls(7, items=[1])))
        return output

    assert observed(records.dataclass) == observed(dataclasses.dataclass)


def test_records_are_copied_between_processes() -> None:
    track = Track(1, 2, "tid", thread_name="main")
    assert pickle.loads(pickle.dumps(track)) == track


def test_a_subclass_may_call_the_method_before_it_was_made() -> None:
    class Derived(classes(records.dataclass, {"slots": True})[0]):
        def __init__(self) -> None:
            super().__init__(4, "d")

    assert (Derived().number, Derived().text) == (4, "d")


def test_the_first_use_may_be_by_several_threads() -> None:
    base, _ = classes(records.dataclass, {"frozen": True, "slots": True})
    with ThreadPoolExecutor(8) as pool:
        assert [each.number for each in pool.map(base, range(100))] == list(range(100))


def test_own_methods_stay() -> None:
    class Own:
        value: int = 0

        def __init__(self) -> None:
            self.value = 9

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    made: Any = records.dataclass(Own)
    assert (made().value, hash(made()), repr(made()), made() == 1) == (9, 5, "own", True)


def test_methods_are_made_late() -> None:
    base, _ = classes(records.dataclass, {"frozen": True})
    first = base(1)
    assert isinstance(base.__dict__["__init__"], records._Late)
    assert isinstance(base.__dict__["__repr__"], records._Late)
    assert {base(1) == first for _ in range(2 * records._MANY)} == {True}
    assert inspect.isfunction(base.__dict__["__init__"])
    assert inspect.isfunction(base.__dict__["__eq__"])
    assert isinstance(base.__dict__["__repr__"], records._Late)


@pytest.mark.parametrize("count", [1, 2 * records._MANY])
def test_wrong_arguments_are_refused_as_in_any_function(count: int) -> None:
    base, derived = classes(records.dataclass, {"frozen": True, "slots": True})
    for cls in (base, derived):
        for _ in range(count):
            assert cls(number=3, hidden=5).hidden == 5
        with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'number'"):
            cls(text="b")
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'counted'"):
            cls(1, counted={})
        with pytest.raises(TypeError, match=r"multiple values for argument 'number'"):
            cls(1, number=2)
        with pytest.raises(TypeError, match=r"positional arguments but"):
            cls(*range(9))


def test_a_record_may_have_a_base_that_is_none() -> None:
    class Base:
        greeting = "hello"

        def greet(self) -> str:
            return self.greeting

    class Example(Base):
        greeting: str = "good day"

        def greet(self) -> str:
            return super().greet().upper()

    made: Any = records.dataclass(Example)
    assert (made().greet(), made("hi").greet()) == ("GOOD DAY", "HI")
    assert repr(made("x")).endswith("Example(greeting='x')")


def test_a_default_may_be_a_record() -> None:
    class Inner:
        number: int = 1

    class Outer:
        inner: Any = records.dataclass(frozen=True, slots=True)(Inner)()  # the field asks for its hash

    made: Any = records.dataclass(frozen=True, slots=True)(Outer)
    assert dataclasses.fields(made)[0].default.number == made().inner.number == 1

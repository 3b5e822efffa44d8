"""Converts JSON, paths and queries to messages, and messages to JSON, in the form of grpc-gateway; and finds methods.

Names of fields are in lowerCamelCase; the names of the .proto files are accepted, too. 64-bit integers are strings,
bytes are base64, enums are names. Responses contain every field that is not in a oneof, even if it is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from google.api import annotations_pb2, http_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from augment_server.base.errors import Refusal

MOST_DEPTH = 20  #: maximum nesting of objects
_KEYED = re.compile(r"(\w+)\[([^\[\]]*)\]")  #: ``labels[team]``
#: protobuf's errors for an unknown field and for an invalid value
_UNKNOWN = re.compile(r'no field named "([^"]*)" at "\w+\.?([^"]*)".*?: "\[(.*)\]"')
_INNER = re.compile(r"Failed to parse (\w+) field: ")
_WHERE = re.compile(r" at \w+\.?([\w.\[\]]*?)\.*$")
#: types that are strings in JSON
_TEXTS = ("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def request_of(match: Found, query: Sequence[tuple[str, str]], body: bytes = b"") -> Message:
    """The message for a request.

    Args:
        found: its route, with the fields from the path.
        query: its parameters.
        body: JSON, if the route takes a body.

    Raises:
        Refusal: a field does not exist, or a value is invalid.
    """
    descriptor, members = match.route.method.input_type, dict[str, Any]()
    taken = match.route.body
    if taken == "*":
        members = _object(body, descriptor) if body.strip() else {}
    elif taken and body:
        members[taken] = _object(body, descriptor.fields_by_name[taken].message_type)
    for name, values in _by_name(query).items():
        if taken == "*":
            raise _bad(name, "a request with a JSON body takes no parameters; put it into the body")
        if taken and name.partition(".")[0] == taken:
            raise _bad(name, "must be set by the body, not by a parameter")
        _put(members, descriptor, name, values)
    for name, value in match.fields.items():
        _put(members, descriptor, name, [value])
    return parsed(members, descriptor)


def streamed(text: bytes, descriptor: Descriptor) -> Message:
    """A message of a stream, from one line of JSON.

    Raises:
        Refusal: the line is not such a message.
    """
    return parsed(_object(text, descriptor), descriptor)


def parsed(members: dict[str, Any], descriptor: Descriptor) -> Message:
    """A message from JSON.

    Raises:
        Refusal: a field does not exist, or a value has another type.
    """
    message = message_factory.GetMessageClass(descriptor)()
    try:
        return json_format.ParseDict(members, message, max_recursion_depth=MOST_DEPTH)
    except (json_format.ParseError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise _unparsed(str(error) or type(error).__name__) from error


def text_of(message: Message) -> bytes:
    """The JSON of a message."""
    members = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return msgspec.json.encode(members)


def _unparsed(text: str) -> Refusal:
    """The refusal for JSON that protobuf cannot parse, with the path of the field."""
    text = " ".join(text.split())
    if unknown := _UNKNOWN.search(text):
        name, outer, known = unknown.groups()
        return _bad(f"{outer}.{name}".strip("."), f"there is no such field; known: {known.replace(chr(39), '')}")
    fields, where = _INNER.findall(text), _WHERE.search(text)
    path = where[1] if where else ".".join(fields)
    if fields and fields[-1] != path.rpartition(".")[2].partition("[")[0]:
        path = f"{path}.{fields[-1]}".strip(".")
    return _bad(path, _WHERE.sub("", _INNER.sub("", text))[:400])


def _object(text: bytes, descriptor: Descriptor | None) -> dict[str, Any]:
    """The members of a JSON object, which is a message.

    Raises:
        Refusal: it is no JSON object, or something in it is given twice, of which others might read another one.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=tuple, parse_constant=_no_constant)
        if isinstance(value, tuple):
            members: dict[str, Any] = _members(value, descriptor, "")
            return members
    except (ValueError, RecursionError) as error:
        raise _bad("", f"not JSON: {error}") from error
    raise _bad("", "must be a JSON object")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no value")


def _members(value: Any, descriptor: Descriptor | None, path: str) -> Any:
    """``value`` with dicts in place of tuples of pairs; ``descriptor``: of the message, or map, that it is."""
    if isinstance(value, list):
        return [_members(each, descriptor, f"{path}[{at}]") for at, each in enumerate(value)]
    if not isinstance(value, tuple):
        return value
    known = descriptor.fields if descriptor else ()
    fields = {name: field for field in known for name in (field.name, field.camelcase_name)}
    members, there = dict[str, Any](), set[str]()
    for key, inner in value:
        where, field = f"{path}.{key}" if path else key, fields.get(key)
        name = field.name if field else key
        if name in there:
            raise _bad(where, "is given twice")
        there.add(name)
        members[key] = _members(inner, field.message_type if field else None, where)
    return members


def _by_name(query: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in query:
        values.setdefault(name, []).append(value)
    return values


def _put(members: dict[str, Any], descriptor: Descriptor, path: str, values: list[str]) -> None:
    """Set the field at ``path``, such as ``spec.augment.formats``."""
    *outer, last = path.split(".")
    for name in outer:
        field = _field(descriptor, name, path)
        if field.message_type is None or _repeated(field):
            raise _bad(path, f"{name[:80]} has no fields")
        members, descriptor = members.setdefault(field.name, {}), field.message_type
    keyed = _KEYED.fullmatch(last)
    field = _field(descriptor, keyed[1] if keyed else last, path)
    members.pop(field.camelcase_name, None)
    if keyed:
        members.setdefault(field.name, {})[keyed[2]] = _only(values, path)
    elif field.message_type and field.message_type.full_name not in _TEXTS:
        raise _bad(path, "is not a single value; name its fields, or use a body")
    elif _repeated(field):
        members[field.name] = [_value(field, value, path) for value in values]
    else:
        members[field.name] = _value(field, _only(values, path), path)


def _field(descriptor: Descriptor, name: str, path: str) -> FieldDescriptor:
    for field in descriptor.fields:
        if name in (field.name, field.camelcase_name):
            return field
    names = ", ".join(field.camelcase_name for field in descriptor.fields)
    raise _bad(path, f"there is no such parameter; known: {names or 'none'}")


def _only(values: list[str], path: str) -> str:
    if len(values) != 1:
        raise _bad(path, "must not be given twice")
    return values[0]


def _value(field: FieldDescriptor, text: str, path: str) -> Any:
    if field.type != FieldDescriptor.TYPE_BOOL:
        return text  # in JSON, numbers and enums may be strings
    if text.lower() not in _TRUTH:
        raise _bad(path, "must be true or false")
    return _TRUTH[text.lower()]


def _repeated(field: FieldDescriptor) -> bool:
    repeated: bool | None = getattr(field, "is_repeated", None)  # protobuf 6 deprecates the other way
    return bool(getattr(field, "label", 0) == FieldDescriptor.LABEL_REPEATED) if repeated is None else repeated


def _bad(path: str, what: str) -> Refusal:
    where = path[:200] or "request"
    return Refusal("INVALID_REQUEST", f"{where}: {what}", field_path=path[:200])


#: of a path in the ``google.api.http`` options of a service's descriptor, by which requests are mapped to methods
_PART = re.compile(r"\{([\w.]+)(?:=([^{}]+))?\}|(\*\*)|(\*)|([^{}*]+)")


@dataclass(frozen=True)
class Route:
    """One binding of a method."""

    verb: str  #: ``GET`` and so on
    pattern: re.Pattern[str]  #: matches the percent-encoded path
    fields: tuple[str, ...]  #: the fields of the request that the pattern's groups set
    body: str  #: the field that the body sets, ``*`` for the whole request, empty without a body
    method: MethodDescriptor

    @property
    def path(self) -> str:
        """The path of the method in gRPC."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


@dataclass(frozen=True)
class Found:
    """A route, with the request's fields from the path."""

    route: Route
    fields: dict[str, str]


class Routes:
    """The HTTP bindings of services."""

    def __init__(self, services: Iterable[ServiceDescriptor]) -> None:
        self.all = tuple(route for service in services for route in _routes(service))

    def find(self, verb: str, path: str) -> Found | None:
        """The binding of a request; None if there is none."""
        for route in self.all:
            if route.verb == verb and (match := route.pattern.fullmatch(path)):
                values = (unquote(text) for text in match.groups())
                return Found(route, dict(zip(route.fields, values, strict=True)))
        return None

    def verbs(self, path: str) -> list[str]:
        """The verbs that ``path`` supports."""
        return sorted({route.verb for route in self.all if route.pattern.fullmatch(path)})


def _routes(service: ServiceDescriptor) -> Iterator[Route]:
    for method in service.methods:
        rule = method.GetOptions().Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings) if rule.WhichOneof("pattern") else ():
            yield _route(method, binding)


def _route(method: MethodDescriptor, rule: Any) -> Route:
    assert isinstance(rule, http_pb2.HttpRule)
    kind = rule.WhichOneof("pattern")
    verb, template = (rule.custom.kind, rule.custom.path) if kind == "custom" else (str(kind), getattr(rule, str(kind)))
    pattern, fields = compiled(template)
    return Route(verb.upper(), pattern, fields, rule.body, method)


def compiled(template: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """The pattern for a path template of google.api.http, and the fields that its groups set.

    ``*`` is a segment, ``**`` any number of them. A colon in a value is written ``%3A`` where the template itself does
    not end with one: ``/v1/jobs/x:cancel`` is a job and a verb.
    """
    has_verb = ":" in re.sub(r"\{[^{}]*\}", "", template).rpartition("/")[2]
    segment = "[^/]+" if has_verb else "[^/:]+"
    fields: list[str] = []

    def text(match: re.Match[str]) -> str:
        field, inner, many, single, literal = match.groups()
        if field:
            fields.append(field)
            return f"({_PART.sub(text, inner or '*')})"
        if many:
            return ".+" if has_verb else "[^:]+"
        return segment if single else re.escape(literal)

    return re.compile(_PART.sub(text, template)), tuple(fields)

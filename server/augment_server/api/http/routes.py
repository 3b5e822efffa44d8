"""Maps HTTP requests to methods, from the ``google.api.http`` options in a service's descriptor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from google.api import annotations_pb2, http_pb2
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

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
            return ".+"
        return segment if single else re.escape(literal)

    return re.compile(_PART.sub(text, template)), tuple(fields)

"""The OpenAPI document of the HTTP API, from a descriptor set with comments; ``generate.py`` writes it.

Paths and bodies come from the options of google.api.http, texts from the comments, required fields from
google.api.field_behavior; JSON is that of protobuf: names in lowerCamelCase, 64-bit integers as strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from google.api import annotations_pb2, field_behavior_pb2
from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto
#: the JSON of types that are no messages of ours
KNOWN = {
    ".google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    ".google.protobuf.Duration": {"type": "string", "description": 'Seconds, such as "1.5s".'},
    ".google.protobuf.FieldMask": {"type": "string", "description": "Names of fields, separated by commas."},
    ".google.api.HttpBody": {"type": "string", "format": "binary"},
}
SCALARS = {
    Field.TYPE_BOOL: {"type": "boolean"},
    Field.TYPE_BYTES: {"type": "string", "format": "byte"},
    Field.TYPE_DOUBLE: {"type": "number", "format": "double"},
    Field.TYPE_INT32: {"type": "integer", "format": "int32"},
    Field.TYPE_INT64: {"type": "string", "format": "int64"},
    Field.TYPE_STRING: {"type": "string"},
}
DESCRIBED = {"file": "The file's name; it may contain slashes.", "project": "The project's name."}
ERROR = {
    "type": "object",
    "description": "google.rpc.Status: the reason for programs is in the detail of type google.rpc.ErrorInfo.",
    "properties": {
        "code": {"type": "integer", "format": "int32", "description": "As in google.rpc.Code."},
        "message": {"type": "string", "description": "For people: what is wrong, and what to do."},
        "details": {"type": "array", "items": {"type": "object"}},
    },
}


def document(files: descriptor_pb2.FileDescriptorSet, version: str) -> str:
    """The document, as text. ``files``: with source information for those of ``augment.v1``."""
    ours = [file for file in files.file if file.package == "augment.v1"]
    comments = {file.name: dict(_comments(file)) for file in ours}
    messages, schemas = dict[str, Any](), dict[str, dict[str, Any]](Error=ERROR)
    paths = dict[str, dict[str, Any]]()
    for file in ours:
        for name, place, kind in _types(file):
            messages[f".{name}"] = kind
            schemas[name.removeprefix("augment.v1.")] = _schema(kind, place, comments[file.name])
    for file in ours:
        for at, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                about = comments[file.name][(6, at, 2, number)]
                rule = method.options.Extensions[annotations_pb2.http]
                for count, binding in enumerate((rule, *rule.additional_bindings)):
                    path, verb, operation = _operation(method, binding, about, messages, schemas)
                    operation["operationId"] += str(count + 1) if count else ""
                    paths.setdefault(path, {})[verb] = operation
    info = comments[ours[-1].name][(6, 0)]
    made = {
        "openapi": "3.1.0",
        "info": {"title": "kineto-augment", "version": version, "description": info},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _comments(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    for location in file.source_code_info.location:
        text = " ".join(location.leading_comments.replace("buf:lint:ignore RPC_RESPONSE_STANDARD_NAME", "").split())
        yield tuple(location.path), text


def _types(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    """The full name, place in the file, and descriptor of each message and enum."""
    for at, message in enumerate(file.message_type):
        name = f"{file.package}.{message.name}"
        yield name, (4, at), message
        for number, nested in enumerate(message.nested_type):
            yield f"{name}.{nested.name}", (4, at, 3, number), nested
        for number, enum in enumerate(message.enum_type):
            yield f"{name}.{enum.name}", (4, at, 4, number), enum
    for at, enum in enumerate(file.enum_type):
        yield f"{file.package}.{enum.name}", (5, at), enum


def _schema(kind: Any, path: tuple[int, ...], comments: dict[tuple[int, ...], str]) -> dict[str, Any]:
    if isinstance(kind, descriptor_pb2.EnumDescriptorProto):
        values = [f"{value.name}: {comments.get((*path, 2, at), '')}" for at, value in enumerate(kind.value)]
        text = "\n".join((comments.get(path, ""), *values))
        return {"type": "string", "enum": [value.name for value in kind.value], "description": text}
    maps = {entry.name: entry for entry in kind.nested_type if entry.options.map_entry}
    properties = {}
    for at, field in enumerate(kind.field):
        entry = maps.get(field.type_name.rpartition(".")[2])
        if entry:
            value: dict[str, Any] = {"type": "object", "additionalProperties": _value(entry.field[1])}
        elif field.label == Field.LABEL_REPEATED:
            value = {"type": "array", "items": _value(field)}
        else:
            value = dict(_value(field))
        text = " ".join(filter(None, (value.get("description"), comments.get((*path, 2, at)))))
        behaviours = field.options.Extensions[field_behavior_pb2.field_behavior]
        read_only = {"readOnly": True} if field_behavior_pb2.OUTPUT_ONLY in behaviours else {}
        properties[field.json_name] = {**value, "description": text, **read_only}
    required = [field.json_name for field in kind.field if _is_required(field)]
    made = {"type": "object", "description": comments.get(path, ""), "properties": properties}
    return made | ({"required": required} if required else {})


def _is_required(field: Field) -> bool:
    return field_behavior_pb2.REQUIRED in field.options.Extensions[field_behavior_pb2.field_behavior]


def _value(field: Field) -> dict[str, Any]:
    if field.type in (Field.TYPE_MESSAGE, Field.TYPE_ENUM):
        return KNOWN.get(field.type_name) or {"$ref": f"#/components/schemas/{field.type_name[len('.augment.v1.') :]}"}
    return SCALARS[field.type]


def _operation(
    method: Any, rule: Any, about: str, messages: dict[str, Any], schemas: dict[str, Any]
) -> tuple[str, str, dict[str, Any]]:
    verb = rule.WhichOneof("pattern")
    request, schema = messages[method.input_type], schemas[method.input_type.rpartition(".")[2]]
    in_path = re.findall(r"\{(\w+)=?", getattr(rule, verb))

    def placed(match: re.Match[str]) -> str:  # {name=jobs/*}: the part that varies is the parameter
        project, rest = re.match(r"(projects/\*/?)?(.*)", match[2]).groups()  # type: ignore[union-attr]
        rest = re.sub(r"\*+", f"{{{match[1]}}}", rest, count=1).replace("/artifacts/**", "/artifacts/{file}")
        return (project or "").replace("*", "{project}") + rest

    path = re.sub(r"\{(\w+)=([^{}]*)\}", placed, getattr(rule, verb))
    names = re.findall(r"\{(\w+)\}", path)
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "description": DESCRIBED.get(name, "The id."),
        }
        for name in names
    ]
    properties = {field.json_name: schema["properties"][field.json_name] for field in request.field}
    names_in_path = {field.json_name for field in request.field if field.name in in_path}
    made: dict[str, Any] = {"operationId": method.name, "summary": about.partition(". ")[0], "description": about}
    if rule.body == "*":
        body = {"$ref": f"#/components/schemas/{method.input_type.rpartition('.')[2]}"}
        if names_in_path:
            kept = {name: value for name, value in properties.items() if name not in names_in_path}
            body = {"type": "object", "properties": kept}
        form = "application/x-ndjson" if method.client_streaming else "application/json"
        made["requestBody"] = {"content": {form: {"schema": body}}}
    elif rule.body:
        made["requestBody"] = {"content": {"application/octet-stream": {"schema": properties[rule.body]}}}
    for field in request.field if rule.body != "*" else ():
        if field.name not in (*in_path, rule.body):
            value = dict(properties[field.json_name])
            text = value.pop("description", "")
            parameters.append({"name": field.json_name, "in": "query", "schema": value, "description": text})
    if parameters:
        made["parameters"] = parameters
    answer: dict[str, Any] = KNOWN.get(method.output_type) or {
        "$ref": f"#/components/schemas/{method.output_type.rpartition('.')[2]}"
    }
    form = "application/octet-stream" if method.output_type in KNOWN else "application/json"
    text = "The response."
    if method.server_streaming and method.output_type not in KNOWN:
        answer = {"type": "object", "properties": {"result": answer, "error": {"$ref": "#/components/schemas/Error"}}}
        text = "Lines of JSON, each with a result; an error in the middle of the stream is its last line."
    error = {
        "description": "An error.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    made["responses"] = {
        "200": {"description": text, "content": {form: {"schema": answer}}},
        "default": error,
    }
    return path, verb, made

"""gRPC reflection in both versions, with the JSON names of fields.

An answer is kept below 43,690 bytes. Beyond, Go's client widens its windows, and grpc-go before 1.49 (grpcurl 1.8.6)
then breaks off a call that begins at that moment: "unexpected EOF" (grpc/grpc-go, pull request 5494).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

_BUILT_IN = descriptor_pb2.DESCRIPTOR.name  #: 14 kB that protobuf's libraries bring along: sent when asked for
V1 = "grpc.reflection.v1.ServerReflection"  #: whose messages are those of v1alpha


class _Reflection:
    """grpcio's answers, with the JSON names added: generated code lacks them, and tools then print other names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._plain = reflection.aio.ReflectionServicer(names)

    async def ServerReflectionInfo(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        """Answer each request."""
        async for response in self._plain.ServerReflectionInfo(requests, context):
            if response.HasField("file_descriptor_response"):
                files = response.file_descriptor_response.file_descriptor_proto
                read = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
                whole = response.original_request.file_by_filename == _BUILT_IN
                files[:] = [_named(file) for file in read if whole or file.name != _BUILT_IN]
            yield response


def _named(file: descriptor_pb2.FileDescriptorProto) -> bytes:
    for message in file.message_type:
        _name(message)
    return file.SerializeToString()


def _name(message: descriptor_pb2.DescriptorProto) -> None:
    for field in message.field:
        first, *others = field.name.split("_")
        field.json_name = first + "".join(other[:1].upper() + other[1:] for other in others)
    for inner in message.nested_type:
        _name(inner)


def add_reflection(names: Sequence[str], server: grpc.aio.Server) -> None:
    """Describe the services called ``names``, and reflection itself."""
    servicer = _Reflection((*names, reflection.SERVICE_NAME, V1))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": handler}),))

"""As much of grpcurl as examples/clients/grpcurl.sh uses, for machines that have none; its own flags and JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
from google.protobuf import json_format

from augment.v1 import service_pb2, service_pb2_grpc


def main(args: list[str]) -> int:
    data, size = "", 4 << 20
    while args[0].startswith("-"):
        flag = args.pop(0)
        if flag == "-plaintext":
            continue
        if flag == "-d":
            data = args.pop(0)
        elif flag == "-max-msg-sz":
            size = int(args.pop(0))
        else:
            raise SystemExit(f"flag provided but not defined: {flag}")
    address, method = args
    service, _, name = method.partition("/")
    assert service == "augment.v1.AugmentService"
    found = service_pb2.DESCRIPTOR.services_by_name["AugmentService"].methods_by_name[name]
    kind = getattr(service_pb2, found.input_type.name)
    requests = [json_format.ParseDict(one, kind()) for one in objects(sys.stdin.read() if data == "@" else data)]
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", size)]) as channel:
        call = getattr(service_pb2_grpc.AugmentServiceStub(channel), name)
        answer = call(iter(requests) if found.client_streaming else requests[0])
        for one in answer if found.server_streaming else [answer]:
            print(json_format.MessageToJson(one))
    return 0


def objects(text: str) -> list[Any]:
    """The JSON values that stand one after the other."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except grpc.RpcError as error:
        print(f"ERROR:\n  Code: {error.code().name}\n  Message: {error.details()}", file=sys.stderr)
        sys.exit(64 + error.code().value[0])

"""Health check of a server: ``python -m augment_server.probe HOST:PORT``. Exits with 0 if it serves, else with 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Check the health without TLS, for probes within a container."""
    (address,) = arguments or ("127.0.0.1:50051",)
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

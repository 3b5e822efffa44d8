"""The client of the service that ``augment serve`` starts.

::

    from augment.client import Client

    with Client("127.0.0.1:50051") as client:
        augmented = client.augment("rank0.pt.trace.json.gz")
    print(augmented.files, augmented.metrics["analyses"]["temporal_breakdown"]["rows"])

Needs the extra ``[client]``.
"""

from __future__ import annotations

try:
    import grpc as _grpc
    import grpc_status as _grpc_status
except ImportError as missing:
    raise ImportError(f"augment.client needs gRPC: pip install 'kineto-augment[client]' ({missing})") from missing

from augment.client.client import Augmented, AugmentedJob, CheckResult, Client, Diagnosis
from augment.client.connection import Tls
from augment.client.session import PATIENCE_S, JobWatch

__all__ = ["PATIENCE_S", "Augmented", "AugmentedJob", "CheckResult", "Client", "Diagnosis", "JobWatch", "Tls"]
del _grpc, _grpc_status

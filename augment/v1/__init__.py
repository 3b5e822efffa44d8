"""The service's messages and stubs, generated from ``proto/augment/v1`` by ``proto/generate.py``. Never edited.

``from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc``
"""

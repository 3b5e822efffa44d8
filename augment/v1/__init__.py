"""The service's messages and stubs, made of ``proto/augment/v1`` by ``proto/generate.py``; never edited.

``from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc``
"""

"""The same calls over HTTP, in JSON: for curl, browsers' developer tools, and languages without gRPC.

Routes come from the ``google.api.http`` options of the .proto files, the conventions from grpc-gateway. A call goes
through the same interceptors to the same servicer as one over gRPC (:mod:`augment_server.api.http.chain`).
"""

"""A gRPC server: HTTP/2 frames, messages, limits. It knows nothing of routing.

A pure core makes events of bytes; `link` is its one adaptor to asyncio, `grpcio` another transport.
"""

"""How bytes become messages: HTTP/2 and gRPC framing. A pure core, and one asyncio adaptor."""

"""The least an ext_proc server can do: read a message, write fixed bytes. The reference of bench_gateway.

On grpc.aio and on our own transport.
"""

import argparse
import asyncio

import grpc
import grpc.aio
import uvloop

from extproc.grpc_server.accepting import bind
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Call
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.listener import Listener
from extproc.router.stream.codec import encode
from extproc.router.stream.events import RequestBody
from extproc.router.stream.names import PROCESS
from tests.router.stream.conversations import BODY, headers, one_pool, open_session

Context = grpc.aio.ServicerContext[bytes, bytes]


def fixed_replies(address: str) -> list[bytes]:
    """Returns what the service sends to the headers and to the body of a request."""
    session = open_session(one_pool([address]))
    return [
        encode(reply) for event in (headers(), RequestBody(BODY)) for reply in session.on(event)
    ]


async def serve_grpcio(port: int, replies: list[bytes]) -> None:
    async def process(_: object, context: Context) -> None:
        for reply in replies:
            await context.read()
            await context.write(reply)
        await context.read()

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service, method = PROCESS.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


class Idle:
    """A handler of our transport that answers each message with the next fixed reply."""

    def __init__(self, call: Call, replies: list[bytes]) -> None:
        self._call = call
        self._replies = iter(replies)

    def on_message(self, _: bytes | bytearray) -> None:
        self._call.send(next(self._replies))

    def on_skipped(self, _: int) -> None:
        self._call.send(next(self._replies))

    def on_half_close(self) -> None:
        self._call.finish()

    def on_close(self) -> None: ...


async def serve_native(port: int, replies: list[bytes]) -> None:
    routes = {PROCESS: lambda call: Idle(call, replies)}
    listener = Listener(routes, limits=WireLimits(), budget=Budget(1 << 28))
    listener.listen(await bind(f"127.0.0.1:{port}"))
    await listener.start()
    await asyncio.Event().wait()


TRANSPORTS = {"grpcio": serve_grpcio, "native": serve_native}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--address", required=True, help="the endpoint that every request is sent to"
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default="grpcio")
    arguments = parser.parse_args()
    serve = TRANSPORTS[arguments.transport]
    run = asyncio.run if arguments.transport == "grpcio" else uvloop.run
    run(serve(arguments.port, fixed_replies(arguments.address)))

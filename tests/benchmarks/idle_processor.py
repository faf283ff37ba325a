"""The least an ext_proc server can do: read a message, write fixed bytes. The reference of bench_gateway."""

import argparse
import asyncio

import grpc
import grpc.aio

from extproc.stream import ext_proc_pb2 as pb

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

Context = grpc.aio.ServicerContext[bytes, bytes]


def fixed_pick(address: str) -> bytes:
    """Returns a reply to a body with the headers and the metadata that the service sends, too."""
    response = pb.ProcessingResponse()
    mutation = response.request_body.response.header_mutation
    for name, value in {"x-gateway-destination-endpoint": address, "x-extproc-pool": "vllm"}.items():
        option = mutation.set_headers.add(append_action=pb.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key = name
        option.header.raw_value = value.encode()
    metadata = response.dynamic_metadata.fields
    metadata["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value = address
    fields = metadata["extproc"].struct_value.fields
    for name in ("pool", "strategy", "reason", "endpoint", "prefix"):
        fields[name].string_value = "fixed"
    return response.SerializeToString()


async def serve(port: int, address: str) -> None:
    headers = pb.ProcessingResponse()
    headers.request_headers.SetInParent()
    acknowledge, pick = headers.SerializeToString(), fixed_pick(address)

    async def process(_: object, context: Context) -> None:
        await context.read()
        await context.write(acknowledge)
        await context.read()
        await context.write(pick)
        await context.read()

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--address", required=True, help="the endpoint that every request is sent to")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.address))

"""Answers as TGI, Triton and JetStream do, by HTTP and by gRPC: what this folder's files are tried with.

An answer is `max_tokens` times "ab ", one every 5 ms; a request for more than 1,000 is refused. Run it with the
ports of HTTP and of gRPC.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import msgspec
from aiohttp import web
from google.protobuf.json_format import MessageToJson
from jetstream_pb2 import DecodeRequest, DecodeResponse

MOST, TOO_LONG = 1000, "`max_tokens` is above 1000"


async def write(length: int) -> AsyncIterator[str]:
    for _ in range(length):
        await asyncio.sleep(0.005)
        yield "ab "


def encode(event: dict[str, Any]) -> bytes:
    return b"data:" + msgspec.json.encode(event) + b"\n\n"


async def serve_tgi(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    length, chunks = asked["parameters"]["max_new_tokens"], [""]
    if length > MOST:
        return web.json_response({"error": TOO_LONG, "error_type": "validation"}, status=422)
    answer = await begin(request)
    async for text in write(length):
        chunks.append(text)
        event: dict[str, Any] = {"token": {"text": text, "special": False}, "details": None}
        if len(chunks) > length:
            event["generated_text"] = "".join(chunks)
            event["details"] = {
                "finish_reason": "length",
                "generated_tokens": length,
                "input_length": len(asked["inputs"].split()),
            }
        await answer.write(encode(event))
    return answer


async def serve_triton(request: web.Request) -> web.StreamResponse:
    length, answer = (await request.json())["max_tokens"], await begin(request)
    if length > MOST:
        await answer.write(encode({"error": TOO_LONG}))
        return answer
    async for text in write(length):
        event = {"model_name": request.match_info["model"], "text_output": text}
        await answer.write(encode(event))
    return answer


async def serve_jetstream(request: web.Request) -> web.StreamResponse:
    length = (await request.json())["max_tokens"]
    if length > MOST:
        return web.json_response({"error": TOO_LONG}, status=500)
    answer = await begin(request)
    await answer.write(b'{\n  "initialContent": {}\n}')
    async for text in write(length):
        await answer.write(MessageToJson(build_piece(text)).encode())
    return answer


async def begin(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    return answer


def build_piece(text: str) -> DecodeResponse:
    sample = DecodeResponse.StreamContent.Sample(text=text, token_ids=[7])
    return DecodeResponse(stream_content=DecodeResponse.StreamContent(samples=[sample]))


async def decode(
    request: DecodeRequest, context: grpc.aio.ServicerContext[DecodeRequest, DecodeResponse]
) -> AsyncIterator[DecodeResponse]:
    if request.max_tokens > MOST:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LONG)
    async for text in write(request.max_tokens):
        yield build_piece(text)


def build_http() -> web.Application:
    app = web.Application()
    app.router.add_post("/generate_stream", serve_tgi)
    app.router.add_post("/v2/models/{model}/generate_stream", serve_triton)
    app.router.add_post("/v1/generate", serve_jetstream)
    return app


async def serve_grpc(port: int) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(
        decode,
        request_deserializer=DecodeRequest.FromString,
        response_serializer=DecodeResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(
        "jetstream_proto.Orchestrator", {"Decode": method}
    )
    server.add_generic_rpc_handlers((handler,))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


async def main(http_port: int, grpc_port: int) -> None:
    runner = web.AppRunner(build_http(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", http_port).start()
    server, _ = await serve_grpc(grpc_port)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))

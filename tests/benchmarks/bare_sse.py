"""The reference for the simulator: an aiohttp server that sends the same chunks, with no engine behind it.

`python -m tests.benchmarks.bare_sse FIRST_PORT PORTS CHUNKS STEP_S`
"""

import asyncio
import sys
from collections.abc import Sequence

import uvloop
from aiohttp import web

CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795246068,'
    b'"model":"simulated","choices":[{"index":0,"delta":{"content":" das"},"logprobs":null,'
    b'"finish_reason":null,"token_ids":null}]}\n\n'
)


async def run(ports: Sequence[int], chunks: int, step_s: float) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        await request.json()
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        clock = asyncio.get_running_loop().time
        begins = clock()
        for chunk in range(chunks):
            await asyncio.sleep(begins + (chunk + 1) * step_s - clock())
            await response.write(CHUNK)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", stream)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for port in ports:
        await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    first, count, chunk_count, step_text = sys.argv[1:]
    every_port = range(int(first), int(first) + int(count))
    uvloop.run(run(every_port, int(chunk_count), float(step_text)))

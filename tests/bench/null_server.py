"""A server that answers at once, to measure the client: as cheap as Python can be.

`python null_server.py` prints its port. A request's `max_tokens` is the number of chunks it gets.
With `--busy` it serves nobody else for so long before each answer.
"""

import argparse
import asyncio
import sys
import time
from typing import cast

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _frame(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


_CHUNK = _frame(b'{"choices":[{"index":0,"delta":{"content":"bab "}}]}')


def _end(chunks: int) -> bytes:
    usage = b'{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d}}' % chunks
    return _frame(usage) + _frame(b"[DONE]") + b"0\r\n\r\n"


class NullServer(asyncio.Protocol):
    def __init__(self, busy_s: float) -> None:
        self._busy_s = busy_s
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if len(body) >= size:
            self._data = body[size:]
            self._answer(body[:size])

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None
        time.sleep(self._busy_s)
        chunks = int(body.partition(b'"max_tokens":')[2].partition(b",")[0].rstrip(b"}") or 1)
        self._transport.write(_HEAD + _CHUNK * chunks + _end(chunks))


async def _serve(busy_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullServer(busy_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201  how its parent learns the port
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", type=float, default=0.0)
    uvloop.run(_serve(parser.parse_args().busy))

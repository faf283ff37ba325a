"""A server that sends exactly what a test says, when it says so."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from extproc.bench.datasets.conversation import TurnMessage
from extproc.bench.processors.http import HttpClient
from extproc.bench.processors.openai import OpenAIChat
from extproc.bench.processors.processor import ChatQuery, Wiring
from extproc.bench.record import Clock, Record, RunClock
from extproc.bench.spec.tree import Target

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
ASK = ChatQuery("m", (TurnMessage("user", "hello there"),), 10)

Script = Sequence[tuple[float, bytes]]
"""Seconds to wait, then bytes to send."""


@dataclass
class ScriptedServer:
    """Answers one request per connection with the script, then closes it.

    Keeps what it was sent, and how far its script is: `now_s` is a clock for the client that is
    never late.
    """

    script: Script
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    now_s: float = 0.0
    answering: set[asyncio.Task[None]] = field(default_factory=set)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self.answer(reader, writer))
        self.answering.add(task)
        try:
            await asyncio.wait([task])
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.answering.discard(task)

    async def end(self) -> None:
        """Breaks off what is still being answered and waits until every connection is closed."""
        while self.answering:
            for task in self.answering:
                task.cancel()
            await asyncio.sleep(0.001)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        self.requests.append(head + await reader.readexactly(size))
        for wait_s, data in self.script:
            await asyncio.sleep(wait_s)
            self.now_s += wait_s
            writer.write(data)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[ScriptedServer]:
    answering = ScriptedServer(script)
    server = await asyncio.start_server(answering.accept, "127.0.0.1", 0)
    answering.port = server.sockets[0].getsockname()[1]
    async with server:
        yield answering
        await answering.end()


@asynccontextmanager
async def http_client(
    port: int, target: Target | None = None, api_key: str | None = None, clock: Clock | None = None
) -> AsyncIterator[HttpClient]:
    wiring = Wiring(f"http://127.0.0.1:{port}", target or Target(), api_key, clock or RunClock())
    client = HttpClient(wiring, OpenAIChat())
    try:
        yield client
    finally:
        await client.close()


async def ask_once(script: Script, *, ask: ChatQuery = ASK, target: Target | None = None) -> Record:
    """Sends one request to a scripted server; returns what the client recorded, by the script's clock."""
    record = Record(0, 0, 0, 0.0, estimated_input_tokens=3)
    async with (
        scripted(script) as server,
        http_client(server.port, target=target, clock=lambda: server.now_s) as client,
    ):
        await client.send(ask, record)
    return record


def event(payload: object) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def chunk(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }
)
DONE = b"data: [DONE]\n\n"

"""A publisher of KV events on real sockets, as vLLM's: numbers, and a replay of what somebody missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.stack.ports import free_ports

CLEARED = {"type": "AllBlocksCleared"}


def stored(blocks: int, **more: Any) -> dict[str, Any]:
    names = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, blocks + 1)]
    fields = {"block_hashes": names, "parent_block_hash": None, "token_ids": [7] * 16 * blocks}
    return {"type": "BlockStored", **fields, "block_size": 16, "lora_id": None, "medium": "GPU", **more}


def removed(blocks: int, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [b"\xff"] * blocks, "medium": "GPU", **more}


def payload(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, events, 0])


class Publisher:
    """`number` is the next message's; `kept` are for the replay, which was `asked` so often."""

    def __init__(self, port: int, publishing: Any, replaying: Any) -> None:
        self.port, self.number, self.asked = port, 0, 0
        self.kept: list[tuple[bytes, bytes]] = []
        self.publishing, self._replaying = publishing, replaying

    async def say(self, *events: Any, is_lost: bool = False) -> None:
        self.kept.append((self.number.to_bytes(8), payload(*events)))
        self.number += 1
        if not is_lost:
            await self.publishing.send_multipart((b"kv", *self.kept[-1]))

    async def replay(self) -> None:
        while True:
            who, _, first = await self._replaying.recv_multipart()
            self.asked += 1
            for message in [*(each for each in self.kept if each[0] >= first), (b"\xff" * 8, b"")]:
                await self._replaying.send_multipart((who, b"", b"kv", *message))


@asynccontextmanager
async def publishing() -> AsyncIterator[Publisher]:
    ports, context = free_ports(2), zmq.asyncio.Context()
    sockets = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    for socket, port in zip(sockets, ports, strict=True):
        socket.bind(f"tcp://127.0.0.1:{port}")
    publisher = Publisher(ports[0], *sockets)
    task = asyncio.create_task(publisher.replay())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)

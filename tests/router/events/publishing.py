"""An engine's KV events on real sockets, as vLLM's: numbers, a replay, and where they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

from tests.stack.ports import free_ports

CLEARED = {"type": "AllBlocksCleared"}


def stored(blocks: int, **more: Any) -> dict[str, Any]:
    names = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, blocks + 1)]
    fields = {"block_hashes": names, "parent_block_hash": None, "token_ids": [7] * 16 * blocks}
    return {
        "type": "BlockStored",
        **fields,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        **more,
    }


def removed(blocks: int, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [b"\xff"] * blocks, "medium": "GPU", **more}


def payload(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, events, 0])


class Publisher:
    """`number` is the next message's; `kept` are for the replay, which was `asked` so often."""

    def __init__(self, ports: range, *, replays: bool) -> None:
        self.ports, self.address, self.number, self.asked = ports, f"127.0.0.1:{ports[2]}", 0, 0
        self.kept: list[tuple[bytes, bytes]] = []
        self.context = zmq.asyncio.Context()
        self.publishing, self._replaying = (
            self.context.socket(zmq.PUB),
            self.context.socket(zmq.ROUTER),
        )
        self.publishing.bind(f"tcp://127.0.0.1:{ports[0]}")
        self._replaying.bind(f"tcp://127.0.0.1:{ports[1]}")
        self._replay_endpoint = f"tcp://*:{ports[1]}" if replays else None

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

    async def tell(self, _: web.Request) -> web.Response:
        source = {"endpoint": f"tcp://*:{self.ports[0]}", "replay_endpoint": self._replay_endpoint}
        return web.json_response({"0": source | {"topic": "kv"}})


@asynccontextmanager
async def publishing_events(*, replays: bool = True) -> AsyncIterator[Publisher]:
    publisher, app = Publisher(free_ports(3), replays=replays), web.Application()
    app.router.add_get("/kv_event_sources", publisher.tell)
    runner, task = web.AppRunner(app, shutdown_timeout=0.1), asyncio.create_task(publisher.replay())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", publisher.ports[2]).start()
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, runner.cleanup(), return_exceptions=True)
        publisher.context.destroy(linger=0)

"""An engine whose KV events mean harm takes neither the service's memory nor its time."""

import asyncio
import gzip
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Final

from aiohttp import ClientSession, ClientTimeout, web

from tests.router.events.publishing import payload, stored
from tests.router.events.zmtp_frames import GREETING, READY, frame, numbered
from tests.stack.ports import free_ports
from tests.stack.process import cpu_s, descriptors, memory_bytes
from tests.stack.service import Service, pool

log = logging.getLogger(__name__)

ATTACK_S = 4.0
# What one endpoint's events may hold, and as much again for what the allocator keeps.
MOST_BYTES = 16_000_000
MOST_DESCRIPTORS = 20
EMPTY = frame(b"", 1) * 30_000
MESSAGE = payload(stored(9_000))
SMALL = payload(*[stored(1)] * 8)
PACKED = "a packed page of 60 MB"
ATTACKS: Final[Mapping[str, tuple[int, Callable[[], Iterator[bytes]]]]] = {
    "nothing": (0, lambda: iter(())),
    "a message without end, of empty parts": (1, lambda: repeat(EMPTY)),
    "a message without end, of 4 MB": (1, lambda: repeat(frame(bytes(4_000_000), 1))),
    "a part of an exabyte": (1, lambda: repeat(b"\x02" + b"\x0f" * 8 + bytes(1_000_000))),
    "messages of 4.1 MB": (1, lambda: numbered(bytes(4_100_000))),
    "messages of nothing": (1, lambda: repeat(frame() * 30_000)),
    "pings": (1, lambda: repeat(frame(b"\x04PING\0\0", 4) * 5_000)),
    "64 publishers of messages of 225 kB": (64, lambda: numbered(MESSAGE)),
    "64 publishers of 8 blocks": (64, lambda: numbered(SMALL)),
    "64 publishers of 4,096 events": (
        64,
        lambda: numbered(payload(*[["AllBlocksCleared"]] * 4_096)),
    ),
    PACKED: (0, lambda: iter(())),
    "64 silent publishers": (64, lambda: iter(())),
}


class HostileEngine:
    """Names publishers that send what the attack `name` has, as fast as they are read."""

    def __init__(self, name: str) -> None:
        self.publishers, self._build = ATTACKS[name]
        self._page = gzip.compress(bytes(60_000_000)) if name == PACKED else None
        self.sent = 0
        self.http, self.zmtp = free_ports(2)

    async def name_publishers(self, _: web.Request) -> web.Response:
        source = {"endpoint": f"tcp://*:{self.zmtp}"}
        if self._page is None:
            return web.json_response({str(rank): source for rank in range(self.publishers)})
        return web.Response(body=self._page, headers={"content-encoding": "gzip"})

    async def publish(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                writer.write(GREETING + READY)
                for said in self._build():
                    writer.write(said)
                    await writer.drain()
                    self.sent += len(said)
                await reader.read()
        finally:
            writer.close()  # also where the test ends first

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/kv_event_sources", self.name_publishers)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.http).start()
        server = await asyncio.start_server(self.publish, "127.0.0.1", self.zmtp)
        try:
            yield
        finally:
            server.close()
            await runner.cleanup()


async def longest_answer_ms(url: str) -> float:
    """Of the admin port, asked all the while."""
    ends_s, longest_s = time.monotonic() + ATTACK_S, 0.0
    async with ClientSession(timeout=ClientTimeout(total=10)) as session:
        while (began_s := time.monotonic()) < ends_s:
            async with session.get(f"{url}/healthz") as answer:
                await answer.read()
            longest_s = max(longest_s, time.monotonic() - began_s)
            await asyncio.sleep(0.005)
    return longest_s * 1_000


async def test_no_attack_of_an_engine_takes_more_than_its_ration(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.configure([pool(["127.0.0.1:1"], probe=False)])
    with service:
        service.wait_ready()
        for name in ATTACKS:
            engine = HostileEngine(name)
            async with engine.serving():
                before, open_before = memory_bytes(service.pid), descriptors(service.pid)
                service.configure(
                    [pool([f"127.0.0.1:{engine.http}"], probe=False, signals={"events": True})]
                )
                used_s = -cpu_s(service.pid)
                longest_ms = await longest_answer_ms(service.admin_url)
                grown = memory_bytes(service.pid, "VmHWM") - before
                used_s += cpu_s(service.pid)
                opened = descriptors(service.pid) - open_before
            log.info(
                "%s: +%.1f MB, %.0f ms, %.0f %% of a core, %d descriptors, %.0f MB sent",
                *(name, grown / 1e6, longest_ms, 100 * used_s / ATTACK_S, opened),
                engine.sent / 1e6,
            )
            assert (grown <= MOST_BYTES, opened <= MOST_DESCRIPTORS) == (True, True)
            service.configure([pool(["127.0.0.1:1"], probe=False)])

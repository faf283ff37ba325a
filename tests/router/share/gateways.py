"""Gateways in one process that share by real sockets: each with a pool, a courier and a mesh."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic, thread_time

from extproc.router.cluster.source import Source, StaticSource
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import ClockAndRandom, PeerCounts
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.share.courier import RESULTS, Carrier, Courier, LetterCounts
from extproc.router.share.letters import Echo, Ended, Letter, name_of
from extproc.router.share.mesh import Mesh
from extproc.router.share.sealed import Seal
from tests.waiting import until

SECRET = b"a secret of 16 bytes or more"
Build = Callable[[LetterCounts], Carrier]


class ShareGateway:
    """`build` makes what carries its letters. It draws the name `me` first, then `later`."""

    def __init__(
        self,
        me: int,
        build: Build,
        *,
        later: int = 0,
        cluster: str = "llm",
        secret: bytes = SECRET,
        endpoints: int = 4,
        build_seal: Callable[[str, bytes, int], Seal] = Seal,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        strategy = STRATEGIES.build(
            "prefix_cache", {}, ClockAndRandom(random.Random(me), monotonic)
        )
        self.me, names = me, iter([me, later])
        self.pool = Pool("llama", strategy)
        addresses = [f"10.0.0.{number}:8000" for number in range(1, 1 + endpoints)]
        self.pool.replace([Endpoint(address, address) for address in addresses])
        self.picker = Picker([Route(self.pool)])
        self.tally = dict.fromkeys(RESULTS, 0)
        self.carrier = build(self.tally)
        self.courier = Courier(
            self.carrier,
            lambda me: build_seal(cluster, secret, me),
            self.tally,
            draw=lambda: next(names),
            clock=clock,
            cpu_clock=cpu_clock,
        )
        self.courier.keep(self.pool)

    def pick(self, text: str = "hello") -> Pick:
        body = (
            b'{"model": "llama", "messages": [{"role": "user", "content": "%s"}]}' % text.encode()
        )
        return self.picker.pick(Query("POST", "/v1/chat/completions", {}, body)).pick

    @property
    def neighbours(self) -> PeerCounts:
        return self.courier.shares()["llama"].peers.counts

    @property
    def counts(self) -> dict[str, int]:
        return self.tally

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["ShareGateway"]:
        await self.carrier.open()
        task = asyncio.create_task(self.courier.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task of a NATS client, which may take a cancellation for its own, until it ends."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)


def lies(me: int | None = None) -> Iterator[bytes]:
    """Letters of a faulty peer with the secret: invented picks, without an end. It echoes `me`."""
    seal, number = Seal("llm", SECRET, 666), 1
    while True:
        news = [Ended(number + step, step, 1) for step in range(512)]
        now_us = int(monotonic() * 1e6)
        echoes = [] if me is None else [Echo(me, now_us, 0)]
        yield seal.close(Letter(666, name_of("llama"), now_us, [*news], echoes))
        number += 512


async def rave(port: int, me: int | None = None) -> None:
    """Tells lies to the mesh at a port as fast as it can, until cancelled."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for letter in lies(me):
            writer.write(len(letter).to_bytes(4) + letter)
            await writer.drain()
            await asyncio.sleep(0)
    finally:
        writer.transport.abort()


def local_address(port: int) -> str:
    return f"127.0.0.1:{port}"


def peers(ports: Sequence[int]) -> Source:
    return StaticSource([Endpoint(local_address(port), local_address(port)) for port in ports])


def meshed(port: int, ports: Sequence[int], clock: Callable[[], float] = monotonic) -> Build:
    """A mesh that listens on `port` and dials `ports`."""
    return lambda tally: Mesh(
        local_address(port), peers(ports), tally, rng=random.Random(port), clock=clock
    )


@asynccontextmanager
async def all_running(gateways: Sequence[ShareGateway]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for gateway in gateways:
            await stack.enter_async_context(gateway.running())
        yield


async def until_prompt(gateways: Sequence[ShareGateway]) -> None:
    """Until each hears all the others promptly."""
    others = len(gateways) - 1
    await until(lambda: all(gateway.neighbours.prompt == others for gateway in gateways))


async def until_counted(gateways: Sequence[ShareGateway], count: int) -> None:
    """Until each counts so many requests in flight."""
    await until(lambda: all(gateway.pool.book.total == count for gateway in gateways))

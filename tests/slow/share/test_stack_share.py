"""Several `extproc serve` that share their picks: real processes, a real mesh, and no Envoy."""

import asyncio
import random
import signal
import socket
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

import grpc.aio
import orjson
import pytest

from extproc.router.feedback.access_log import METHOD as LOG
from extproc.router.stream.events import Continue, Phase, RequestBody
from extproc.router.stream.names import PROCESS
from tests.router.stream.conversations import Went, headers
from tests.router.stream.wire import asks_for_time, read, write
from tests.slow.share.broker import Broker
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool
from tests.stack.stack import eventually

SECRET = "a secret of 16 bytes or more"
LONG_S = 60.0
ENDPOINTS = [f"10.0.0.{number}:8000" for number in range(1, 5)]


class Sharing(Service):
    """A service whose file has a section `share`."""

    def __init__(self, directory: Path, ports: Sequence[int]) -> None:
        directory.mkdir(parents=True)
        self.mesh_port = ports[2]
        super().__init__(
            directory,
            port=ports[0],
            admin_port=ports[1],
            environment={"SECRET": SECRET, "PASSWORD": "password"},
        )

    def share(self, **share: Any) -> None:
        """Shares so; not at all without anything said."""
        self.configure([pool(ENDPOINTS, {"name": "prefix_cache"}, probe=False)], share=share or None)

    def peers(self, state: str = "prompt") -> float:
        return self.metric("extproc_share_peers", state=state)

    def is_whole(self) -> bool:
        """Whether it knows what the others knew when it came in."""
        [shown] = self.pools()
        return bool(shown["share"]["is_whole"])

    def in_flight(self) -> int:
        [shown] = self.pools()
        return int(shown["in_flight"])


def build(tmp_path: Path, count: int, *, is_shared: bool = True) -> list[Sharing]:
    ports = free_ports(3 * count)
    services = [Sharing(tmp_path / f"{place}", ports[3 * place : 3 * place + 3]) for place in range(count)]
    meshes = [f"127.0.0.1:{service.mesh_port}" for service in services]
    for service, listen in zip(services, meshes, strict=True):
        mesh = {"listen": listen, "peers": {"static": meshes}}
        service.share(**(share_settings(mesh=mesh) if is_shared else {}))
    return services


def share_settings(**carrier: Any) -> dict[str, Any]:
    return {"cluster": "llm", "secret": {"env": "SECRET"}, **carrier}


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[Sharing]]:
    with ExitStack() as stack:
        yield started(build(tmp_path, 4), stack)


def started(services: list[Sharing], stack: ExitStack) -> list[Sharing]:
    for service in services:
        stack.enter_context(service)
    for service in services:
        service.wait_until(service.is_ready, LONG_S)
    return services


class Proxy:
    """What an Envoy does: one channel to each service, a stream for each request."""

    def __init__(self, services: Sequence[Service]) -> None:
        # A connection each, be it twice to one service.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options) for service in services
        ]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    @asynccontextmanager
    async def asking(self, place: int, messages: Sequence[str]) -> AsyncGenerator[str]:
        """Yields the endpoint, when there is room for the request; it is in flight until the end."""
        async with self.asked(place, messages) as message:
            reply = read(message)
            assert isinstance(reply, Went)
            yield str(reply.address)

    @asynccontextmanager
    async def asked(self, place: int, messages: Sequence[str]) -> AsyncGenerator[bytes]:
        """As `asking`; yields the service's whole answer."""
        roles = ("user", "assistant")
        chat = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(messages)]
        call = self._channels[place].stream_stream(PROCESS, None, None)(None)
        body = orjson.dumps({"model": "llama", "messages": chat})
        await call.write(write(headers(content_length=str(len(body)))))
        first = read(cast("bytes", await call.read()))
        assert first == Continue(Phase.REQUEST_HEADERS), first
        await call.write(write(RequestBody(body, True)))
        while asks_for_time(message := cast("bytes", await call.read())):
            pass
        yield message
        await call.done_writing()
        await call.read()

    async def log(self, place: int, message: bytes) -> None:
        """Tells of requests by the access log of one connection."""
        call = self._channels[place].stream_stream(LOG, None, None)(None)
        await call.write(message)
        await call.done_writing()
        await call.read()


async def hit_rate(
    services: Sequence[Service],
    conversations: int,
    turns: int,
    *,
    seed: int = 1,
    waits_s: list[float] | None = None,
) -> float:
    """The share of later turns that went where the turn before went, each turn by a gateway at random.

    Other conversations for each `seed`. `waits_s` gets how long each decision took.
    """
    proxy = Proxy(services)
    rng = random.Random(seed)
    hits = 0

    async def talk(number: int) -> None:
        nonlocal hits
        said: list[str] = []
        before = None
        await asyncio.sleep(rng.random())
        for turn in range(turns):
            said.append(f"question {seed} {number} {turn} " + "words " * 200)
            asked_s = monotonic()
            async with proxy.asking(rng.randrange(len(services)), said) as endpoint:
                if waits_s is not None:
                    waits_s.append(monotonic() - asked_s)
                await asyncio.sleep(0.1)
            hits += endpoint == before
            before = endpoint
            said.append(f"answer {seed} {number} {turn} " + "words " * 100)
            await asyncio.sleep(0.2 + 0.2 * rng.random())

    await asyncio.gather(*(talk(number) for number in range(conversations)))
    await proxy.close()
    return hits / (conversations * (turns - 1))


async def test_four_gateways_hit_as_often_as_one(tmp_path: Path, four: list[Sharing]) -> None:
    """Conversations whose turns go to any gateway: as many find their endpoint as with one process."""
    await asyncio.to_thread(eventually, lambda: all(service.peers() == 3 for service in four), LONG_S)
    shared = await hit_rate(four, 40, 6)
    with ExitStack() as stack:
        alone = started(build(tmp_path / "one", 1, is_shared=False), stack)
        single = await hit_rate(alone, 40, 6)

    print(f"hit rate of four {shared:.3f}, of one {single:.3f}")  # noqa: T201
    assert shared >= single - 0.02
    assert all(service.metric("extproc_picks_total") > 30 for service in four)


async def test_a_killed_gateway_counts_no_more_and_one_that_ends_says_so(four: list[Sharing]) -> None:
    """A process that ends without a word, and with one.

    1. A request in flight at one of four counts at all of them. 2. That one is killed: it counts nowhere, and
    the others know that one is lost. 3. It is back: they are four again. 4. It is told to
    end: nobody is lost.
    """
    assert await asyncio.to_thread(eventually, lambda: all(one.peers() == 3 for one in four), LONG_S)
    proxy = Proxy(four)
    killed, *others = four
    with suppress(grpc.aio.AioRpcError):  # the killed one's stream
        async with proxy.asking(0, ["hello"]):
            assert await asyncio.to_thread(
                eventually, lambda: all(service.in_flight() == 1 for service in others), LONG_S
            )
            killed.kill()
            assert await asyncio.to_thread(
                eventually, lambda: not any(service.in_flight() for service in others), LONG_S
            )
    await proxy.close()
    assert [1, 1, 1] == [service.peers("lost") for service in others]
    killed.start()
    assert await asyncio.to_thread(eventually, lambda: all(one.peers() == 3 for one in others), LONG_S)
    assert [0, 0, 0] == [service.peers("lost") for service in others]
    await asyncio.to_thread(killed.wait_until, killed.is_ready, LONG_S)
    killed.send(signal.SIGTERM)
    assert killed.wait(LONG_S) == 0
    assert await asyncio.to_thread(
        eventually, lambda: all((one.peers(), one.peers("lost")) == (2, 0) for one in others), LONG_S
    )
    [shown] = others[0].pools()
    assert (2, 2) == (shown["share"]["heard"], shown["share"]["prompt"])


async def go_on(services: Sequence[Service], place: int, chats: list[list[str]], last: list[str]) -> int:
    """Each chat has one more turn at one gateway; returns how many went where the turn before went."""
    proxy, hits = Proxy(services), 0
    for number, said in enumerate(chats):
        said.append(f"question {number} " + "words " * 200)
        async with proxy.asking(place, said) as endpoint:
            hits += endpoint == last[number]
        last[number] = endpoint
        said.append(f"answer {number} " + "words " * 100)
    await proxy.close()
    return hits


@pytest.mark.parametrize("carrier", ["mesh", "nats"])
async def test_a_gateway_that_is_started_again_hits_as_often_as_before(tmp_path: Path, carrier: str) -> None:
    """What one has forgotten the other tells it.

    1. Chats begin at one of two, and go on at the other. 2. The first one is killed, and comes back. 3. They
    go on there, and find their endpoints as before.
    """
    two = build(tmp_path / "two", 2)
    [port] = free_ports(1)
    with ExitStack() as stack:
        if carrier == "nats":
            stack.enter_context(broker := Broker(tmp_path, port))
            broker.wait_until(broker.is_ready, LONG_S)
            for service in two:
                access = {"user": "gateway", "password": {"env": "PASSWORD"}}
                service.share(**share_settings(nats={"servers": [f"nats://127.0.0.1:{port}"], **access}))
        started(two, stack)
        assert await asyncio.to_thread(eventually, lambda: all(one.peers() == 1 for one in two), LONG_S)
        chats: list[list[str]] = [[] for _ in range(30)]
        last = ["" for _ in chats]
        await go_on(two, 0, chats, last)
        await asyncio.sleep(0.1)
        before = await go_on(two, 1, chats, last)
        killed = two[0]
        killed.kill()
        killed.start()
        await asyncio.to_thread(killed.wait_until, killed.is_ready, LONG_S)
        assert await asyncio.to_thread(eventually, killed.is_whole, LONG_S)
        after = await go_on(two, 0, chats, last)

    print(f"{carrier}: of {len(chats)} later turns {before} hit before, {after} after")  # noqa: T201
    assert after >= before - 1 >= 27


async def test_a_gateway_whose_peers_never_answer_serves_all_the_same(tmp_path: Path) -> None:
    """Its peers are an address that nobody listens on, and one that takes lines and reads none."""
    ports = free_ports(4)
    service = Sharing(tmp_path / "alone", ports)
    peers = [f"127.0.0.1:{port}" for port in (ports[3], 1)]
    service.share(
        **share_settings(mesh={"listen": f"127.0.0.1:{service.mesh_port}", "peers": {"static": peers}})
    )
    with socket.create_server(("127.0.0.1", ports[3])), service:
        await asyncio.to_thread(service.wait_until, service.is_ready, LONG_S)
        assert await hit_rate([service], 10, 4) >= 0.9
        assert service.metric("extproc_share_fresh") == 0

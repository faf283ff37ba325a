"""Several `extproc serve` that share their picks, and what an Envoy does with them."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, cast

import grpc.aio
import orjson

from extproc.router.stream.events import Continue, Phase, RequestBody
from extproc.router.stream.names import PROCESS
from tests.router.stream.conversations import Went, headers
from tests.router.stream.wire import asks_for_time, read_response, write_request
from tests.stack.ports import free_ports
from tests.stack.service import Pool, Service, pool

SECRET = "a secret of 16 bytes or more"
LONG_S = 60.0
ENDPOINTS = [f"10.0.0.{number}:8000" for number in range(1, 5)]


class Sharing(Service):
    """A service whose file has a section `share`, and its pool these `fields` more."""

    def __init__(self, directory: Path, ports: Sequence[int], fields: Pool) -> None:
        directory.mkdir(parents=True)
        self.fields = fields
        self.mesh_port = ports[2]
        super().__init__(
            directory,
            port=ports[0],
            admin_port=ports[1],
            environment={"SECRET": SECRET, "PASSWORD": "password"},
        )

    def share(self, **share: Any) -> None:
        """Shares so; not at all without anything said."""
        fields = {"probe": False, **self.fields}
        self.configure([pool(ENDPOINTS, {"name": "prefix_cache"}, **fields)], share=share or None)

    def peers(self, state: str = "prompt") -> float:
        return self.metric("extproc_share_peers", state=state)

    def in_flight(self, stage: int = 0) -> int:
        return int(self.pools()[stage]["in_flight"])


def build(tmp_path: Path, count: int, *, is_shared: bool = True, **fields: Any) -> list[Sharing]:
    ports = free_ports(3 * count)
    services = [
        Sharing(tmp_path / f"{place}", ports[3 * place : 3 * place + 3], fields)
        for place in range(count)
    ]
    meshes = [f"127.0.0.1:{service.mesh_port}" for service in services]
    for service, listen in zip(services, meshes, strict=True):
        mesh = {"listen": listen, "peers": {"static": meshes}}
        service.share(**(share_settings(mesh=mesh) if is_shared else {}))
    return services


def share_settings(**carrier: Any) -> dict[str, Any]:
    return {"cluster": "llm", "secret": {"env": "SECRET"}, **carrier}


def started(services: list[Sharing], stack: ExitStack) -> list[Sharing]:
    for service in services:
        stack.enter_context(service)
    for service in services:
        service.wait_until(service.is_ready, LONG_S)
    return services


class StreamProxy:
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
        roles = ("user", "assistant")
        chat = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(messages)]
        call = self._channels[place].stream_stream(PROCESS, None, None)(None)
        body = orjson.dumps({"model": "llama", "messages": chat})
        await call.write(write_request(headers(content_length=str(len(body)))))
        first = read_response(cast("bytes", await call.read()))
        assert first == Continue(Phase.REQUEST_HEADERS), first
        await call.write(write_request(RequestBody(body, True)))
        while asks_for_time(message := cast("bytes", await call.read())):
            pass
        reply = read_response(message)
        assert isinstance(reply, Went)
        yield str(reply.address)
        await call.done_writing()
        await call.read()


async def hit_rate(
    services: Sequence[Service], conversations: int, turns: int, seed: int, waits_s: list[float]
) -> float:
    """The share of later turns that went where the turn before went, each turn by a gateway at random.

    Other conversations for each `seed`. `waits_s` gets how long each decision took.
    """
    proxy = StreamProxy(services)
    rng = random.Random(seed)
    hits = 0

    async def talk(number: int) -> None:
        nonlocal hits
        texts: list[str] = []
        before = None
        await asyncio.sleep(rng.random())
        for turn in range(turns):
            texts.append(f"question {seed} {number} {turn} " + "words " * 200)
            asked_s = monotonic()
            async with proxy.asking(rng.randrange(len(services)), texts) as endpoint:
                waits_s.append(monotonic() - asked_s)
                await asyncio.sleep(0.1)
            hits += endpoint == before
            before = endpoint
            texts.append(f"answer {seed} {number} {turn} " + "words " * 100)
            await asyncio.sleep(0.2 + 0.2 * rng.random())

    await asyncio.gather(*(talk(number) for number in range(conversations)))
    await proxy.close()
    return hits / (conversations * (turns - 1))

"""What may be wrong with what carries letters, between real gateways: it is late, loses some, is cut."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from tests.router.share.gateways import end_task, rave
from tests.slow.share.broker import Broker, rave_over
from tests.slow.share.sharing import LONG_S, Sharing, build, share_settings, started
from tests.stack.ports import free_ports

Frames = Callable[[asyncio.StreamReader], AsyncIterator[tuple[bytes, bool]]]
"""Cuts what comes into frames; `True`: it is a letter, which may be lost."""


async def mesh_frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    while True:
        head = await reader.readexactly(4)
        yield head + await reader.readexactly(int.from_bytes(head)), True


async def nats_frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    while line := await reader.readline():
        if line.startswith(b"PUB "):
            yield line + await reader.readexactly(int(line.split()[-1]) + 2), True
        else:
            yield line, False


class Relay:
    """Listens on a port of 127.0.0.1 and brings what comes there to `target`, well or badly."""

    def __init__(self, port: int, target: int, frames: Frames) -> None:
        self.port = port
        self.target = target
        self.delay_s = 0.0
        self.loss = 0.0
        self.is_dead = False
        self._frames = frames
        self._rng = random.Random(port)
        self._lines: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Relay"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", self.port):
            try:
                yield self
            finally:
                self.cut()

    def cut(self) -> None:
        """Ends all lines; others may be opened at once."""
        for task in self._lines:
            task.cancel()

    def die(self) -> None:
        """Ends all lines, and every one that is opened."""
        self.is_dead = True
        self.cut()

    def heal(self) -> None:
        self.delay_s, self.loss, self.is_dead = 0.0, 0.0, False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._bring(reader, writer))
        self._lines.add(task)
        await asyncio.wait([task])
        self._lines.discard(task)
        writer.transport.abort()

    async def _bring(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_dead:
            return
        with suppress(OSError, EOFError):
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                async with asyncio.TaskGroup() as tasks:
                    ways = [
                        tasks.create_task(self._forward(self._frames(reader), forth)),
                        tasks.create_task(self._forward(_chunks(back), writer)),
                    ]
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                    for way in ways:
                        way.cancel()
            finally:
                forth.transport.abort()

    async def _forward(
        self, frames: AsyncIterator[tuple[bytes, bool]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError, EOFError):
            async for frame, is_letter in frames:
                if is_letter and self._rng.random() < self.loss:
                    continue
                # Frames keep their order: timers of one delay do.
                loop.call_later(self.delay_s, _write, writer, frame)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    while data := await reader.read(65_536):
        yield data, False


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


GATEWAYS = 4
FAULTS = ("slow", "lossy", "halves", "flooded", "restarted", "dead")
"""Of the slow and the dead one gateways find out only after a while."""
SLOW_S = 1.0
LOSS = 0.1


class Carriage:
    """Gateways over relays, `hops` of them from one to another."""

    hops = 1

    def __init__(self, services: Sequence[Sharing], relays: Sequence[Relay]) -> None:
        self.services = services
        self.relays = relays

    def part(self) -> None:
        """Cuts the gateways in two halves, with no letter between them."""
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    async def rave(self) -> None:
        """Says as fast as it can what never was, until cancelled."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Waits until all letters come promptly."""
        others = GATEWAYS - 1
        await asyncio.to_thread(
            self.services[0].wait_until,
            lambda: all(service.peers() == others for service in self.services),
            LONG_S,
        )

    def heal(self) -> None:
        for relay in self.relays:
            relay.heal()

    @asynccontextmanager
    async def having(self, fault: str) -> AsyncGenerator[None]:
        """Has one of `FAULTS`, and no more afterwards."""
        if fault == "halves":
            self.part()
        elif fault == "restarted":
            self.restart()
        for relay in self.relays:
            if fault == "slow":
                relay.delay_s = SLOW_S / self.hops
            elif fault == "lossy":
                relay.loss = LOSS
            elif fault == "dead":
                relay.die()
        mad = asyncio.create_task(self.rave()) if fault == "flooded" else None
        try:
            yield
        finally:
            if mad is not None:
                await end_task(mad)
            self.heal()


class OverMesh(Carriage):
    def __init__(self, services: Sequence[Sharing]) -> None:
        ports = iter(free_ports(GATEWAYS * (GATEWAYS - 1)))
        self._ways = {
            (one, other): Relay(next(ports), services[other].mesh_port, mesh_frames)
            for one in range(GATEWAYS)
            for other in range(GATEWAYS)
            if one != other
        }
        super().__init__(services, [*self._ways.values()])
        for one, service in enumerate(services):
            to = [
                f"127.0.0.1:{relay.port}"
                for (sender, _), relay in self._ways.items()
                if sender == one
            ]
            listen = f"127.0.0.1:{service.mesh_port}"
            service.share(**share_settings(mesh={"listen": listen, "peers": {"static": to}}))

    def part(self) -> None:
        for (one, other), relay in self._ways.items():
            if one // (GATEWAYS // 2) != other // (GATEWAYS // 2):
                relay.die()

    def restart(self) -> None:
        for relay in self.relays:
            relay.cut()

    async def rave(self) -> None:
        await rave(self.services[0].mesh_port)


class OverNats(Carriage):
    hops = 2  # to the server, and from there

    def __init__(self, services: Sequence[Sharing], brokers: Sequence[Broker]) -> None:
        self._brokers = brokers
        ports = free_ports(GATEWAYS)
        super().__init__(services, [Relay(port, brokers[0].port, nats_frames) for port in ports])
        for service, relay in zip(services, self.relays, strict=True):
            password = service.config.parent / "password"
            password.write_text("password")
            access = {"user": "gateway", "password": {"file": str(password)}}
            service.share(
                **share_settings(nats={"servers": [f"nats://127.0.0.1:{relay.port}"], **access})
            )

    def part(self) -> None:
        for relay in self.relays[GATEWAYS // 2 :]:
            relay.target = self._brokers[1].port
            relay.cut()

    def heal(self) -> None:
        super().heal()
        for relay in self.relays:
            if relay.target != self._brokers[0].port:
                relay.target = self._brokers[0].port
                relay.cut()

    def restart(self) -> None:
        self._brokers[0].kill()
        self._brokers[0].start()

    async def rave(self) -> None:
        await rave_over(self._brokers[0])


@contextmanager
def _mesh(services: Sequence[Sharing], _: Path) -> Iterator[Carriage]:
    yield OverMesh(services)


@contextmanager
def _nats(services: Sequence[Sharing], directory: Path) -> Iterator[Carriage]:
    ports = free_ports(2)
    for name in ("one", "other"):
        (directory / name).mkdir(parents=True)
    with Broker(directory / "one", ports[0]) as one, Broker(directory / "other", ports[1]) as other:
        yield OverNats(services, [one, other])


CARRIERS = {"mesh": _mesh, "NATS": _nats}


@asynccontextmanager
async def carried(carrier: str, directory: Path) -> AsyncGenerator[Carriage]:
    """Real gateways whose letters come promptly, over a carrier of relays."""
    services = build(directory / "gateways", GATEWAYS, is_shared=False)
    async with AsyncExitStack() as stack:
        carriage = stack.enter_context(CARRIERS[carrier](services, directory))
        for relay in carriage.relays:
            await stack.enter_async_context(relay.running())
        ready = stack.enter_context(ExitStack())
        await asyncio.to_thread(started, services, ready)
        await carriage.settle()
        yield carriage

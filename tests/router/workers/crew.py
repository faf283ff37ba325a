"""Workers as real processes, each with its admin port on a unix socket, and one admin port for all."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from extproc.router.service.door import Door, serve_admin
from extproc.router.stream.names import PROCESS
from extproc.router.workers.view.admin import build_view
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write
from tests.router.workers.families import total, values
from tests.stack.ports import free_ports
from tests.stack.service import Pool, Service, pool

LONG_S = 60.0
ENDPOINTS = ["10.0.0.1:8000", "10.0.0.2:8000"]
OPEN_METRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
SECRET = "a secret of 16 bytes or more"


class Worker(Service):
    """One process; its admin port is at `socket`."""

    def __init__(self, directory: Path, number: int, port: int) -> None:
        home = directory / f"{number}"
        home.mkdir()
        super().__init__(home, port=port, admin_port=0, environment={"SECRET": SECRET})
        self.socket = directory / f"worker-{number}.admin"

    def configure(self, pools: Sequence[Pool], **server: Any) -> None:
        super().configure(pools, admin=f"unix:{self.socket}", **server)

    def share(self, listen: str, peers: Sequence[str]) -> None:
        settings = yaml.safe_load(self.config.read_text())
        mesh = {"listen": listen, "peers": {"static": list(peers)}}
        settings["share"] = {"cluster": "llm", "secret": {"env": "SECRET"}, "mesh": mesh}
        self.config.write_text(yaml.safe_dump(settings))

    def is_ready(self) -> bool:
        return self.socket.exists() and self.health() == "SERVING"


@dataclass
class Crew:
    """The workers, and who tells of them at `url`; `faults` are its own."""

    workers: list[Worker]
    url: str
    session: aiohttp.ClientSession
    faults: list[str]
    stack: AsyncExitStack

    async def request(self, number: int, times: int = 1) -> list[Any]:
        """Requests to a worker, that stay in flight as long as the crew runs."""
        address = f"127.0.0.1:{self.workers[number].port}"
        channel = await self.stack.enter_async_context(grpc.aio.insecure_channel(address))
        calls = []
        for _ in range(times):
            call = channel.stream_stream(PROCESS, None, None)(None)
            await call.write(write(headers(end=True)))
            await call.read()
            calls.append(call)
        return calls

    async def get(self, path: str, status: int = 200) -> str:
        async with self.session.get(path) as answer:
            assert answer.status == status, await answer.text()
            return await answer.text()

    async def pools(self) -> Any:
        async with self.session.get("/pools") as answer:
            return await answer.json()

    async def metrics(self) -> dict[str, float]:
        """Samples by name and values of their labels: `name{a,b}`."""
        async with self.session.get("/metrics", headers=OPEN_METRICS) as answer:
            text = await answer.text()
        return values(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]  # the library's

    async def sums(self, *names: str) -> list[float]:
        """The sum of all samples of each metric."""
        told = await self.metrics()
        return [total(told, name) for name in names]

    async def wait_ready(self, number: int) -> None:
        worker = self.workers[number]
        await asyncio.to_thread(worker.wait_until, worker.is_ready, LONG_S)


@asynccontextmanager
async def working(
    directory: Path,
    pools: Sequence[Pool] | None = None,
    *,
    count: int = 2,
    is_shared: bool = False,
    waits_for: Sequence[int] | None = None,
    answer_s: float = 8.0,
) -> AsyncGenerator[Crew]:
    """Runs workers until all that are waited for are ready; each has the same pools.

    `answer_s` is more than the service waits for, and less than its door does: the machine may be busy.
    """
    ports = free_ports(2 * count + 1)
    workers = [Worker(directory, number, ports[number]) for number in range(1, count + 1)]
    meshes = [f"127.0.0.1:{port}" for port in ports[count + 1 :]]
    for worker, listen in zip(workers, meshes, strict=True):
        worker.configure(pools or [pool(ENDPOINTS, probe=False)])
        if is_shared:
            worker.share(listen, meshes)
    url, faults = f"http://127.0.0.1:{ports[0]}", list[str]()
    door = Door(64)
    view = build_view(
        lambda: [worker.socket for worker in workers if worker.is_running],
        CollectorRegistry(),
        door,
        faults=lambda: faults,
        answer_s=answer_s,
    )
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        await stack.enter_async_context(serve_admin(view, f"127.0.0.1:{ports[0]}", door))
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        crew = Crew(workers, url, session, faults, stack)
        for number in range(count) if waits_for is None else waits_for:
            await crew.wait_ready(number)
        yield crew

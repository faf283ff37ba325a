"""A running service to look at: the application and its admin port in this process, on a real socket."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from msgspec.json import decode

from extproc.router.app import Application, Start
from extproc.router.feedback.outcome import Outcome, Verdict
from extproc.router.routing.picker import Decision, Query
from extproc.router.service.admin import build_admin
from extproc.router.service.connection_limit import ConnectionLimit, serve_admin
from extproc.router.service.live.service_state import State
from tests.stack.client import chat_about
from tests.stack.ports import free_ports
from tests.stack.service import Pool, pool
from tests.waiting import until

CHAT = "/v1/chat/completions"


@dataclass
class Live:
    """The application, and its admin port at `url`; a request is what the ext_proc service makes of one."""

    app: Application
    config: Path
    url: str
    session: aiohttp.ClientSession
    limit: ConnectionLimit

    def request(self, text: str = "hello", pool_name: str | None = None) -> Decision:
        """Decides as a stream does, and calls the observer."""
        asked = Query(
            "POST", CHAT, {"content-type": "application/json"}, chat_about(text), pool=pool_name
        )
        decision = self.app.pools.picker.pick(asked)
        self.app.processor.observer.routed(decision, 1e-5)
        return decision

    def outcome(
        self, pool_name: str, address: str, verdict: Verdict, first_byte_s: float | None = 0.1
    ) -> None:
        self.app.pools[pool_name].feedback.observe(
            Outcome(address, verdict, 200, 0.2, first_byte_s)
        )

    def fail(self, pool_name: str, address: str) -> None:
        """Lets an endpoint fail until it is cooled down."""
        for _ in range(3):
            self.outcome(pool_name, address, Verdict.FAILED, None)

    def configure(self, pools: Sequence[Pool], text: str | None = None) -> None:
        """Writes the configuration file in one step."""
        draft = self.config.with_suffix(".draft")
        draft.write_text(text or yaml.safe_dump({"pools": list(pools)}))
        draft.replace(self.config)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Follows the configuration file."""
        task = asyncio.create_task(self.app.watch_settings(poll_s=0.1))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def pools(self) -> Any:
        async with self.session.get("/pools") as answer:
            return await answer.json()


@asynccontextmanager
async def serving_live(
    directory: Path,
    pools: Sequence[Pool] | None = None,
    limit: ConnectionLimit | None = None,
    *,
    is_ready: bool = True,
) -> AsyncGenerator[Live]:
    """Runs the service with these pools, ready unless it is not to be waited for."""
    pools = [pool(["127.0.0.1:8001", "127.0.0.1:8002"], probe=False)] if pools is None else pools
    path = directory / "extproc.yaml"
    path.write_text(yaml.safe_dump({"pools": list(pools)}))
    [port] = free_ports(1)
    app = Application(Start.of_file(path))
    limit = limit or ConnectionLimit(64)
    app.start()
    admin = build_admin(app, app.metrics.registry, limit)
    try:
        url = f"http://127.0.0.1:{port}"
        async with (
            serve_admin(admin, f"127.0.0.1:{port}", limit),
            aiohttp.ClientSession(url) as session,
        ):
            await until(lambda: not app.faults() or not is_ready, 60)
            yield Live(app, path, url, session, limit)
    finally:
        await app.pools.stop()
        app.reader.shutdown()


async def live_events(answer: aiohttp.ClientResponse) -> AsyncGenerator[Mapping[str, str]]:
    """Yields the events of a stream, each by its fields."""
    rest = b""
    async for data in answer.content.iter_any():
        *whole, rest = (rest + data).split(b"\n\n")
        for event in whole:
            yield dict(line.split(": ", 1) for line in event.decode().split("\n"))


async def next_state(stream: AsyncGenerator[Mapping[str, str]]) -> State:
    while True:
        event = await anext(stream)
        if "event" not in event:
            return decode(event["data"], type=State)

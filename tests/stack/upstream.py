"""Endpoints that do what the test says: HTTP/1.1, no model."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from tests.waiting import until

HELD = b"held"


@dataclass(frozen=True, slots=True)
class Request:
    """What reached an endpoint; header names are in lower case."""

    headers: dict[str, str]
    body: bytes


class Endpoints:
    """Servers that answer `whole`, and remember each request.

    A request whose body has the words `holds` gets `first ` at once, and `last` when it is
    released.
    """

    def __init__(self, holds: bytes) -> None:
        self._holds = holds
        self._places = asyncio.Semaphore(0)
        self.requests: list[Request] = []
        self.held = 0

    @property
    def arrived(self) -> int:
        return len(self.requests)

    def release(self, count: int = 10_000) -> None:
        """Lets so many held answers end, of those that wait and of those that will."""
        for _ in range(count):
            self._places.release()

    def hold_again(self) -> None:
        """Forgets earlier requests, and holds later ones."""
        self._places, self.held = asyncio.Semaphore(0), 0
        self.requests.clear()

    async def until_arrived(self, count: int) -> None:
        await until(
            lambda: self.arrived >= count, lambda: f"{self.arrived} of {count} requests came"
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        self.requests.append(Request(headers, body))
        if self._holds not in body:
            return web.Response(text="whole")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first ")
        self.held += 1
        await self._places.acquire()
        await response.write(b"last")
        return response


@asynccontextmanager
async def serve(addresses: Iterable[str], *, holds: bytes = HELD) -> AsyncGenerator[Endpoints]:
    """Serves at each `ip:port`; with `holds=b""` every answer is held."""
    endpoints = Endpoints(holds)
    runner = web.ServerRunner(web.Server(endpoints.answer, access_log=None))
    await runner.setup()
    try:
        for address in addresses:
            ip, _, port = address.rpartition(":")
            await web.TCPSite(runner, ip, int(port), backlog=4_096).start()
        yield endpoints
    finally:
        endpoints.release()
        await runner.cleanup()

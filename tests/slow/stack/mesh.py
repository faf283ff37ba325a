"""Envoys in step with live endpoints: envoy/xds.yaml, an API server, pods that hold their answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from tests.stack.gateway import Gateway
from tests.waiting import until

HELD = b"held"


class Pods:
    """Model servers at addresses of the loopback net, one port.

    A request that says `held` is answered with a first chunk at once and with the last one when
    `release` is set; others are answered whole.
    """

    def __init__(self) -> None:
        self.port = 0
        self.release = asyncio.Event()
        self.held = 0
        self.bodies: list[bytes] = []

    def hold_again(self) -> None:
        """Forgets what was, and holds what will be asked."""
        self.release, self.held = asyncio.Event(), 0
        self.bodies.clear()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        if HELD not in body:
            return web.Response(text="whole")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first ")
        self.held += 1
        await self.release.wait()
        await response.write(b"last")
        return response


@asynccontextmanager
async def run_pods(ips: Sequence[str], port: int) -> AsyncGenerator[Pods]:
    pods = Pods()
    pods.port = port
    runner = web.ServerRunner(web.Server(pods.answer))
    await runner.setup()
    try:
        for ip in ips:
            await web.TCPSite(runner, ip, port, backlog=1_024).start()
        yield pods
    finally:
        pods.release.set()
        await runner.cleanup()


async def until_hosts(gateway: Gateway, cluster: str, wanted: dict[str, str]) -> None:
    """Waits until Envoy has exactly these hosts for a cluster."""
    await until(
        lambda: gateway.hosts(cluster) == wanted,
        lambda: f"{cluster} has {gateway.hosts(cluster)}, not {wanted}",
    )

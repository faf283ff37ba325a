"""Envoys in step with live endpoints: envoy/xds.yaml, an API server, pods that hold their answers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

from aiohttp import web

from tests.stack.fetch import get
from tests.stack.gateway import Gateway

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


def hosts(gateway: Gateway, cluster: str) -> dict[str, str]:
    """Returns the addresses that Envoy has for a cluster, with their EDS health."""
    statuses = json.loads(get(f"{gateway.admin_url}/clusters?format=json"))["cluster_statuses"]
    found = {}
    for status in statuses:
        if status["name"] == cluster:
            for host in status.get("host_statuses", []):
                address = host["address"]["socket_address"]
                health = host.get("health_status", {}).get("eds_health_status", "UNKNOWN")
                found[f"{address['address']}:{address['port_value']}"] = health
    return found


async def until_hosts(
    gateway: Gateway, cluster: str, wanted: dict[str, str], timeout_s: float = 10.0
) -> None:
    """Waits until Envoy has exactly these hosts for a cluster."""
    deadline = perf_counter() + timeout_s
    while True:
        seen = await asyncio.to_thread(hosts, gateway, cluster)
        if seen == wanted:
            return
        assert perf_counter() < deadline, f"{cluster} has {seen}, not {wanted}"
        await asyncio.sleep(0.01)

"""Gateways of a mesh that find each other as they find endpoints: by EndpointSlices, and by DNS."""

import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from time import monotonic

import pytest

from extproc.router.cluster.dns import DnsSource
from extproc.router.cluster.source import Source
from extproc.router.share.courier import LetterCounts
from extproc.router.share.mesh import Mesh
from tests.router.cluster.api_server import ApiServer
from tests.router.cluster.dns_server import DnsServer, serving_dns
from tests.router.cluster.harness import BuildSource
from tests.router.cluster.objects import pod, slice_object
from tests.router.share.gateways import Gateway
from tests.stack.ports import free_ports
from tests.waiting import until

LONG_S = 60.0
IPS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
NAME = ("peers.default.svc.cluster.local.", "A")
Find = Callable[[Sequence[str]], None]
"""Lets gateways be found at these addresses and no others."""


async def check(port: int, build: Callable[[], Source], find: Find) -> None:
    """1. Two find each other, and not themselves. 2. A third one comes. 3. It goes from the list."""

    def gateway(me: int, ip: str) -> Gateway:
        def carrier(tally: LetterCounts) -> Mesh:
            return Mesh(f"{ip}:{port}", build(), tally, rng=random.Random(me), clock=monotonic)

        return Gateway(me, carrier)

    async with AsyncExitStack() as stack:
        find(IPS[:2])
        two = [await stack.enter_async_context(gateway(me, ip).running()) for me, ip in enumerate(IPS[:2])]
        await until(lambda: [1, 1] == [one.neighbours.prompt for one in two])
        pick = two[0].pick()
        await until(lambda: two[1].pool.book.total == 1)
        pick.release()
        find(IPS)
        third = await stack.enter_async_context(gateway(2, IPS[2]).running())
        three = [*two, third]
        await until(lambda: [2, 2, 2] == [one.neighbours.prompt for one in three])
        for one, ip in zip(three, IPS, strict=True):
            lines = one.carrier._lines.keys()  # type: ignore[attr-defined]
            assert lines == {f"{other}:{port}" for other in IPS if other != ip}

        find(IPS[:2])
        await until(lambda: third.neighbours.active == 0)


@pytest.mark.slow
async def test_gateways_find_each_other_by_the_endpoint_slices_of_their_service(
    server: ApiServer, build: BuildSource
) -> None:
    [port] = free_ports(1)
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]

    def find(ips: Sequence[str]) -> None:
        server.put(slice_object("s1", *(pod(f"extproc-{ip}", ip) for ip in ips), ports=[*ports]))

    await check(port, build, find)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["peers", "peers.default.svc.cluster.local"])
async def test_gateways_find_each_other_by_a_name(host: str) -> None:
    [port] = free_ports(1)
    async with serving_dns(DnsServer(ttl_s=1)) as server:

        def find(ips: Sequence[str]) -> None:
            server.records = {NAME: [*ips]}

        def build() -> DnsSource:
            return DnsSource(f"{host}:{port}", rng=random.Random(1), open_resolver=server.resolver)

        await check(port, build, find)

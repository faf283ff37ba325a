"""Gateways of a mesh that find each other as they find endpoints: by EndpointSlices, and by DNS."""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from time import monotonic

import pytest

from extproc.router.cluster.dns import DnsSource
from extproc.router.cluster.source import Source
from extproc.router.share.courier import LetterCounts
from extproc.router.share.mesh import Mesh
from tests.router.cluster.dns_server import DnsServer, serving_dns
from tests.router.cluster.harness import Kube
from tests.router.cluster.objects import pod, slice_object
from tests.router.share.gateways import ShareGateway
from tests.stack.ports import free_ports
from tests.waiting import until

IPS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
NAME = ("peers.default.svc.cluster.local.", "A")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["EndpointSlices", "peers", "peers.default.svc.cluster.local"])
async def test_gateways_find_each_other_by_their_service_or_its_name(kube: Kube, way: str) -> None:
    """1. Two find each other, and not themselves. 2. A third one comes. 3. It goes from the list."""
    [port], dns = free_ports(1), DnsServer(ttl_s=1)
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]

    def find(ips: Sequence[str]) -> None:
        kube.server.put(
            slice_object("s1", *(pod(f"extproc-{ip}", ip) for ip in ips), ports=[*ports])
        )
        dns.records = {NAME: [*ips]}

    def build() -> Source:
        if way == "EndpointSlices":
            return kube.build()
        return DnsSource(f"{way}:{port}", rng=random.Random(1), open_resolver=dns.resolver)

    def gateway(me: int, ip: str) -> ShareGateway:
        def carrier(tally: LetterCounts) -> Mesh:
            return Mesh(f"{ip}:{port}", build(), tally, rng=random.Random(me), clock=monotonic)

        return ShareGateway(me, carrier)

    async with serving_dns(dns), AsyncExitStack() as stack:
        find(IPS[:2])
        two = [
            await stack.enter_async_context(gateway(me, ip).running())
            for me, ip in enumerate(IPS[:2])
        ]
        await until(lambda: [1, 1] == [one.neighbours.prompt for one in two])
        pick = two[0].pick()
        await until(lambda: two[1].pool.book.total == 1)
        pick.release()
        find(IPS)
        third = await stack.enter_async_context(gateway(2, IPS[2]).running())
        three = [*two, third]
        await until(lambda: [2, 2, 2] == [one.neighbours.prompt for one in three])
        lines = [set(one.carrier.lines) for one in three]  # type: ignore[attr-defined]
        find(IPS[:2])
        await until(lambda: third.neighbours.active == 0)

    assert lines == [{f"{other}:{port}" for other in IPS if other != ip} for ip in IPS]

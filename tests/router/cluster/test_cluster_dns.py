import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import dns.rcode
import pytest
from dns.asyncresolver import Resolver
from dns.resolver import Answer, NoResolverConfiguration

from extproc.router.cluster.dns import DnsSource
from tests.router.cluster.dns_server import DnsServer, serving_dns
from tests.router.cluster.harness import RecordingSink, running_source

NAME = "vllm.default.svc.cluster.local."


@dataclass
class QueriedServer:
    """A server, the lists of a source that queries it, and its waits in between."""

    server: DnsServer
    sink: RecordingSink
    delays: list[float] = field(default_factory=list)

    def build(self, target: str = "vllm:8000", **options: object) -> DnsSource:
        arguments = {
            "rng": Random(7),
            "sleep": self._nap,
            "open_resolver": self.server.resolver,
        } | options
        return DnsSource(target, **arguments)  # type: ignore[arg-type]  # options of the test

    def running(
        self, target: str = "vllm:8000", **options: object
    ) -> AbstractAsyncContextManager[object]:
        return running_source(self.build(target, **options), self.sink)

    async def _nap(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await asyncio.sleep(0.005)


@pytest.fixture
async def queried(sink: RecordingSink) -> AsyncIterator[QueriedServer]:
    async with serving_dns(DnsServer({(NAME, "A"): ["10.0.0.2", "10.0.0.1"]})) as server:
        yield QueriedServer(server, sink)


@pytest.mark.parametrize("target", ["vllm:8000", "vllm.default.svc.cluster.local:8000"])
async def test_a_name_in_full_or_short_becomes_its_addresses_in_their_order(
    queried: QueriedServer, target: str
) -> None:
    async with queried.running(target):
        await queried.sink.until(lambda sink: len(sink.lists) >= 2)

    assert [[e.name for e in listed] for listed in queried.sink.lists[:2]] == [
        ["10.0.0.1:8000", "10.0.0.2:8000"]
    ] * 2
    assert queried.sink.restarts == []
    assert set(queried.server.questions) == {f"{NAME} A"}


async def test_changed_addresses_replace_the_list_and_their_order_is_no_change(
    queried: QueriedServer,
) -> None:
    async with queried.running():
        await queried.sink.until(lambda sink: sink.lists)
        queried.server.records[NAME, "A"].reverse()
        asked = len(queried.server.questions)
        await queried.sink.until(lambda sink: len(sink.lists) > asked + 1)
        assert all(listed == queried.sink.lists[0] for listed in queried.sink.lists)
        queried.server.records[NAME, "A"] = ["10.0.0.3"]
        await queried.sink.until(lambda sink: sink.addresses == ["10.0.0.3:8000"])


async def test_addresses_of_no_single_host_are_no_endpoints(queried: QueriedServer) -> None:
    records = ["224.0.0.1", "10.0.0.1", "0.0.0.0", "255.255.255.255"]
    queried.server.records[NAME, "A"] = records
    async with queried.running():
        await queried.sink.until(lambda sink: sink.addresses == ["10.0.0.1:8000"])


@pytest.mark.parametrize(("ttl_s", "waits_s"), [(0, 1), (5, 5), (3600, 30)])
async def test_the_ttl_decides_when_to_ask_again(
    queried: QueriedServer, *, ttl_s: int, waits_s: int
) -> None:
    queried.server.ttl_s = ttl_s
    async with queried.running():
        await queried.sink.until(lambda _: len(queried.delays) >= 5)

    assert all(waits_s <= delay <= 1.2 * waits_s for delay in queried.delays)
    assert len(set(queried.delays)) == len(queried.delays)


async def test_ipv6_serves_where_there_is_no_ipv4(queried: QueriedServer) -> None:
    queried.server.records[NAME, "AAAA"] = ["fd00::1"]
    async with queried.running():
        await queried.sink.until(lambda sink: sink.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"])
    del queried.server.records[NAME, "A"]
    async with queried.running():
        await queried.sink.until(lambda sink: sink.addresses == ["[fd00::1]:8000"])


async def test_a_truncated_answer_is_fetched_over_tcp(queried: QueriedServer) -> None:
    queried.server.truncates = True
    queried.server.records[NAME, "A"] = [
        f"10.0.{number // 250}.{number % 250}" for number in range(500)
    ]
    async with queried.running():
        await queried.sink.until(lambda sink: len(sink.addresses) == 500)


def fall_silent(server: DnsServer) -> None:
    server.is_silent, server.patience_s = True, 0.1


@pytest.mark.parametrize(
    ("break_", "why"),
    [
        (lambda server: server.records.clear(), "dns_no_address"),
        (lambda server: server.records.update({(NAME, "A"): []}), "dns_no_address"),
        (lambda server: setattr(server, "rcode", dns.rcode.SERVFAIL), "dns_failure"),
        (fall_silent, "dns_timeout"),
        (lambda server: server.records.update({(NAME, "A"): ["0.0.0.0"]}), "dns_no_address"),
    ],
    ids=["no such name", "no address", "a failure", "silence", "a blocked name"],
)
async def test_a_failure_keeps_the_list(
    queried: QueriedServer, *, break_: Callable[[DnsServer], None], why: str
) -> None:
    async with queried.running():
        await queried.sink.until(lambda sink: sink.lists)
        break_(queried.server)
        await queried.sink.until(lambda sink: len(sink.restarts) >= 3)
        delays_s = queried.delays[-2:]
        queried.server.rcode, queried.server.is_silent, queried.server.patience_s = (
            dns.rcode.NOERROR,
            False,
            2.0,
        )
        queried.server.records[NAME, "A"] = ["10.0.0.3"]
        await queried.sink.until(lambda sink: sink.addresses == ["10.0.0.3:8000"])

    assert set(queried.sink.restarts) == {why}
    listed_addresses = {
        tuple(endpoint.address for endpoint in listed) for listed in queried.sink.lists
    }
    assert listed_addresses == {("10.0.0.1:8000", "10.0.0.2:8000"), ("10.0.0.3:8000",)}
    assert max(delays_s) <= 4
    assert all(queried.sink.reasons)


async def test_a_missing_resolver_configuration_is_a_failure_like_others(
    queried: QueriedServer,
) -> None:
    answers = iter([False, False])

    def open_resolver() -> Resolver:
        if next(answers, True):
            return queried.server.resolver()
        raise NoResolverConfiguration

    async with queried.running(open_resolver=open_resolver):
        await queried.sink.until(lambda sink: sink.lists)

    assert queried.sink.restarts == ["dns_failure", "dns_failure"]


async def test_a_cancellation_that_the_library_swallows_ends_the_source_all_the_same(
    queried: QueriedServer,
) -> None:
    """As `asyncio.wait_for` of Python 3.11 does where the answer comes at that moment."""
    asked = asyncio.Event()

    class Swallowing(Resolver):
        async def resolve(self, *arguments: Any, **options: Any) -> Answer:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await queried.server.resolver().resolve(*arguments, **options)

    task = asyncio.create_task(
        queried.build(open_resolver=lambda: Swallowing(configure=False)).run(queried.sink)
    )
    await asked.wait()
    task.cancel()

    assert await asyncio.wait([task], timeout=60) == ({task}, set())
    assert task.cancelled()

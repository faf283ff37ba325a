import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from typing import Any

import dns.rcode
import pytest
from dns.asyncresolver import Resolver
from dns.resolver import Answer, NoResolverConfiguration

from extproc.errors import AddressError
from extproc.router.cluster.dns import DnsSource
from tests.router.cluster.dns_server import DnsServer, serving_dns
from tests.router.cluster.harness import RecordingSink, running

NAME = "vllm.default.svc.cluster.local."
BuildSource = Callable[..., DnsSource]


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with serving_dns(DnsServer({(NAME, "A"): ["10.0.0.2", "10.0.0.1"]})) as server:
        yield server


@pytest.fixture
def delays() -> list[float]:
    return []


@pytest.fixture
def build(server: DnsServer, delays: list[float]) -> BuildSource:
    async def nap(delay_s: float) -> None:
        delays.append(delay_s)
        await asyncio.sleep(0.005)

    def build(target: str = "vllm:8000", **options: object) -> DnsSource:
        arguments = {"rng": Random(7), "sleep": nap, "open_resolver": server.resolver} | options
        return DnsSource(target, **arguments)  # type: ignore[arg-type]  # options of the test

    return build


async def test_a_name_becomes_its_addresses_in_their_order(build: BuildSource, sink: RecordingSink) -> None:
    async with running(build(), sink):
        await sink.until(lambda told: len(told.lists) >= 2)

    assert [[e.name for e in told] for told in sink.lists[:2]] == [["10.0.0.1:8000", "10.0.0.2:8000"]] * 2
    assert sink.restarts == []


@pytest.mark.parametrize("target", ["vllm:8000", "vllm.default.svc.cluster.local:8000"])
async def test_search_domains_complete_a_short_name(
    build: BuildSource, server: DnsServer, sink: RecordingSink, target: str
) -> None:
    async with running(build(target), sink):
        await sink.until(lambda told: told.lists)

    assert set(server.questions) == {f"{NAME} A"}


async def test_the_order_of_the_answer_is_no_change(
    build: BuildSource, server: DnsServer, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda told: told.lists)
        server.records[NAME, "A"].reverse()
        asked = len(server.questions)
        await sink.until(lambda told: len(told.lists) > asked + 1)

    assert all(told == sink.lists[0] for told in sink.lists)


async def test_changed_addresses_replace_the_list(
    build: BuildSource, server: DnsServer, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda told: told.lists)
        server.records[NAME, "A"] = ["10.0.0.3"]
        await sink.until(lambda told: told.addresses == ["10.0.0.3:8000"])


@pytest.mark.parametrize(("ttl_s", "waits_s"), [(0, 1), (5, 5), (3600, 30)])
async def test_the_ttl_decides_when_to_ask_again(
    build: BuildSource,
    server: DnsServer,
    sink: RecordingSink,
    delays: list[float],
    *,
    ttl_s: int,
    waits_s: int,
) -> None:
    server.ttl_s = ttl_s
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 5)

    assert all(waits_s <= delay <= 1.2 * waits_s for delay in delays)
    assert len(set(delays)) == len(delays)


async def test_ipv6_serves_where_there_is_no_ipv4(
    build: BuildSource, server: DnsServer, sink: RecordingSink
) -> None:
    server.records[NAME, "AAAA"] = ["fd00::1"]
    async with running(build(), sink):
        await sink.until(lambda told: told.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"])
    del server.records[NAME, "A"]
    async with running(build(), sink):
        await sink.until(lambda told: told.addresses == ["[fd00::1]:8000"])


async def test_a_truncated_answer_is_fetched_over_tcp(
    build: BuildSource, server: DnsServer, sink: RecordingSink
) -> None:
    server.truncates = True
    server.records[NAME, "A"] = [f"10.0.{number // 250}.{number % 250}" for number in range(500)]
    async with running(build(), sink):
        await sink.until(lambda told: len(told.addresses) == 500)


def forget(server: DnsServer) -> None:
    server.records.clear()


def empty(server: DnsServer) -> None:
    server.records[NAME, "A"] = []


def fail(server: DnsServer) -> None:
    server.rcode = dns.rcode.SERVFAIL


def fall_silent(server: DnsServer) -> None:
    server.is_silent, server.patience_s = True, 0.1


@pytest.mark.parametrize(
    ("break_", "why"),
    [
        (forget, "dns_no_address"),
        (empty, "dns_no_address"),
        (fail, "dns_failure"),
        (fall_silent, "dns_timeout"),
    ],
)
async def test_a_failure_keeps_the_last_good_list_and_backs_off(
    build: BuildSource,
    server: DnsServer,
    sink: RecordingSink,
    delays: list[float],
    *,
    break_: Callable[[DnsServer], None],
    why: str,
) -> None:
    async with running(build(), sink):
        await sink.until(lambda told: told.lists)
        break_(server)
        await sink.until(lambda told: len(told.restarts) >= 3)
        delays_s = delays[-2:]
        server.rcode, server.is_silent, server.patience_s = dns.rcode.NOERROR, False, 2.0
        server.records[NAME, "A"] = ["10.0.0.3"]
        await sink.until(lambda told: told.addresses == ["10.0.0.3:8000"])

    assert set(sink.restarts) == {why}
    told_addresses = {tuple(endpoint.address for endpoint in told) for told in sink.lists}
    assert told_addresses == {("10.0.0.1:8000", "10.0.0.2:8000"), ("10.0.0.3:8000",)}
    assert max(delays_s) <= 4
    assert all(sink.reasons)


async def test_a_missing_resolver_configuration_is_a_failure_like_others(
    build: BuildSource, server: DnsServer, sink: RecordingSink
) -> None:
    answers = iter([False, False])

    def open_resolver() -> Resolver:
        if next(answers, True):
            return server.resolver()
        raise NoResolverConfiguration

    async with running(build(open_resolver=open_resolver), sink):
        await sink.until(lambda told: told.lists)

    assert sink.restarts == ["dns_failure", "dns_failure"]


def test_a_target_that_is_no_name_is_refused() -> None:
    with pytest.raises(AddressError, match="give it as static"):
        DnsSource("10.0.0.1:8000", rng=Random(1))


async def test_a_cancellation_that_the_library_swallows_ends_the_source_all_the_same(
    build: BuildSource, server: DnsServer, sink: RecordingSink
) -> None:
    """As `asyncio.wait_for` of Python 3.11 does where the answer comes at that moment."""
    asked = asyncio.Event()

    class Swallowing(Resolver):
        async def resolve(self, *arguments: Any, **options: Any) -> Answer:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await server.resolver().resolve(*arguments, **options)

    task = asyncio.create_task(build(open_resolver=lambda: Swallowing(configure=False)).run(sink))
    await asked.wait()
    task.cancel()

    assert await asyncio.wait([task], timeout=60) == ({task}, set())
    assert task.cancelled()

"""What the parent hears of sources is what the workers' pools hear, once counted."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from extproc.router.cluster.static import StaticSource
from extproc.router.routing.endpoint import Endpoint
from extproc.router.service.outages import Outages
from extproc.router.service.wiring import OwnSources
from extproc.router.settings.tree import PoolSettings, parse_settings
from extproc.router.telemetry import Metrics
from extproc.router.workers.fed import Consecutive, Fed
from extproc.router.workers.feeds import Feeds, endpoints_key
from extproc.router.workers.messages import Confirmed, Forgotten, Lacking, Listed, Restarted, Told, Welcome

ONE, TWO = Endpoint("10.0.0.1:8000", "10.0.0.1:8000"), Endpoint("10.0.0.2:8000", "10.0.0.2:8000")
KEY = "llama"


class Heard:
    """A sink that notes what it hears."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        self.told.append([endpoint.address for endpoint in endpoints])

    def confirm(self, age_s: float = 0.0) -> None:
        self.told.append(("confirmed", age_s) if age_s else "confirmed")

    def restarted(self, why: str, reason: str | None = None) -> None:
        self.told.append((why, reason))

    def lacks(self, why: str, reason: str) -> None:
        self.told.append((why, reason))


@asynccontextmanager
async def following(fed: Fed, key: str = KEY) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(fed.source(key).run(heard))
    await asyncio.sleep(0)
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_pool_hears_what_its_source_says() -> None:
    fed = Fed(monotonic)
    async with following(fed) as heard:
        for told in (
            Listed(KEY, [ONE]),
            Confirmed(KEY),
            Restarted(KEY, "closed", None),
            Restarted(KEY, "connection", "refused"),
            Lacking(KEY, "not_found", "no such Service"),
            Listed("another", [TWO]),
        ):
            fed.take(told)

    assert [
        ["10.0.0.1:8000"],
        "confirmed",
        ("closed", None),
        ("connection", "refused"),
        ("not_found", "no such Service"),
    ] == heard.told


async def test_what_was_told_before_the_pool_was_there_is_told_to_it() -> None:
    fed = Fed(lambda: 0.0)
    fed.take(Listed(KEY, [ONE]))
    fed.take(Listed(KEY, [TWO]))
    fed.take(Restarted(KEY, "connection", "refused"))
    async with following(fed) as heard:
        pass

    assert [["10.0.0.2:8000"], ("connection", "refused")] == heard.told


async def test_a_list_is_as_old_as_when_it_was_last_confirmed() -> None:
    """1. A list that was 40 s old when it was told, 3 s ago. 2. Confirmed, and 5 s later again asked for."""
    now = [100.0]
    fed = Fed(lambda: now[0])
    fed.take(Listed(KEY, [ONE], 40.0))
    now[0] += 3.0
    async with following(fed) as first:
        pass
    fed.take(Confirmed(KEY))
    now[0] += 5.0
    async with following(fed) as second:
        fed.take(Listed(KEY, [TWO]))

    assert [["10.0.0.1:8000"], ("confirmed", 43.0)] == first.told
    assert [["10.0.0.1:8000"], ("confirmed", 5.0), ["10.0.0.2:8000"]] == second.told


async def test_a_new_worker_is_told_how_old_lists_are() -> None:
    now = [100.0]
    feeds = Feeds(
        OwnSources(Path(), random.Random(0)),
        lambda _: None,
        Metrics(),
        Outages(monotonic),
        clock=lambda: now[0],
    )
    [settings] = pools("10.0.0.1:8000")
    feeds.apply([settings])
    await asyncio.sleep(0.01)
    now[0] += 40.0
    known = [*feeds.known()]
    await feeds.stop()

    assert [Listed(endpoints_key(settings), (ONE,), 40.0)] == known


async def test_a_fault_that_is_over_and_a_source_that_is_forgotten_are_not_told() -> None:
    fed = Fed(lambda: 0.0)
    fed.take(Listed(KEY, [ONE]))
    fed.take(Restarted(KEY, "connection", "refused"))
    fed.take(Confirmed(KEY))
    async with following(fed) as heard:
        pass
    fed.take(Forgotten(KEY))
    async with following(fed) as later:
        pass

    assert ([["10.0.0.1:8000"]], []) == (heard.told, later.told)


def pools(*addresses: str) -> list[PoolSettings]:
    static = ", ".join(addresses)
    return parse_settings(f"pools: [{{name: llama, endpoints: {{static: [{static}]}}}}]", {}).pools


async def test_a_source_is_another_one_when_its_settings_are() -> None:
    """1. A pool's list. 2. The same settings: nothing. 3. Others: a new list, the old one is forgotten."""
    told: list[Told] = []
    metrics = Metrics()
    feeds = Feeds(
        OwnSources(Path(), random.Random(0)), told.append, metrics, Outages(monotonic), clock=lambda: 0.0
    )
    before, after = pools("10.0.0.1:8000"), pools("10.0.0.2:8000")
    feeds.apply(before)
    await asyncio.sleep(0.01)
    feeds.apply(before)
    await asyncio.sleep(0.01)
    feeds.apply(after)
    await asyncio.sleep(0.01)
    known = [*feeds.known()]
    await feeds.stop()

    old, new = endpoints_key(before[0]), endpoints_key(after[0])
    assert [Listed(old, (ONE,)), Forgotten(old), Listed(new, (TWO,))] == told
    assert [Listed(new, (TWO,))] == known


async def test_a_gateways_workers_are_at_neighbouring_ports() -> None:
    heard = Heard()
    source = Consecutive(StaticSource([ONE, Endpoint("v6", "[fd00::1]:65535")]), 2)
    task = asyncio.create_task(source.run(heard))
    await asyncio.sleep(0.01)
    task.cancel()

    assert ["10.0.0.1:8000", "10.0.0.1:8001", "[fd00::1]:65535"] == heard.told[0]


def test_nobody_reads_the_secret_in_what_is_printed() -> None:
    welcome = Welcome(0, 2, "/tmp/private", None, b"first", b"content", b"swordfish")

    assert repr(welcome) == "<Welcome to 0 of 2>"

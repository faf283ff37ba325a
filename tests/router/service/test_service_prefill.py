"""Prefill endpoints in the service: who is blamed for what, what operators see, what a reload changes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from msgspec.structs import replace

from extproc.errors import Overloaded, SettingsError
from extproc.router.feedback.outcome import EndpointFault, Exchange
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Query
from extproc.router.routing.pool import Pick
from extproc.router.routing.queue import Lane, Waiter
from extproc.router.routing.signals import EndpointSignals
from extproc.router.service.admin import describe_pool
from extproc.router.service.explain import explain_decision
from extproc.router.service.pool_metrics import PoolCollector, measure_saturations
from extproc.router.service.pools import Pools
from extproc.router.settings.reading import parse_settings
from extproc.router.stream.events import ResponseHeaders, Served
from extproc.router.telemetry import Metrics
from tests.clock import Clock
from tests.router.cluster.api_server import PODS, ApiServer, serving_api, write_access
from tests.router.cluster.pool_objects import LABELS, pool_object, running_pod
from tests.router.service.running import build_pools, running_pools, synced
from tests.tables import table
from tests.waiting import until

STAGED = """
pools:
- name: llama
  probe: false
  signals: false
  endpoints: {static: ['10.0.0.1:80', '10.0.0.2:80']}
  prefill: {endpoints: {static: ['10.1.0.1:80']}, gbit_per_s: 400}
"""
ALONE = STAGED.replace("  prefill: {endpoints: {static: ['10.1.0.1:80']}, gbit_per_s: 400}\n", "")
LONG_CHAT = Query(
    "POST",
    "/v1/chat/completions",
    {},
    orjson.dumps({"messages": [{"role": "user", "content": "why " * 8_000}]}),
)


@asynccontextmanager
async def running_staged(
    text: str = STAGED, clock: Callable[[], float] | None = None
) -> AsyncIterator[Pools]:
    """Its two endpoints have streams enough that a prefill elsewhere is worth it."""
    async with running_pools(text, clock=clock) as pools:
        await synced(pools)
        for address in ("10.0.0.1:80", "10.0.0.2:80"):
            pools["llama"].pool.book.set_peer_count(address, 100)
        yield pools


def send_long(pools: Pools) -> tuple[Pick, int]:
    """A long chat that has been and gone, each time a new one, and its number."""
    body = orjson.dumps(
        {"messages": [{"role": "user", "content": f"{len(pools.feedback.tickets)} why " * 5_000}]}
    )
    pick = pools.picker.pick(replace(LONG_CHAT, body=body)).pick
    for each in (pick, pick.prefill):
        if each is not None:
            each.release()
    return pick, pools.feedback.tickets.give(pick)


def list_states(pools: Pools) -> Sequence[str]:
    """Of the three endpoints, the one that prefills last."""
    return [state for each in pools for _, state in each.pool.states()]


@table(
    "exchange, expected",
    [
        (Exchange("", 502, 1.0, 0.5), ["ready", "ready", "cooling"]),
        (Exchange("", 429, 1.0, 0.5, retry_after="9"), ["ready", "ready", "busy"]),
        (Exchange("", 200, 1.0, 0.5), ["ready", "ready", "ready"]),
        (
            Exchange("", 403, 1.0, 0.5),
            ["ready", "ready", "ready"],
        ),  # the sidecar's own, for instance
        (
            Exchange("", 200, 1.0, 0.5, fault=EndpointFault.ENDPOINT),
            ["cooling", "ready", "ready"],
        ),
        (Exchange("", 503, 1.0, fault=EndpointFault.CONNECTION), ["cooling", "ready", "ready"]),
        (Exchange("", 504, 1.0, fault=EndpointFault.ENDPOINT), ["cooling", "ready", "cooling"]),
    ],
)
async def test_a_failure_is_told_of_the_endpoint_whose_it_may_be(
    exchange: Exchange, expected: Sequence[str]
) -> None:
    async with running_staged() as pools:
        running = pools["llama"]
        running.feedback.doubts = None
        running.pool.book.set_peer_count("10.0.0.1:80", 90)
        sent = [send_long(pools) for _ in range(3)]
        for pick, ticket in sent:
            assert pick.prefill is not None
            pools.feedback.note(replace(exchange, address=pick.endpoint.address, ticket=ticket))

        assert list_states(pools) == expected


async def test_a_refusal_of_a_prefill_endpoint_that_is_gone_is_nobodys() -> None:
    """The last requests that named one end after the reload that took it out."""
    async with running_staged() as pools:
        sent = [send_long(pools) for _ in range(3)]
        pools.apply(parse_settings(ALONE, {}).pools)
        for pick, ticket in sent:
            pools.feedback.note(Exchange(pick.endpoint.address, 502, 1.0, 0.5, ticket=ticket))

        assert list_states(pools) == ["ready", "ready"]


async def test_a_gateway_without_a_log_tells_it_by_its_headers() -> None:
    async with running_staged() as pools:
        for _ in range(3):
            pick, ticket = send_long(pools)
            head = ResponseHeaders(status=500)
            served = Served("llama", pick.endpoint.address, head, False, ticket, pick.prefill)
            pools.feedback.observe_response(served, 0.1)

        assert list_states(pools) == ["ready", "ready", "cooling"]


async def test_without_a_prefill_endpoint_all_is_local_at_once_and_everybody_says_so() -> None:
    async with running_staged() as pools:
        metrics = Metrics()
        metrics.registry.register(PoolCollector(pools))
        assert pools.remarks() == []
        pools["llama/prefill"].pool.replace([])

        assert send_long(pools)[0].prefill is None
        assert [line.partition(";")[0] for line in pools.remarks()] == [
            "pool llama: no prefill endpoint is ready"
        ]
        assert describe_pool(pools["llama"])["prefill"] == {"pool": "llama/prefill", "ready": 0}
        labels = {"pool": "llama/prefill", "state": "ready"}
        assert metrics.registry.get_sample_value("extproc_pool_endpoints", labels) == 0
        assert pools.faults() == []


@table("waiting, expected", [((0, 3), 0.6), ((4, 3), 0.8), ((4, 0), 0.8)])
async def test_a_pool_is_as_full_as_the_fuller_of_its_stages(
    waiting: tuple[int, int], expected: float
) -> None:
    async with running_staged() as pools:
        for each, count in zip(pools, waiting, strict=True):
            for endpoint in each.pool.snapshot.ready.values():
                each.feedback.apply_signals(endpoint, EndpointSignals(waiting=count))

        assert stage_saturations(pools) == (expected, *(each / 5 for each in waiting))
        pools["llama/prefill"].pool.replace([])
        assert stage_saturations(pools) == (waiting[0] / 5, waiting[0] / 5, 1.0)


def stage_saturations(pools: Pools) -> tuple[float | None, ...]:
    """Of the pool as a whole, of those that answer, of those that prefill."""
    metrics = Metrics()
    metrics.registry.register(PoolCollector(pools))
    every = (
        {"pool": "llama"},
        {"pool": "llama", "stage": "decode"},
        {"pool": "llama/prefill", "stage": "prefill"},
    )
    values = [metrics.registry.get_sample_value("extproc_pool_saturation", each) for each in every]
    assert values[0] == measure_saturations(pools)["llama"]
    return tuple(values)


async def test_a_prefill_endpoint_that_drains_is_named_no_more_and_keeps_its_work() -> None:
    async with running_staged() as pools:
        stage, pick = pools["llama/prefill"].pool, pools.picker.pick(LONG_CHAT).pick
        stage.replace([Endpoint("10.1.0.1:80", "10.1.0.1:80", is_ready=False)])

        assert pick.prefill is not None
        assert (send_long(pools)[0].prefill, list_states(pools)[-1]) == (None, "draining")
        pick.prefill.release()
        with pytest.raises(KeyError):
            pick.prefill.release()


async def test_a_request_that_waited_for_room_is_sent_away_as_any_other() -> None:
    async with running_staged(
        STAGED.replace("probe: false", "hold: {}\n  max_in_flight: 101")
    ) as pools:
        pool, full = pools["llama"].pool, [pools.picker.pick(Query("GET", "/", {})) for _ in "ab"]
        found, waiter, left = pools.picker.find(LONG_CHAT), Waiter(Lane(0)), asyncio.Event()
        waiter.retry = lambda _: left.set()
        assert pool.queue is not None
        assert pool.queue.enter(waiter)
        with pytest.raises(Overloaded):
            pools.picker.pick(LONG_CHAT, found)
        full[0].pick.release()
        await left.wait()
        pick = pools.picker.pick(LONG_CHAT, found).pick

        assert pick.prefill is not None
        assert pools["llama/prefill"].pool.book.total == 1


async def test_an_endpoint_that_fails_on_and_on_is_named_ever_less() -> None:
    """Ten requests a second for a minute: no coming and going with each answer."""
    clock, named = Clock(), []
    async with running_staged(clock=clock) as pools:
        for _ in range(600):
            pick, ticket = send_long(pools)
            named.append(pick.prefill is not None)
            status = 502 if pick.prefill else 200
            address = pick.endpoint.address
            pools.feedback.note(Exchange(address, status, 0.01, 0.01, ticket=ticket))
            clock.now_s += 0.1

        assert named[:3] == [True] * 3
        assert sum(named[3:]) <= 6
        assert sum(named[300:]) <= 3


async def test_a_reload_brings_and_takes_prefill_endpoints() -> None:
    async with running_staged(ALONE) as pools:
        assert (send_long(pools)[0].prefill, [each.name for each in pools]) == (None, ["llama"])
        pools.apply(parse_settings(STAGED, {}).pools)
        await synced(pools)
        explained = explain_decision(pools.picker, LONG_CHAT)

        assert explained["reason"] == "remote_prefill"
        assert explained["prefill"] == {"endpoint": "10.1.0.1:80", "address": "10.1.0.1:80"}
        assert [*pools.picker.routes] == ["llama"]
        pools.apply(parse_settings(ALONE, {}).pools)
        assert (send_long(pools)[0].prefill, [each.name for each in pools]) == (None, ["llama"])


async def test_no_envoy_hears_of_prefill_endpoints_and_they_make_no_service_ready() -> None:
    heard: list[str] = []
    pools = build_pools(publish=lambda pool, _: heard.append(pool))
    missing = STAGED.replace("{static: ['10.0.0.1:80', '10.0.0.2:80']}", "{file: missing.yaml}")
    pools.apply(parse_settings(missing, {}).pools)
    try:
        await pools["llama/prefill"].keeper.synced.wait()

        assert (heard, pools.can_route, len(pools.faults())) == ([], False, 1)
    finally:
        await pools.stop()


async def test_other_replicas_hear_of_both_stages() -> None:
    kept: list[str] = []
    courier = SimpleNamespace(keep=lambda pool: kept.append(pool.name), forget=kept.remove)
    pools = build_pools(courier=courier)
    pools.apply(parse_settings(STAGED, {}).pools)
    try:
        assert kept == ["llama", "llama/prefill"]
        pools.apply(parse_settings(ALONE, {}).pools)
        assert kept == ["llama"]
    finally:
        await pools.stop()


def test_what_prefill_endpoints_cannot_go_with_is_refused_in_words() -> None:
    with pytest.raises(SettingsError, match="leave out one of shadow and prefill"):
        parse_settings(STAGED.replace("probe: false", "shadow: {}"), {})
    with pytest.raises(SettingsError, match="prefill compares by prefix_cache"):
        parse_settings(STAGED.replace("probe: false", "strategy: least_load"), {})


POOLED = "{inference_pool: {name: vllm}}"


def test_both_stages_read_the_label_that_pairs_their_pods() -> None:
    text = STAGED.replace("{static: ['10.0.0.1:80', '10.0.0.2:80']}", POOLED)
    text = text.replace("gbit_per_s: 400", "match_label: llm-d.ai/revision")
    with pytest.raises(SettingsError, match="both endpoints must be of an inference_pool"):
        parse_settings(text, {})
    [pool] = parse_settings(text.replace("{static: ['10.1.0.1:80']}", POOLED), {}).pools
    stage = pool.stage()

    assert stage is not None
    assert (pool.match_label, stage.match_label) == ("llm-d.ai/revision",) * 2
    assert stage.stage() is None


async def test_only_pods_of_one_revision_are_paired_as_the_api_server_names_them(
    tmp_path: Path,
) -> None:
    """Two revisions in both stages; then the old one's prefill Pod goes, and its prompts stay where they are."""
    async with serving_api(ApiServer()) as server:
        server.put(pool_object())
        for name, place, role in (("a", 0, "decode"), ("p", 1, "prefill")):
            for revision in ("1", "2"):
                labels = {**LABELS, "llm-d.ai/role": role, "revision": revision}
                address = f"10.{place}.0.{revision}"
                server.put(running_pod(f"{name}{revision}", address, labels=labels))
        source = (
            f"{{namespace: default, name: vllm, kubeconfig: {write_access(tmp_path, server.url)}}}"
        )
        both = STAGED.replace("{static: ['10.0.0.1:80', '10.0.0.2:80']}", PAIRED % source)
        text = both.replace("{static: ['10.1.0.1:80']}", PAIRED % source)
        text = text.replace("gbit_per_s: 400", "gbit_per_s: 400, match_label: revision")
        async with running_pools(text) as pools:
            await synced(pools)
            for one in ("a1", "a2"):
                pools["llama"].pool.book.set_peer_count(f"default/{one}", 100)

            assert paired(pools) == {("default/a1", "default/p1"), ("default/a2", "default/p2")}
            server.delete("p1", PODS)
            await until(lambda: len(pools["llama/prefill"].pool.candidates()) == 1)
            assert paired(pools) <= {("default/a1", None), ("default/a2", "default/p2")}


PAIRED = "{inference_pool: %s}"


def paired(pools: Pools) -> set[tuple[str, str | None]]:
    """The endpoints of twenty picks, by name."""
    picks = [send_long(pools)[0] for _ in range(20)]
    return {
        (one.endpoint.name, one.prefill.endpoint.name if one.prefill else None) for one in picks
    }

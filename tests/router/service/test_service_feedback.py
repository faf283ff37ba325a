"""Feedback in the service: outcomes find their pool, operators see who is left out, rules change live."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web
from msgspec.structs import replace

from extproc.router.feedback.access_log import AccessLogs
from extproc.router.feedback.outcome import EndpointFault, Exchange, Outcome, Verdict
from extproc.router.feedback.probes import ProbePlan
from extproc.router.routing.picker import Query
from extproc.router.routing.pool import Pick
from extproc.router.service.admin import describe_pool
from extproc.router.service.explain import explain_decision
from extproc.router.service.pool_metrics import PoolCollector
from extproc.router.service.pools import Pools
from extproc.router.service.wiring import build_probe, build_scrape
from extproc.router.settings.pool_settings import PoolSettings
from extproc.router.settings.reading import parse_settings
from extproc.router.stream.events import ResponseHeaders, Served
from extproc.router.telemetry import Metrics
from tests.hosting import hosting
from tests.router.feedback.access_logs import entry, log_message
from tests.router.service.running import running_pools, synced
from tests.stack.ports import free_ports
from tests.tables import table
from tests.waiting import until

TWO_POOLS = """
pools:
- {name: a, models: [a], probe: false, endpoints: {static: ['10.0.0.1:80', '10.0.0.2:80']}}
- {name: b, models: [b], probe: false, endpoints: {static: ['10.0.1.1:80', '10.0.1.2:80']}}
"""


@asynccontextmanager
async def running_two_pools(text: str = TWO_POOLS) -> AsyncIterator[Pools]:
    async with running_pools(text) as pools:
        await synced(pools)
        yield pools


def fail_endpoint(pools: Pools, address: str) -> None:
    for _ in range(3):
        pools["a"].feedback.observe(Outcome(address, Verdict.FAILED, 500))


def endpoint_states(pools: Pools) -> dict[str, str]:
    described = [describe_pool(each)["endpoints"] for each in pools]
    return {each["name"]: each["state"] for endpoints in described for each in endpoints}  # type: ignore[attr-defined]  # JSON


CACHES = TWO_POOLS.replace("probe: false", "probe: false, strategy: {name: prefix_cache}")
LONG = orjson.dumps({"model": "a", "messages": [{"role": "user", "content": "why " * 500}]})


def take(pools: Pools) -> tuple[Pick, int]:
    """A request that has been and gone, and its number."""
    pick = pools.picker.pick(Query("POST", "/v1/chat/completions", {}, LONG)).pick
    number = pools.feedback.tickets.give(pick)
    pick.release()
    pools.feedback.tickets.end(number)
    return pick, number


def match_tokens(pools: Pools) -> dict[str, int]:
    """Tokens of the prompt that each endpoint is believed to hold."""
    explained = explain_decision(pools.picker, Query("POST", "/v1/chat/completions", {}, LONG))
    return {offer["endpoint"]: offer["match_tokens"] for offer in explained["candidates"]}  # type: ignore[attr-defined]


def logs(pools: Pools) -> AccessLogs:
    return AccessLogs(pools.feedback.note, lambda _: None)


async def test_operators_see_who_cools_down() -> None:
    metrics = Metrics()
    async with running_two_pools() as pools:
        metrics.registry.register(PoolCollector(pools))
        fail_endpoint(pools, "10.0.0.1:80")

        def endpoints(pool: str, state: str) -> float | None:
            return metrics.registry.get_sample_value(
                "extproc_pool_endpoints", {"pool": pool, "state": state}
            )

        explained = explain_decision(
            pools.picker, Query("POST", "/v1/chat/completions", {}, b'{"model": "a"}')
        )

        assert [*endpoint_states(pools).values()] == ["cooling", "ready", "ready", "ready"]
        assert [endpoints("a", state) for state in ("ready", "cooling", "busy", "unhealthy")] == [
            1,
            1,
            0,
            0,
        ]
        assert [endpoints("b", state) for state in ("ready", "cooling")] == [2, 0]
        assert (explained["endpoint"], explained["left_out"]) == (
            "10.0.0.2:80",
            {"10.0.0.1:80": "cooling"},
        )


async def test_entries_that_anybody_may_write_cool_nothing_and_empty_no_index() -> None:
    """Twelve entries, three for each endpoint: nobody could connect to any of them."""
    async with running_two_pools(CACHES) as pools:
        take(pools)
        before = match_tokens(pools)
        for address in [("10.0.0.1", 80), ("10.0.0.2", 80), ("10.0.1.1", 80), ("10.0.1.2", 80)]:
            for pool, number in (("a", None), ("b", "0" * 15 + "1"), (None, "f" * 16)):
                made_up = entry(
                    pool, address, 503, 1, None, "upstream_connection_failure", pick=number
                )
                logs(pools).receive(log_message(made_up))

        assert set(endpoint_states(pools).values()) == {"ready"}
        assert match_tokens(pools) == before
        assert sum(before.values()) > 0
        assert all(each.feedback.counters.answers == {} for each in pools)


async def test_an_entry_counts_once_and_in_the_pool_of_its_pick() -> None:
    async with running_two_pools(CACHES) as pools:
        pick, number = take(pools)
        host, _, port = pick.endpoint.address.partition(":")
        message = log_message(entry("b", (host, int(port)), pick=f"{number:016x}"))
        for _ in range(3):
            logs(pools).receive(message)

        assert pools["a"].feedback.counters.answers == {(pick.endpoint.name, "2xx"): 1}
        assert pools["b"].feedback.counters.answers == {}

        other = next(each for each in ("10.0.0.1", "10.0.0.2") if each != host)
        for _ in range(9):
            own = f"{take(pools)[1]:016x}"
            given = entry("a", (other, 80), 503, 1, None, "upstream_connection_failure", pick=own)
            logs(pools).receive(log_message(given))
        assert "cooling" not in endpoint_states(pools).values()


def refuse_connections(pools: Pools, entries: int) -> None:
    """Entries with tickets of one's own: the endpoints that they name could not be connected to."""
    for _ in range(entries):
        pick, number = take(pools)
        host, port = pick.endpoint.address.split(":")
        failure = "upstream_connection_failure"
        given = entry("a", (host, int(port)), 503, 1, None, failure, pick=f"{number:016x}")
        logs(pools).receive(log_message(given))


ROUND = "pools: [{name: a, models: [a], probe: false, strategy: {name: round_robin}, endpoints: {static: "


async def test_a_connection_failure_counts_only_if_the_endpoint_does_not_answer_us_either() -> None:
    asked = Counter[str]()

    async def answer(request: web.Request) -> web.Response:
        asked[request.host] += 1
        return web.Response()

    async with hosting({"GET /health": answer}) as one, hosting({"GET /health": answer}) as other:
        async with running_two_pools(f"{ROUND}['{one}', '{other}']}}}}]") as pools:
            refuse_connections(pools, 24)
            await until(lambda: len(asked) == 2)
            refuse_connections(pools, 24)

            assert [*endpoint_states(pools).values()] == ["ready", "ready"]
            assert set(asked.values()) == {1}
        dead = f"127.0.0.1:{free_ports(1)[0]}"
        async with running_two_pools(f"{ROUND}['{dead}', '{other}']}}}}]") as pools:
            refuse_connections(pools, 6)
            await until(lambda: "cooling" in endpoint_states(pools).values())

            assert endpoint_states(pools) == {dead: "cooling", other: "ready"}


async def test_response_headers_reach_the_pool() -> None:
    async with running_two_pools() as pools:
        for status in (0, 500, 500, 500):
            pools.feedback.observe_response(
                Served("b", "10.0.1.2:80", ResponseHeaders(status=status)), 0.1
            )
        pools.feedback.observe_response(
            Served("gone", "10.0.1.2:80", ResponseHeaders(status=500)), 0.1
        )

        assert [name for name, state in endpoint_states(pools).items() if state == "cooling"] == [
            "10.0.1.2:80"
        ]
        assert pools["b"].feedback.counters.answers == {("10.0.1.2:80", "5xx"): 3}


@table(
    ("who", "exchange", "known"),
    [
        ("picked", Exchange("", 500, 1.0, 0.1), []),
        ("picked", Exchange("", 503, 1.0, fault=EndpointFault.ENDPOINT), []),
        ("", Exchange("", 503, 1.0), []),
        ("10.9.9.9:80", Exchange("", 200, 1.0, 0.1), []),
        (
            "other",
            Exchange("", 200, 1.0, 0.1, attempts=2),
            ["other"],
        ),  # a retry that another one answered
        ("picked", Exchange("", 0, 1.0, fault=EndpointFault.CLIENT), ["picked"]),  # the client left
    ],
)
async def test_what_was_never_read_is_not_believed_there(
    who: str, exchange: Exchange, known: list[str]
) -> None:
    async with running_two_pools(CACHES) as pools:
        pick, number = take(pools)
        (other,) = {"10.0.0.1:80", "10.0.0.2:80"} - {pick.endpoint.address}
        address = {"picked": pick.endpoint.address, "other": other}
        before = match_tokens(pools)
        pools.feedback.note(replace(exchange, address=address.get(who, who), ticket=number))

        assert before[pick.endpoint.address] > 0
        assert [each for each, tokens in match_tokens(pools).items() if tokens] == [
            address[one] for one in known
        ]


async def test_response_headers_take_back_what_failed() -> None:
    async with running_two_pools(CACHES) as pools:
        pick, number = take(pools)
        for status in (200, 500):
            response = ResponseHeaders(status=status)
            pools.feedback.observe_response(
                Served("a", pick.endpoint.address, response, ticket=number), 0.1
            )

        assert sum(match_tokens(pools).values()) == 0


async def test_a_strategy_that_took_over_learns_nothing_of_what_another_placed() -> None:
    async with running_two_pools(CACHES) as pools:
        pick, number = take(pools)
        other = CACHES.replace("name: prefix_cache", "name: least_load")
        pools.apply(parse_settings(other, {}).pools)
        await until(lambda: pick.pool.strategy.name == "least_load")
        pools.feedback.note(Exchange(pick.endpoint.address, 500, 1.0, ticket=number))

        assert pick.pool.describe_engines() == {}
        assert pick.pool.book.total == 0
        _, number = take(pools)
        pools.apply(parse_settings(other, {}).pools[1:])
        pools.feedback.note(Exchange("10.0.0.1:80", 500, 1.0, ticket=number))
        assert [each.name for each in pools] == ["b"], "and a pool that is gone takes no more"


async def test_reading_metrics_begins_and_ends_live() -> None:
    def names() -> list[str]:
        return [
            task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("signals")
        ]

    reading = TWO_POOLS.replace("probe: false", "signals: {scrape_s: 300}, probe: false")
    async with running_two_pools(reading) as pools:
        assert sorted(names()) == ["signals a", "signals b"]

        unread = TWO_POOLS.replace("probe: false", "signals: false, probe: false")
        pools.apply(parse_settings(unread, {}).pools)
        await until(lambda: names() == [])
        pools.apply(parse_settings(reading, {}).pools[1:])
        assert names() == ["signals b"]
    await until(lambda: names() == [])


async def test_the_rule_changes_live() -> None:
    async with running_two_pools() as pools:
        settings = parse_settings(TWO_POOLS.replace("probe", "cool_after: null, probe"), {})
        pools.apply(settings.pools)
        fail_endpoint(pools, "10.0.0.1:80")
        assert "cooling" not in endpoint_states(pools).values()

        pools.apply(parse_settings(TWO_POOLS.replace("probe", "cool_after: 1, probe"), {}).pools)
        pools["a"].feedback.observe(Outcome("10.0.0.1:80", Verdict.FAILED, 500))
        assert endpoint_states(pools)["10.0.0.1:80"] == "cooling"


async def test_when_scraping_is_off_earlier_signals_are_forgotten() -> None:
    asking = TWO_POOLS.replace("probe: false", "probe: {interval_s: 1000}")
    async with running_two_pools(asking) as pools:
        pools["a"].feedback.cooling.set_health("10.0.0.1:80", is_healthy=False)
        assert endpoint_states(pools)["10.0.0.1:80"] == "unhealthy"

        pools.apply(parse_settings(TWO_POOLS, {}).pools)
        assert endpoint_states(pools)["10.0.0.1:80"] == "ready"


KUBERNETES = "{kubernetes: {namespace: default, service: vllm, port: http}}"
STATIC = "{static: ['10.0.0.1:80']}"


@table(
    ("endpoints", "probe", "plan"),
    [
        (STATIC, "", ProbePlan()),
        ("{file: endpoints.yaml}", "", ProbePlan()),
        ("{dns: 'vllm:8000'}", "", ProbePlan()),
        (KUBERNETES, "", None),
        ("{inference_pool: {name: vllm}}", "", None),
        (STATIC, "probe: false", None),
        (
            STATIC,
            "probe: {path: /ping, interval_s: 1, timeout_s: 2}",
            ProbePlan(1, 2, path="/ping"),
        ),
        (KUBERNETES, "probe: {}", ProbePlan()),
    ],
)
def test_only_lists_silent_on_health_are_asked(
    endpoints: str, probe: str, plan: ProbePlan | None
) -> None:
    [pool] = parse_settings(f"pools: [{{name: a, endpoints: {endpoints}, {probe}}}]", {}).pools

    assert build_probe(pool) == plan


@table(
    ("strategy", "signals", "is_read"),
    [
        *(("prefix_cache", None, True), ("prefix_cache", {"scrape_s": 30}, True)),
        ("prefix_cache", False, False),
        *(("prefix_hash", None, False), ("prefix_hash", {}, True), ("least_load", None, False)),
    ],
)
def test_metrics_are_read_for_strategies_that_use_them(
    strategy: str, signals: object, is_read: bool
) -> None:
    changes = {"strategy": {"name": strategy}, "signals": signals}
    fields = {"name": "llama", "endpoints": {"static": []}, **changes}
    given = {name: value for name, value in fields.items() if value is not None}

    assert (build_scrape(PoolSettings.model_validate(given)) is not None) is is_read

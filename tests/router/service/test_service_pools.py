"""Pools as the settings say, with a clock of the test's own."""

from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from extproc.errors import NoEndpoint, SettingsError
from extproc.router.routing.picker import Query
from extproc.router.routing.pool import Pool
from extproc.router.routing.queue import Lane, Waiter
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import Strategy
from extproc.router.service.pool_metrics import PoolCollector, collect_llmd
from tests.clock import Clock
from tests.hosting import hosting
from tests.router.service.running import build_pools, configure, running_pools, synced
from tests.stack.client import chat_about
from tests.tables import table
from tests.waiting import until


async def test_how_many_fallbacks_a_pick_names_changes_live(tmp_path: Path) -> None:
    static = "static: ['10.0.0.1:80', '10.0.0.2:80', '10.0.0.3:80']"
    named = []
    async with running_pools(
        f"pools: [{{name: a, endpoints: {{{static}}}}}]", tmp_path, Clock()
    ) as pools:
        for count in (0, 3, 1):
            text = f"pools: [{{name: a, fallbacks: {count}, endpoints: {{{static}}}}}]"
            configure(pools, text)
            await synced(pools)
            named.append(len(pools.picker.pick(Query("GET", "/", {})).pick.fallbacks))

    assert [0, 2, 1] == named


async def test_objectives_and_fairness_change_live(tmp_path: Path) -> None:
    """A request in flight keeps what it began with, and ends as that."""
    wanted = "endpoints: {static: ['10.0.0.1:80']}, max_in_flight: 1"
    batch = Query("GET", "/", {"x-gateway-inference-objective": "batch"})
    named = Query("GET", "/", {"x-gateway-inference-fairness-id": "a"})
    async with running_pools(f"pools: [{{name: a, {wanted}}}]", tmp_path, Clock()) as pools:
        await synced(pools)
        ordinary = pools.picker.pick(batch).pick
        ordinary.release()
        configure(
            pools, f"pools: [{{name: a, {wanted}, objectives: {{batch: -1}}, fairness: true}}]"
        )
        low = pools.picker.pick(batch).pick
        other = pools.picker.pick(named).pick
        configure(pools, f"pools: [{{name: a, {wanted}}}]")
        for pick in (low, other):
            pick.release()

    assert ordinary.standing is None
    assert [-1, 0] == [pick.standing.priority for pick in (low, other) if pick.standing]
    assert len(pools["a"].pool.admission) == 0


async def test_every_question_to_engines_has_their_key_and_nobody_is_shown_it() -> None:
    heard: dict[str, set[str | None]] = {}

    async def ask(request: web.Request) -> web.Response:
        heard.setdefault(request.path, set()).add(request.headers.get("authorization"))
        return web.json_response({"data": [{"id": "llama"}]})

    async with hosting({"/{any:.*}": ask}) as address:
        wanted = (
            f"endpoints: {{static: ['{address}']}}, learn_models: true, signals: {{events: true}}"
        )
        pools = build_pools(environment={"KEY": " sk-1\n", "BAD": "a\rb"})
        try:
            for settings, expected in (("", None), (", engine_key: {env: KEY}", "Bearer sk-1")):
                heard.clear()
                configure(pools, f"pools: [{{name: a, {wanted}{settings}}}]")
                await until(lambda: len(heard) == 4)
                assert {*heard} == {"/v1/models", "/health", "/metrics", "/kv_event_sources"}
                assert {None} | {expected} >= set().union(*heard.values()) >= {expected}
            for name in ("BAD", "NONE"):
                with pytest.raises(SettingsError, match="engine_key"):
                    configure(pools, f"pools: [{{name: a, {wanted}, engine_key: {{env: {name}}}}}]")
            assert (
                "sk-1"
                not in f"{pools['a'].settings!r} {[*pools['a'].pool.snapshot.ready.values()]}"
            )
        finally:
            await pools.stop()


async def test_a_key_in_a_file_is_read_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: dict[str | None, set[str]] = {}

    async def ask(request: web.Request) -> web.Response:
        heard.setdefault(request.headers.get("authorization"), set()).add(request.path)
        return web.json_response({"data": [{"id": "llama"}]})

    file = tmp_path / "key"
    file.write_text("sk-1")
    async with hosting({"/{any:.*}": ask}) as address:
        wanted = (
            f"endpoints: {{static: ['{address}']}}, learn_models: true, signals: {{events: true}}"
        )
        text = f"pools: [{{name: a, {wanted}, engine_key: {{file: key}}}}]"
        async with running_pools(text, tmp_path):
            for key in ("sk-1", "sk-2"):
                file.write_text(key)
                await until(lambda key=key: len(heard.get(f"Bearer {key}", ())) == 4)  # type: ignore[misc]
            for bad in ("a\rb", "a" * 70_000):
                caplog.clear()
                file.write_text(bad)
                await until(lambda: "the old key stays" in caplog.text)

    assert {*heard} == {"Bearer sk-1", "Bearer sk-2"}


READY = ("llm_d_epp_ready_endpoints", "inference_pool_ready_pods")
FULL = "pools: [{{name: a, models: [m], {}, hold: {{}}, endpoints: {{static: [{}]}}}}]"
TWO = "'10.0.0.1:80', '10.0.0.2:80'"
# Of two endpoints: their names, waiting requests and cache usage, as the engines say.
BUSY = {
    "10.0.0.1:80": EndpointSignals(waiting=5),
    "10.0.0.2:80": EndpointSignals(kv_usage=0.4, waiting=1),
}
FULLER = {name: EndpointSignals(waiting=20) for name in BUSY}


@table(
    ("limit", "endpoints", "in_flight", "by_name", "saturation"),
    [
        ("max_in_flight: 4", TWO, 0, {}, 0),
        ("max_in_flight: 4", TWO, 2, FULLER, 0.25),
        ("max_in_flight: 1", TWO, 2, {}, 1),
        ("max_in_flight: 1, objectives: {batch: -1}", TWO, 2, {}, 1),
        ("max_in_flight: 4", "", 0, {}, 1),
        ("fallbacks: 1", "", 0, {}, 1),
        ("fallbacks: 1", TWO, 2, {}, None),
        ("fallbacks: 1", TWO, 2, BUSY, 0.75),
        ("fallbacks: 1", TWO, 0, FULLER, 1),
    ],
)
async def test_saturation_is_of_the_limit_or_what_the_engines_report_and_llmds_names_show_the_same(
    limit: str,
    endpoints: str,
    in_flight: int,
    by_name: dict[str, EndpointSignals],
    saturation: float | None,
) -> None:
    async with running_pools(FULL.format(limit, endpoints)) as pools:
        await synced(pools)
        each = pools["a"]
        for name, signals in by_name.items():
            each.feedback.apply_signals(each.pool.snapshot.ready[name], signals)
        for _ in range(in_flight):
            pools.picker.pick(Query("GET", "/", {}))
        assert each.pool.queue is not None
        each.pool.queue.enter(Waiter(Lane(-10)))
        families = [*PoolCollector(pools).collect(), *collect_llmd(pools)]
    shown = {
        (one.name, *sorted(one.labels.values())): one.value
        for each in families
        for one in each.samples
    }

    usage, waiting = (0.2, 3) if by_name is BUSY else (0, 20) if by_name else (None, None)
    expected: dict[tuple[str, ...], float | None] = {
        ("extproc_pool_saturation", "a"): saturation,
        ("llm_d_epp_flow_control_pool_saturation", "a"): saturation,
        **{(name, "a"): 2 if endpoints else 0 for name in READY},
        ("llm_d_epp_request_running", "m"): in_flight,
        ("llm_d_epp_flow_control_queue_size", "", "-10", "a", "m"): 1,
        ("llm_d_epp_flow_control_queue_size", "", "0", "a", "m"): 0,
        ("llm_d_epp_average_queue_size", "a"): waiting,
        ("inference_pool_average_queue_size", "a"): waiting,
        ("llm_d_epp_average_kv_cache_utilization", "a"): usage,
    }
    assert {name: shown.get(name) for name in expected} == expected


A = "{name: a, models: [a], endpoints: {static: ['10.0.0.1:80']}, probe: false}"
B = "{name: b, models: [b], endpoints: {file: missing.yaml}}"
NO_B = "pool b: no list of endpoints yet: file_unreadable: "


async def test_a_service_says_when_it_is_ready_by_endpoints_that_nobody_has_seen_alive() -> None:
    """A sole endpoint on a closed port gets requests, since nobody else could; that is worth a line."""
    async with running_pools(f"pools: [{A.replace(', probe: false', '')}]") as pools:
        await synced(pools)
        pool = pools["a"]

        assert pools.faults() == []
        assert pools.remarks() == ["pool a: no endpoint has answered a probe yet; all get requests"]
        pool.feedback.cooling.set_health("10.0.0.1:80", is_healthy=True)
        assert pools.remarks() == []


async def test_an_old_list_makes_a_service_of_one_pool_unready_not_one_of_several(
    tmp_path: Path,
) -> None:
    stale = A.replace("name: a", "name: a, stale_after_s: 30")
    clock = Clock()
    async with running_pools(f"pools: [{stale}]", tmp_path, clock) as pools:
        seen = [pools.faults()]
        await pools["a"].keeper.synced.wait()
        seen.append(pools.faults())
        clock.now_s += 31
        seen.append(pools.faults())
        pools["a"].keeper.restarted("connection", "refused")
        seen.append(pools.faults())
    old = "pool a: the list of endpoints is 31 s old"
    assert seen == [
        ["pool a: no list of endpoints yet"],
        [],
        [old],
        [f"{old}: connection: refused"],
    ]

    other = A.replace("name: a, models: [a]", "name: b, models: [b]")
    async with running_pools(f"pools: [{stale}, {other}]", tmp_path, clock) as pools:
        await synced(pools)
        clock.now_s += 31

        assert (pools.faults(), pools.remarks()) == ([], [old])


async def test_a_source_that_says_nothing_at_all_makes_the_service_not_ready(
    tmp_path: Path,
) -> None:
    """One that fails and says so keeps its last list in force; one that is stuck is a fault of our own."""
    clock = Clock()
    async with running_pools(f"pools: [{A}]", tmp_path, clock) as pools:
        keeper = pools["a"].keeper
        await keeper.synced.wait()
        clock.now_s += 299
        keeper.restarted("connection", "refused")
        clock.now_s += 299
        seen = [pools.faults(), pools.remarks()]
        keeper.lacks("connection", "refused")
        clock.now_s += 299
        seen.append(pools.faults())
        clock.now_s += 2
        seen.append(pools.faults())

    remark = "pool a: the list of endpoints is 598 s old: connection: refused"
    assert seen[:3] == [[], [remark], []]
    assert seen[3] == ["pool a: its source has said nothing for 301 s: connection: refused"]


async def test_the_pools_of_the_start_are_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    """One of two has no list, and a reason.

    1. A moment's failure is waited out. 2. A lasting one is that pool's alone: it refuses its
       requests.
    """
    clock = Clock()
    async with running_pools(f"pools: [{A}, {B}]", tmp_path, clock) as pools:
        await pools["a"].keeper.synced.wait()
        await until(lambda: pools["b"].keeper.fault is not None)
        [fault] = pools.faults()
        clock.now_s += 10

        assert fault.startswith(NO_B)
        assert (pools.faults(), pools.remarks()) == ([], [fault])
        assert str(pools["b"].keeper.fault).startswith("file_unreadable: ")


async def test_a_service_whose_only_pool_has_no_list_is_not_ready_nor_without_a_pool(
    tmp_path: Path,
) -> None:
    assert build_pools(tmp_path).faults() == ["no pool yet"]
    clock = Clock()
    async with running_pools(f"pools: [{B}]", tmp_path, clock) as pools:
        await until(lambda: pools["b"].keeper.fault is not None)
        clock.now_s += 3_600

        assert pools.faults() == pools.remarks() != []


async def test_a_pool_that_is_added_without_a_list_leaves_the_service_ready(tmp_path: Path) -> None:
    """From the first moment, and its requests alone are refused."""
    async with running_pools(f"pools: [{A}]", tmp_path, Clock()) as pools:
        await pools["a"].keeper.synced.wait()
        configure(pools, f"pools: [{A}, {B}]")
        seen = [pools.faults()]
        await until(lambda: pools["b"].keeper.fault is not None)

        assert [*seen, pools.faults()] == [[], []]
        assert pools.picker.pick(chat_request("a")).pick.pool.name == "a"
        with pytest.raises(NoEndpoint, match="pool 'b' has no ready endpoint"):
            pools.picker.pick(chat_request("b"))


def chat_request(model: str) -> Query:
    return Query("POST", "/v1/chat/completions", {}, chat_about("hello", model=model))


def has_another(pool: Pool, before: Strategy) -> bool:
    return pool.strategy is not before


async def test_only_other_positions_make_another_ring(tmp_path: Path) -> None:
    def with_(settings: str) -> str:
        strategy = f"strategy: {{name: prefix_hash, {settings}}}"
        return f"pools: [{A.replace('name: a', f'name: a, {strategy}')}]"

    async with running_pools(with_(""), tmp_path, Clock()) as pools:
        pool = pools["a"].pool
        await pools["a"].keeper.synced.wait()
        rings = [pool.snapshot.placement]
        for settings in ("load_factor: 2", "key: [conversation]", "positions: 8"):
            changed = partial(has_another, pool, pool.strategy)
            configure(pools, with_(settings))
            await until(changed)
            rings.append(pool.snapshot.placement)

    assert [ring is rings[0] for ring in rings] == [True, True, True, False]


async def test_a_strategy_that_takes_over_gets_its_headers(tmp_path: Path) -> None:
    text = "pools: [{{name: a, strategy: {}, endpoints: {{static: ['10.0.0.1:80']}}}}]"
    async with running_pools(text.format("{name: least_load}"), tmp_path, Clock()) as pools:
        configure(pools, text.format("{name: prefix_hash, key: 'header:x-session'}"))
        await until(lambda: pools["a"].pool.strategy.name == "prefix_hash")

        assert pools.picker.key_headers == {"x-session"}

"""The whole in a cluster: EndpointSlices, the service, xDS, a real Envoy, pods that come and go."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from itertools import count
from time import monotonic

import pytest
import pytest_asyncio

from tests.slow.stack.live import LiveCluster, run_cluster, sweep, until_hosts
from tests.stack.client import Answer, chat_about, connect, send, send_all, servers, statuses
from tests.stack.figures import show_figures
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

STREAMS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LiveCluster]:
    async with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def live_cluster(running_cluster: LiveCluster) -> AsyncGenerator[LiveCluster]:
    """The cluster, as every test finds it."""
    yield running_cluster
    await running_cluster.restore()


async def test_pods_come_drain_and_go_under_open_streams(live_cluster: LiveCluster) -> None:
    """Nobody who streams notices that one becomes ready, one terminates and gets none, and then is gone."""
    async with connect(live_cluster.gateway.url) as session:
        streams = send_all(session, "held", STREAMS)
        await until(lambda: live_cluster.pods.held == STREAMS)

        live_cluster.apply(0, 1, 2, 3)
        for number in count():
            if live_cluster.address(3) in servers(await sweep(session, 4, f"sweep {number}")):
                break

        live_cluster.apply(0, 1, 2, 3, draining=frozenset({1}))
        await live_cluster.until(0, 1, 2, 3, draining=frozenset({1}))
        while_draining = servers(await sweep(session, 60))

        live_cluster.apply(0, 2, 3)
        await live_cluster.until(0, 2, 3)
        after = servers(await sweep(session, 60))

        live_cluster.pods.release()
        answers = await asyncio.gather(*streams)

    assert live_cluster.address(1) not in while_draining | after
    assert Counter((answer.status, answer.body) for answer in answers) == {
        (200, b"first last"): STREAMS
    }
    assert servers(answers)[live_cluster.address(1)] > STREAMS / 10


async def test_an_outage_of_the_api_server_does_not_touch_traffic(
    live_cluster: LiveCluster,
) -> None:
    """The last list stays in force; what changed meanwhile is learnt when the server is back."""
    async with connect(live_cluster.gateway.url) as session:
        before = [answer.served_by for answer in await sweep(session, 30)]
        async with live_cluster.outage():
            for _ in range(60):
                assert [answer.served_by for answer in await sweep(session, 30)] == before
                await asyncio.sleep(0.2)
            live_cluster.apply(0, 1, 2, 3)

        back_s = monotonic()
        await until_hosts(live_cluster.gateway, "llama", live_cluster.hosts(0, 1, 2, 3))
    show_figures("the Kubernetes API is away", 60 * 30, 60 * 30, monotonic() - back_s)


async def test_a_pool_added_to_the_configuration_is_served_without_touching_envoy(
    live_cluster: LiveCluster,
) -> None:
    """Envoy has a cluster for it; while the service is down, nobody gets another pool's prompts."""
    async with connect(live_cluster.gateway.url) as session:
        live_cluster.apply(3, service="qwen-pods")
        live_cluster.configure(llama="vllm", qwen="qwen-pods")
        await until_hosts(live_cluster.gateway, "qwen", live_cluster.hosts(3))

        async def chat(**fields: str) -> list[Answer]:
            return [
                await send(session, chat_about(f"chat {number}", **fields)) for number in range(8)
            ]

        theirs = await chat(model="qwen")
        others = await sweep(session, 20)
        before = live_cluster.pods.arrived
        await asyncio.to_thread(live_cluster.service.kill)
        refused = [*await chat(model="qwen"), *await chat()]
        reached = live_cluster.pods.arrived - before

        await asyncio.to_thread(live_cluster.service.start)
        await asyncio.to_thread(live_cluster.service.wait_ready)
        await live_cluster.until_asked()
        back = await chat(model="qwen")

    assert servers(theirs) == servers(back) == {live_cluster.address(3): 8}
    assert live_cluster.address(3) not in servers(others)
    assert {(answer.status, answer.error["code"]) for answer in refused} == {
        (503, "upstream_unavailable")
    }
    assert reached == 0


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
async def test_when_down_is_the_operators_to_say(live_cluster: LiveCluster, *, hangs: bool) -> None:
    """1. A pool alone is closed: 503. 2. One of two is open: it takes all. 3. A pool alone: it takes all."""
    async with connect(live_cluster.gateway.url) as session:
        live_cluster.apply(3, service="qwen-pods")
        for down, services, default, status in (
            ({"llama": "closed"}, {"llama": "vllm"}, live_cluster.hosts(), 503),
            ({"qwen": "open"}, {"llama": "vllm", "qwen": "qwen-pods"}, live_cluster.hosts(3), 200),
            ({}, {"llama": "vllm"}, live_cluster.hosts(0, 1, 2), 200),
        ):
            live_cluster.configure(when_down=down, hold=None, **services)
            await until_hosts(live_cluster.gateway, "_default", default)
            await asyncio.to_thread(stop_answering, live_cluster, hangs=hangs)
            answers = await sweep(session, 16)
            await asyncio.to_thread(answer_again, live_cluster, hangs=hangs)
            await live_cluster.until_asked()
            assert {answer.status for answer in answers} == {status}
            assert {answer.served_by for answer in answers} <= {*default, ""}


def stop_answering(cluster: LiveCluster, *, hangs: bool) -> None:
    if hangs:
        cluster.service.send(signal.SIGSTOP)
        cluster.gateway.wait_until(lambda: not cluster.gateway.sees_service())
    else:
        cluster.service.kill()


def answer_again(cluster: LiveCluster, *, hangs: bool) -> None:
    if hangs:
        cluster.service.send(signal.SIGCONT)
    else:
        cluster.service.start()
        cluster.service.wait_ready()


async def test_a_pool_that_may_not_be_listed_answers_503_alone(live_cluster: LiveCluster) -> None:
    """Nor may one that was added while the API server was away: the first pool is served all the while."""
    before = live_cluster.gateway.ext_proc()["failure_mode_allowed"]
    async with connect(live_cluster.gateway.url) as session:
        live_cluster.apply(3, service="late-pods")
        live_cluster.configure(llama="vllm", missing="nobody")
        await until_pool(live_cluster, "missing", "no_service")
        async with live_cluster.outage():
            live_cluster.configure(llama="vllm", missing="nobody", late="late-pods")
            await until_pool(live_cluster, "late", "connection")
            assert await asyncio.to_thread(live_cluster.service.is_ready)

            theirs = await sweep(session, 20)
            bodies = [chat_about("hello", model=model) for model in ("missing", "late")]
            refused = [await send(session, body) for body in bodies for _ in "12"]
            passed_by = live_cluster.gateway.ext_proc()["failure_mode_allowed"] - before
        await until_hosts(live_cluster.gateway, "late", live_cluster.hosts(3))
        late = [
            await send(session, chat_about(f"chat {number}", model="late")) for number in range(4)
        ]

    show_figures("another pool cannot be listed", statuses(theirs)[200], len(theirs))
    assert servers(theirs).keys() <= {live_cluster.address(number) for number in range(3)}
    assert {(answer.status, answer.error["code"]) for answer in refused} == {(503, "no_endpoint")}
    assert servers(late) == {live_cluster.address(3): 4}
    assert passed_by == 0


async def until_pool(cluster: LiveCluster, pool: str, why: str) -> None:
    def is_told() -> bool:
        return cluster.service.metric("extproc_pool_fault", pool=pool, why=why) == 1

    await until(is_told)


async def test_a_restarted_service_finds_its_clusters_and_affinity_is_back(
    live_cluster: LiveCluster,
) -> None:
    """Killed, it is missed by nobody; back, each prompt goes to the pod it had; Envoy changed no cluster."""
    async with connect(live_cluster.gateway.url) as session:
        before = [answer.served_by for answer in await sweep(session, 30)]
        counted = changes(live_cluster)
        held = asyncio.create_task(send(session, chat_about("held")))
        await until(lambda: live_cluster.pods.held == 1)

        await asyncio.to_thread(live_cluster.service.kill)
        assert len(servers(await sweep(session, 30))) == 3

        await asyncio.to_thread(live_cluster.service.start)
        await asyncio.to_thread(live_cluster.service.wait_ready)
        await live_cluster.until_asked()
        after = [answer.served_by for answer in await sweep(session, 30)]
        counted_after = changes(live_cluster)
        live_cluster.pods.release()

        assert (await held).body == b"first last"
    assert after == before
    assert counted_after == counted


def changes(cluster: LiveCluster) -> dict[str, int]:
    """How often Envoy's list of the pool changed, and how many clusters went."""
    names = ("cluster.llama.membership_change", "cluster_manager.cluster_removed")
    return {name: cluster.gateway.counters(name)[name] for name in names}


def applied_count(cluster: LiveCluster) -> float:
    return cluster.service.metric("extproc_config_reloads_total", result="applied")


async def test_over_xds_the_first_endpoint_answers_what_waited_for_it(
    live_cluster: LiveCluster,
) -> None:
    """Envoy has no endpoint either, until it gets one."""
    live_cluster.apply()
    await live_cluster.until()
    applied = applied_count(live_cluster)
    live_cluster.configure(hold={"wait_s": 300}, llama="vllm")
    await until(lambda: applied_count(live_cluster) > applied)
    async with connect(live_cluster.gateway.url) as session:
        requests = send_all(session, "request", 5)
        await until(
            lambda: (
                live_cluster.service.metric("extproc_held_requests", pool="llama") == len(requests)
            )
        )
        live_cluster.apply(1)
        answers = await asyncio.gather(*requests)

    assert {(answer.status, answer.served_by) for answer in answers} == {
        (200, live_cluster.address(1))
    }

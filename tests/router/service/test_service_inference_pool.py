"""A pool of an InferencePool in the running service: ready, gone, back; what operators see of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.router.cluster.api_server import PODS, POOLS, ApiServer, serving, write_access
from tests.router.cluster.pool_objects import pool_object, running_pod
from tests.stack.fetch import answers, get
from tests.stack.ports import free_ports
from tests.stack.service import Service


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put(pool_object(ports=[8000, 8001]))
        server.put(running_pod("a", "10.0.0.1"))
        yield server


@pytest.fixture
async def service(api: ApiServer, tmp_path: Path) -> AsyncIterator[Service]:
    port, admin_port = free_ports(2)
    service = Service(tmp_path, port=port, admin_port=admin_port)
    pool = {"namespace": "default", "name": "vllm", "kubeconfig": str(write_access(tmp_path, api.url))}
    other = {"name": "other", "models": ["other"], "endpoints": {"static": ["10.0.9.9:8000"]}}
    service.configure([{"name": "vllm", "models": ["llama"], "endpoints": {"inference_pool": pool}}, other])
    with service:
        await until(service, service.is_ready)
        yield service


async def until(service: Service, claim: Callable[[], object]) -> None:
    await asyncio.to_thread(service.wait_until, lambda: bool(claim()))


async def ask(service: Service, model: str) -> int:
    """The status of a request for `model`, as it would be now; 200 is a pick."""
    body = {"model": model, "prompt": "hi"}
    url = f"{service.admin_url}/explain?path=/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        await answer.read()
        return answer.status


def said(service: Service, text: str) -> int:
    return service.log.read_text().count(text)


def has_fault(service: Service, why: str) -> bool:
    return service.metric("extproc_pool_fault", pool="vllm", why=why) == 1


async def test_a_deleted_pool_refuses_alone_says_so_once_and_comes_back(
    service: Service, api: ApiServer
) -> None:
    """1. Both pools answer. 2. One is deleted: it answers 503, the other goes on, the service is ready.

    3. Bookmarks come: nothing is said twice. 4. It is made again, with other ports.
    """
    before = [await ask(service, "llama"), await ask(service, "other")]
    api.delete("vllm", POOLS)
    await until(service, lambda: has_fault(service, "no_pool"))
    while_gone = [await ask(service, "llama"), await ask(service, "other")]
    ready = await asyncio.to_thread(get, f"{service.admin_url}/readyz")
    for _ in range(3):
        api.bookmark(POOLS)
        await asyncio.sleep(0.1)
    lines = said(service, "there is no InferencePool default/vllm")
    api.put(pool_object(ports=[9000]))
    await until(service, lambda: service.pools()[0]["endpoints"])
    after = [await ask(service, "llama"), await ask(service, "other")]

    assert (before, while_gone, after) == ([200, 200], [503, 200], [200, 200])
    assert "pool vllm: the list of endpoints is" in ready
    assert "no_pool: there is no InferencePool default/vllm" in ready
    assert lines == 1
    assert [endpoint["name"] for endpoint in service.pools()[0]["endpoints"]] == ["default/a"]
    await until(service, lambda: not has_fault(service, "no_pool"))


async def test_operators_see_its_ranks_its_watches_and_what_fails(service: Service, api: ApiServer) -> None:
    shown = service.pools()[0]["endpoints"]
    api.end_watches(PODS)
    restarts = "extproc_watch_restarts_total"
    await until(service, lambda: service.metric(restarts, pool="vllm", why="closed") == 1)
    api.of(PODS).refusal = 403
    api.end_watches(PODS)
    await until(service, lambda: has_fault(service, "forbidden"))
    still = [await ask(service, "llama"), service.metric(restarts, pool="vllm", why="not_found")]

    assert {(endpoint["name"], endpoint["address"]) for endpoint in shown} == {
        ("default/a:8000", "10.0.0.1:8000"),
        ("default/a:8001", "10.0.0.1:8001"),
    }
    assert still == [200, 0]
    assert service.is_ready()


async def test_a_cluster_without_the_crds_is_said_once_and_tried_on(service: Service, api: ApiServer) -> None:
    api.of(POOLS).refusal = 404
    service.stop()
    service.start()
    await until(service, lambda: answers(f"{service.admin_url}/healthz"))
    await until(service, lambda: has_fault(service, "no_crd"))
    asked = len(api.of(POOLS).queries)
    await until(service, lambda: len(api.of(POOLS).queries) > asked + 2)
    lines = said(service, "the API server knows no InferencePools: are their CRDs installed?")
    api.of(POOLS).refusal = None
    await until(service, lambda: service.pools()[0]["endpoints"])

    assert lines == 1

"""A cluster per pool without xDS, as docs/envoy.md describes it."""

from collections.abc import Iterator
from copy import deepcopy

import pytest

from tests.stack.client import CHAT, ask, connect, send
from tests.stack.gateway import Tree, cluster, find
from tests.stack.service import Pool, pool
from tests.stack.stack import Stack, run_stack

pytestmark = pytest.mark.envoy


def split_cluster(tree: Tree) -> None:
    """Gives each pool a cluster of its name with its endpoints; the service's header chooses among them."""
    llama = cluster(tree, "vllm")
    qwen = deepcopy(llama)
    for one, name, keep in ((llama, "llama", slice(0, 2)), (qwen, "qwen", slice(2, 4))):
        one["name"] = one["load_assignment"]["cluster_name"] = name
        endpoints = one["load_assignment"]["endpoints"][0]
        endpoints["lb_endpoints"] = endpoints["lb_endpoints"][keep]
    tree["static_resources"]["clusters"].append(qwen)
    for host in next(find(tree, "virtual_hosts")):
        (route,) = [route for route in host["routes"] if route["match"] == {"prefix": "/"}]
        named = deepcopy(route)
        named["match"]["headers"] = [{"name": "x-extproc-pool", "present_match": True}]
        del named["route"]["cluster"]
        named["route"]["cluster_header"] = "x-extproc-pool"
        closed = {"match": {"prefix": "/"}, "direct_response": {"status": 503}}
        host["routes"] = [named, closed]


def two_pools(addresses: list[str]) -> list[Pool]:
    return [
        pool(addresses[:2], name="llama", models=["llama-3"]),
        pool(addresses[2:], name="qwen", models=["qwen-2"]),
    ]


@pytest.fixture
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("split")
    simulate = ("--speed", "2", "--model", "llama-3", "--model", "qwen-2")
    with run_stack(
        directory, edits=[split_cluster], pools=two_pools, simulate=simulate, clear_route_cache=True
    ) as stack:
        yield stack


async def test_header_of_the_service_chooses_the_cluster(split: Stack) -> None:
    async with connect(split.url) as session:
        llamas = [await send(session, ask(f"{number}", model="llama-3")) for number in range(8)]
        qwens = [await send(session, ask(f"{number}", model="qwen-2")) for number in range(8)]

    assert {answer.served_by for answer in llamas} <= set(split.addresses[:2])
    assert {answer.served_by for answer in qwens} <= set(split.addresses[2:])


async def test_clients_own_pool_header_chooses_nothing(split: Stack) -> None:
    """With the service up its own wins; with the service down no pool gets another's prompts."""
    claim = {"x-extproc-pool": "qwen"}
    async with connect(split.url) as session:
        routed = [await send(session, ask(f"{n}", model="llama-3"), headers=claim) for n in range(8)]
        split.service.kill()
        without = [await send(session, ask(f"{n}", model="llama-3"), headers=claim) for n in range(8)]

    assert {answer.status for answer in routed} == {200}
    assert {answer.served_by for answer in routed} <= set(split.addresses[:2])
    assert {(answer.status, answer.served_by) for answer in without} == {(503, "")}


async def test_without_the_service_requests_are_refused_and_answers_that_stream_are_whole(
    split: Stack,
) -> None:
    """The closed route, and not `failure_mode_allow: false`, which would cut them."""
    async with connect(split.url) as session:
        body = ask("a long one", model="llama-3", max_tokens=200, stream=True, ignore_eos=True)
        async with session.post(CHAT, data=body, headers={"content-type": "application/json"}) as answer:
            begun = await answer.content.readany()
            split.service.kill()
            refused = [
                await send(session, ask("x" * size, model=model))
                for model in ("llama-3", "qwen-2")
                for size in (10, 2_000_000)
            ]
            refused.append(await send(session, b"", path="/v1/models", method="GET"))
            rest = await answer.content.read()

    assert b"[DONE]" not in begun
    assert (begun + rest).count(b"data: ") >= 200
    assert rest.endswith(b"data: [DONE]\n\n")
    assert {answer.status for answer in refused} == {503}
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert {answer.error["code"] for answer in refused} == {"upstream_unavailable"}

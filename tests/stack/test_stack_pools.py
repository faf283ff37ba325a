"""Several pools behind one Envoy: chosen by the model, or by the operator's route."""

from collections.abc import Iterator

import orjson
import pytest

from tests.stack.client import ask, connect, send
from tests.stack.gateway import Tree, find
from tests.stack.service import pool
from tests.stack.stack import Stack, run_stack

pytestmark = pytest.mark.envoy

PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


def route_batch_to_second(tree: Tree) -> None:
    """Adds a route for `/batch/…` whose ext_proc streams name the pool `second`."""
    for host in next(find(tree, "virtual_hosts")):
        (usual,) = [route for route in host["routes"] if route["match"] == {"prefix": "/"}]
        metadata = [{"key": "x-extproc-pool", "value": "second"}]
        overrides = {"@type": PER_ROUTE, "overrides": {"grpc_initial_metadata": metadata}}
        batch = {
            **usual,
            "match": {"prefix": "/batch/"},
            "typed_per_filter_config": {"envoy.filters.http.ext_proc": overrides},
        }
        batch["route"] = {**usual["route"], "prefix_rewrite": "/"}
        host["routes"].insert(0, batch)
    for permissions in find(tree, "permissions"):
        permissions.append({"url_path": {"path": {"prefix": "/batch/v1/"}}})


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    def pools(addresses: list[str]) -> list[Tree]:
        first = pool(addresses[:2], models=["simulated"])
        return [{**first, "name": "first"}, {**pool(addresses[2:], models=["other"]), "name": "second"}]

    directory = tmp_path_factory.mktemp("pools")
    with run_stack(directory, edits=[route_batch_to_second], pools=pools) as stack:
        yield stack


async def test_the_operators_route_chooses_the_pool_whatever_the_model(stack: Stack) -> None:
    second = stack.addresses[2:]
    async with connect(stack.url) as session:
        usual = await send(session, ask("hello"))
        batch = [await send(session, ask(f"hello {n}"), path="/batch/v1/chat/completions") for n in range(6)]
        listed = await send(session, b"", path="/batch/v1/models", method="GET")

    assert (usual.status, usual.headers["x-extproc-pool"]) == (200, "first")
    assert {answer.headers["x-extproc-pool"] for answer in batch} == {"second"}
    assert {answer.served_by for answer in batch} <= set(second)
    assert listed.served_by in second


async def test_a_client_cannot_choose_the_pool(stack: Stack) -> None:
    async with connect(stack.url) as session:
        answer = await send(session, ask("hello"), headers={"x-extproc-pool": "second"})

    assert answer.headers["x-extproc-pool"] == "first"


async def test_the_models_of_all_pools_are_listed(stack: Stack) -> None:
    async with connect(stack.url) as session:
        answer = await send(session, b"", path="/v1/models", method="GET")

    assert answer.status == 200
    assert [model["id"] for model in orjson.loads(answer.body)["data"]] == ["other", "simulated"]

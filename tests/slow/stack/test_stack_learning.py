"""The time to the first token, from a real Envoy's access log to the strategy that placed the request."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.client import ask, connect, send
from tests.stack.gateway import Tree, find
from tests.stack.service import Pool, pool
from tests.stack.stack import Stack, eventually, run_stack

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

DOCS = Path(__file__).parents[3] / "docs/envoy.md"


def tell_first_tokens(tree: Tree) -> None:
    """Adds what docs/envoy.md says that `learn` needs."""
    [tag] = re.findall(r"custom_tags: \[\{tag: (\S+), value: \"(\S+)\"\}\]", DOCS.read_text())
    for logs in find(tree, "access_log"):
        for log in logs:
            if log["name"] == "envoy.access_loggers.http_grpc":
                log["typed_config"]["common_config"]["custom_tags"] = [{"tag": tag[0], "value": tag[1]}]
                log["typed_config"]["additional_response_headers_to_log"].append("content-type")


def pools(addresses: list[str]) -> list[Pool]:
    return [pool(addresses, {"name": "prefix_cache", "learn": True}, signals={"scrape_s": 0.5})]


@pytest.fixture(scope="module", params=["native", "grpcio"])
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("learning")
    simulate = ("--profile", "l4-llama8b-fp8", "--speed", "4")
    with run_stack(
        directory, edits=[tell_first_tokens], pools=pools, simulate=simulate, transport=request.param
    ) as running:
        yield running


def learnt(stack: Stack) -> Any:
    (known,) = stack.service.pools()
    return known["learnt"]


async def test_streams_alone_teach_and_each_once_whatever_its_client_writes(stack: Stack) -> None:
    """1. A stream tells its first token, whole answers do not. 2. Twelve streams under one id are twelve."""
    async with connect(stack.url) as session:
        await send(session, ask("first", stream=True))
        assert await asyncio.to_thread(eventually, lambda: learnt(stack)["source"] == "access_log")
        before = learnt(stack)["samples"]
        for number in range(6):
            assert (await send(session, ask(f"whole {number}"))).status == 200
        for number in range(12):
            forged = {"x-request-id": "mine", "x-extproc-pick": "0" * 16}
            answer = await send(
                session, ask(f"stream {number} " + "word " * 200, stream=True), headers=forged
            )
            assert answer.status == 200

    assert await asyncio.to_thread(eventually, lambda: learnt(stack)["samples"] >= before + 12)
    await asyncio.sleep(0.5)
    assert learnt(stack)["samples"] == before + 12


async def test_what_endpoints_say_is_told(stack: Stack) -> None:
    """The size of their caches, and what they found there, beside what was foreseen."""

    def sizes() -> set[int]:
        return {one["cache_tokens"] for one in learnt(stack)["endpoints"].values()}

    assert await asyncio.to_thread(eventually, lambda: sizes() == {84_000})

    text = "said twice " + "word " * 400
    async with connect(stack.url) as session:
        for _ in range(2):
            await send(session, ask(text))

    def found(family: str) -> float:
        return stack.service.metric(f"extproc_{family}_tokens_total", cached="yes")

    assert await asyncio.to_thread(eventually, lambda: found("measured") > 400)
    assert found("foreseen") == pytest.approx(found("measured"), rel=0.1)

"""What endpoints say of themselves, and what was predicted of them."""

import re
from typing import Any
from uuid import uuid4

import pytest

from tests.stack.client import chat_about, connect, send
from tests.stack.fetch import get
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.waiting import until


@pytest.fixture
def learning(stack: Stack, transport: str) -> Stack:
    learner = {"name": "prefix_cache"}
    stack.use(
        pool(stack.addresses, learner, name="learner", signals={"scrape_s": 0.5}),
        transport=transport,
    )
    return stack


pytestmark = [pytest.mark.envoy, pytest.mark.parametrize("transport", ["native", "grpcio"])]


def learnt(stack: Stack) -> Any:
    (known,) = stack.service.pools()
    return known["learnt"]


def cache_tokens(stack: Stack) -> int:
    """The size of an endpoint's cache, as it says it to Prometheus."""
    text = get(f"http://{stack.addresses[0]}/metrics")
    size, count = (
        re.findall(rf'{name}="(\d+)"', text)[0] for name in ("block_size", "num_gpu_blocks")
    )
    return int(size) * int(count)


async def test_what_endpoints_report_is_shown(learning: Stack) -> None:
    """The size of their caches, and what they found there, beside what was predicted."""

    def sizes() -> list[int]:
        return [one["cache_tokens"] for one in learnt(learning)["endpoints"].values()]

    await until(lambda: sizes() == [cache_tokens(learning)] * 4)

    def counted() -> dict[str, float]:
        return {
            name: learning.service.metric(
                f"extproc_{name}_tokens_total", pool="learner", cached="yes"
            )
            for name in ("predicted", "measured")
        }

    def more() -> list[float]:
        return [now - before[name] for name, now in counted().items()]

    def hits() -> float:
        pages = [get(f"http://{address}/metrics") for address in learning.addresses]
        counts = [re.findall(r"vllm:prefix_cache_hits_total{[^}]*} (\S+)", page) for page in pages]
        return sum(float(count) for page in counts for count in page)

    before, hits_before = counted(), hits()
    # The endpoints are other tests', too, and remember.
    text = f"{uuid4()} said twice " + "word " * 400
    async with connect(learning.url) as session:
        for _ in range(2):
            await send(session, chat_about(text))

    found = hits() - hits_before
    assert found > 400
    assert more()[0] == pytest.approx(found, rel=0.1)
    # What earlier tests found may be read only now: it comes on top.
    await until(lambda: more()[1] >= found, more)

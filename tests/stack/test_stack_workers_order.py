"""A burst through a real Envoy to a pool with little room: how many workers let in, and in which order."""

import asyncio
from itertools import combinations
from pathlib import Path

import pytest

from tests.stack.client import ask, connect, send
from tests.stack.service import pool
from tests.stack.stack import eventually, run_stack
from tests.stack.upstream import serve
from tests.stack.workers import Workers

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 3
BURST = 60
LONG_S = 60.0


class Endpoint:
    """Answers each request after a moment; counts how many are open, and notes who came."""

    def __init__(self, takes_s: float = 0.1) -> None:
        self.takes_s = takes_s
        self.open = self.most = 0
        self.came: list[bytes] = []

    async def answer(self, body: bytes) -> bytes:
        self.came.append(body)
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(self.takes_s)
        self.open -= 1
        return b"{}"


@pytest.mark.parametrize("count", [2, 4])
async def test_a_burst_meets_an_empty_pool(tmp_path: Path, count: int) -> None:
    """1. All workers get requests. 2. Sixty come in a third of a second, where there is room for three."""
    bodies = [ask(f"request {number}") for number in range(BURST)]
    with run_stack(
        tmp_path,
        simulate=None,
        pools=lambda addresses: [pool(addresses[:1], max_in_flight=LIMIT, hold={"wait_s": 200}, probe=False)],
        workers=count,
        threads=count,
    ) as stack:
        endpoint, workers = Endpoint(), Workers(stack.service)
        async with serve(stack.ports[:1], endpoint.answer), connect(stack.url) as session:

            async def ask_all(pause_s: float) -> list[int]:
                asked = []
                for body in bodies:
                    asked.append(asyncio.create_task(send(session, body)))
                    await asyncio.sleep(pause_s)
                return [answer.status for answer in await asyncio.gather(*asked)]

            def all_work() -> bool:
                return all(workers.picks(lane) > 0 for lane in range(count))

            async with asyncio.timeout(LONG_S):
                while not await asyncio.to_thread(all_work):
                    await ask_all(0)
            await asyncio.to_thread(
                eventually, lambda: stack.service.metric("extproc_endpoint_in_flight") == 0, LONG_S
            )
            endpoint.came.clear()
            endpoint.most = 0
            told = await ask_all(0.005)
            picks = [workers.picks(lane) for lane in range(count)]

    served = [endpoint.came.index(body) for body in bodies]
    overtaken = sum(earlier > later for earlier, later in combinations(served, 2))
    pairs = BURST * (BURST - 1) // 2
    print(f"at most {endpoint.most} open, {overtaken} of {pairs} pairs overtaken, picks {picks}")  # noqa: T201
    assert set(told) == {200}
    assert LIMIT <= endpoint.most <= LIMIT + count - 1
    assert overtaken < pairs / 5

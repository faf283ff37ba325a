"""What clients choose freely leaves nothing behind in the service, whatever they choose, through Envoy."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.stack.client import ask, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack

pytestmark = pytest.mark.envoy

REQUESTS, WARM_UP, AT_ONCE = 20_000, 4_000, 32
GROWTH_BYTES = 8_000_000
STRATEGY = {"name": "prefix_hash", "key": ["header:x-session", "first_user_message"]}


def memory_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1_024


def fresh(number: int) -> tuple[bytes, str, dict[str, str]]:
    """A body, a path and headers that no other request has: 6 kB of names and values."""
    text = random.Random(number).randbytes(1_000).hex()
    headers = {
        f"x-gateway-inference-{text[:1_000]}": "1",
        f"x-llm-d-{text[1_000:]}": "1",
        f"x-{text[:500]}": "1",
        "x-gateway-inference-objective": text[:500],
        "x-llm-d-inference-fairness-id": text[500:1_000],
        "x-session": text[1_000:1_500],
        "x-request-id": text[:36],
        "traceparent": f"00-{text[:32]}-{text[32:48]}-01",
        "tracestate": f"a={text[:200]}",
    }
    return ask(text, model=text[:300], user=text[300:600]), f"/v1/chat/completions?{text[:200]}", headers


@pytest.mark.timeout(300)
async def test_twenty_thousand_strangers_leave_nothing_behind(stack: Stack) -> None:
    """Names, values, paths, models, session keys and traces, fresh each time: 1,100 once took 119 MB."""
    stack.use(pool(stack.addresses, STRATEGY, probe=False))
    numbers = iter(range(WARM_UP + REQUESTS))

    async def go(count: int) -> None:
        async def one_after_another() -> None:
            for _ in range(count // AT_ONCE):
                body, path, headers = fresh(next(numbers))
                answer = await send(session, body, path=path, headers=headers)
                assert answer.status == 404, "no endpoint has such a model"

        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(one_after_another())

    async with connect(stack.url) as session:
        await go(WARM_UP)
        before = memory_bytes(stack.service.pid)
        await go(REQUESTS)
        grown = memory_bytes(stack.service.pid) - before

    print(f"{REQUESTS} requests: {grown / 1e6:+.1f} MB")  # noqa: T201
    assert grown < GROWTH_BYTES

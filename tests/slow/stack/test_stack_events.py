"""What engines say of their caches reaches the index: real processes, a real Envoy."""

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from extproc.router.service.explain import fetch_explanation
from tests.stack.client import CHAT, chat_about, connect, send
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.stack.simulators import Simulators
from tests.stack.stack import Stack
from tests.waiting import until

pytestmark = pytest.mark.envoy


async def test_a_cache_that_an_engine_empties_is_forgotten_as_its_events_say(
    stack: Stack, tmp_path: Path
) -> None:
    [at], [events] = stack.spare[:1], free_ports(1)
    port, old, texts = int(at.rpartition(":")[2]), chat_about("Why? " * 300), map(str, count())
    options = ("--speed", "10", "--kv-events", f"tcp://*:{events}")
    with Simulators(tmp_path, range(port, port + 1), *options, name="told") as engine:
        engine.wait_ready()
        signals = {"events": True, "scrape_s": 300}
        stack.use(pool([at], {"name": "prefix_cache"}, signals=signals), endpoints=[at])

        def explained(body: bytes) -> Any:
            return fetch_explanation(
                stack.service.admin_url, path=CHAT, headers={}, body=body, timeout_s=9
            )

        def known(body: bytes) -> int:
            return int(explained(body)["candidates"][0]["match_tokens"])

        async with connect(stack.url) as session:

            async def is_heard(emptied: int) -> bool:
                await send(session, new := chat_about(f"{next(texts)} " * 300))
                assert known(new) > 0
                reported = explained(old)["events"] or {}
                return (reported.get("state"), reported.get("emptied")) == ("confirmed", emptied)

            await until(lambda: is_heard(0), lambda: explained(old)["events"])
            for emptied in (1, 2):
                assert (await send(session, old)).status == 200
                assert known(old) > 0
                if emptied == 1:
                    (await session.post(f"http://{at}/reset_prefix_cache")).close()
                else:
                    # More than a new one says before it is reached: a simulator has no replay.
                    for _ in range(40):
                        await send(session, chat_about(f"{next(texts)} " * 300))
                    engine.stop()
                    engine.start()
                    engine.wait_ready()
                await until(partial(is_heard, emptied), lambda: explained(old)["events"])
                assert known(old) == 0
    assert stack.service.metric("extproc_kv_emptied_total") == 2

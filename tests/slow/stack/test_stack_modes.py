"""Every way a gateway may send bodies: each arrives at the endpoint as the client sent it."""

import pytest
import xxhash

from tests.slow.stack.variants import MB
from tests.stack.client import SIZES, Answer, ask, body_of, connect, send
from tests.stack.stack import Stack
from tests.stack.variants import MODES

pytestmark = pytest.mark.envoy


def hashes(answers: list[Answer]) -> list[str]:
    return [answer.headers["x-simulated-body-xxh3"] for answer in answers]


LISTENERS = (None, *MODES, "streamed_at_once", "a_part_of_1_mb")


@pytest.mark.parametrize("transport", ["native", "grpcio"])
async def test_bodies_of_any_size_arrive_in_any_mode_and_chats_stay(stack: Stack, transport: str) -> None:
    """STREAMED bodies come after the decision, unless Envoy is set to send them at once."""
    stack.use(transport=transport)
    bodies = [body_of(size_bytes) for size_bytes in SIZES]
    assert [len(body) for body in bodies] == [*SIZES]
    for mode in LISTENERS:
        other = stack if mode is None else stack.through(mode)
        other.gateway.wait_until(other.gateway.sees_service)
        before = other.gateway.ext_proc()
        blind = stack.service.metric("extproc_picks_total", reason="no_prefix")
        async with connect(other.url) as session:
            answers = [await send(session, body) for body in bodies]
            large = [await send(session, body_of(10 * MB)) for _ in range(4)]
            again = [await send(session, ask("stay")) for _ in range(8)]
        after = other.gateway.ext_proc()

        assert hashes(answers) == [xxhash.xxh3_64_hexdigest(body) for body in bodies], mode
        assert {answer.headers["x-extproc-pool"] for answer in answers} == {"vllm"}, mode
        assert hashes(large) == [xxhash.xxh3_64_hexdigest(body_of(10 * MB))] * 4, mode
        # BUFFERED_PARTIAL with a body ten times Envoy's buffer: routed by its head.
        if mode == "streamed":
            assert stack.service.metric("extproc_picks_total", reason="no_prefix") - blind >= 12
        else:
            assert [len({answer.served_by for answer in alike}) for alike in (large, again)] == [1, 1], mode
        for name in ("failure_mode_allowed", "streams_failed"):
            assert after[name] == before[name], mode

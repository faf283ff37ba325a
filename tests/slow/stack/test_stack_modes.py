"""Every way a gateway may send bodies: each arrives at the endpoint as the client sent it."""

from collections.abc import Iterator

import pytest
import xxhash

from tests.stack.client import ask, connect, send
from tests.stack.gateway import Edit, Tree, ext_proc_filter
from tests.stack.stack import Stack, run_stack

pytestmark = pytest.mark.envoy

KB, MB = 1_000, 1_000_000
SIZES = {"0 B": 0, "1 B": 1, "61 KB": 61 * KB, "62 KB + 1": 62 * KB + 1, "1 MB": MB, "10 MB": 10 * MB}
MODES = ["BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED"]


def in_mode(mode: str, **fields: object) -> Edit:
    def edit(tree: Tree) -> None:
        config = ext_proc_filter(tree)
        config["processing_mode"]["request_body_mode"] = mode
        if mode == "FULL_DUPLEX_STREAMED":
            config["processing_mode"]["request_trailer_mode"] = "SEND"
        config.update(fields)

    return edit


def hold_at_most(limit_bytes: int) -> Edit:
    def edit(tree: Tree) -> None:
        tree["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = limit_bytes

    return edit


def body_of(size_bytes: int) -> bytes:
    """Returns a chat of exactly this size, or as many bytes that are none."""
    empty = len(ask(""))
    return ask("m" * (size_bytes - empty)) if size_bytes > empty else b"1" * size_bytes


@pytest.fixture(scope="module", params=MODES)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with run_stack(tmp_path_factory.mktemp("mode"), edits=[in_mode(request.param)]) as stack:
        yield stack
        assert stack.gateway.ext_proc()["failure_mode_allowed"] == 0
        assert stack.gateway.ext_proc()["streams_failed"] == 0


@pytest.mark.parametrize("size_bytes", SIZES.values(), ids=SIZES)
async def test_body_arrives_unchanged(stack: Stack, size_bytes: int) -> None:
    body = body_of(size_bytes)
    assert len(body) == size_bytes
    async with connect(stack.url) as session:
        answer = await send(session, body)

    assert answer.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body)
    assert answer.headers["x-extproc-pool"] == "vllm"


async def test_conversation_stays_where_the_body_is_seen(
    stack: Stack, request: pytest.FixtureRequest
) -> None:
    """STREAMED bodies come after the decision, unless Envoy is told to send them at once."""
    async with connect(stack.url) as session:
        answers = [await send(session, ask("stay")) for _ in range(8)]

    sees_body = "STREAMED" != request.node.callspec.params["stack"]
    assert (len({answer.served_by for answer in answers}) == 1) is sees_body


async def test_streamed_body_that_is_sent_at_once_decides(tmp_path_factory: pytest.TempPathFactory) -> None:
    at_once = in_mode("STREAMED", send_body_without_waiting_for_header_response=True)
    with run_stack(tmp_path_factory.mktemp("at-once"), edits=[at_once]) as stack:
        async with connect(stack.url) as session:
            answers = [await send(session, ask("stay")) for _ in range(8)]
            large = await send(session, body_of(MB))

    assert len({answer.served_by for answer in answers}) == 1
    assert large.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body_of(MB))


async def test_part_of_a_large_body_decides(tmp_path_factory: pytest.TempPathFactory) -> None:
    """BUFFERED_PARTIAL with a body ten times Envoy's buffer: routed by its head, unchanged."""
    edits = [in_mode("BUFFERED_PARTIAL"), hold_at_most(MB)]
    with run_stack(tmp_path_factory.mktemp("partial"), edits=edits) as stack:
        async with connect(stack.url) as session:
            answers = [await send(session, body_of(10 * MB)) for _ in range(4)]

    assert {answer.headers["x-simulated-body-xxh3"] for answer in answers} == {
        xxhash.xxh3_64_hexdigest(body_of(10 * MB))
    }
    assert len({answer.served_by for answer in answers}) == 1

"""What passes through Envoy: bodies of any kind and in any mode, and few messages to the service."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType

import pytest
import xxhash

from tests.stack.client import CHAT, Answer, chat_about, chat_body, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.stack.upstream import serve
from tests.stack.variants import MODES
from tests.tables import table
from tests.waiting import until

pytestmark = pytest.mark.envoy

SECRET = "a-secret-of-a-client"
BAD_BODIES: Mapping[str, bytes] = MappingProxyType(
    {
        "nothing": b"",
        "not JSON": b"{" + SECRET.encode(),
        "not an object": json.dumps([SECRET]).encode(),
        "null": b"null",
        "deep": b'{"messages":' + b"[" * 100_000,
        "deep and closed": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "a lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800'
        + SECRET.encode()
        + b'"}]}',
        "NaN": b'{"messages":[{"role":"user","content":"'
        + SECRET.encode()
        + b'"}],"temperature":NaN}',
        "not UTF-8": b'{"messages":[{"role":"user","content":"\xff\xfe' + SECRET.encode() + b'"}]}',
        "fields of the wrong type": b'{"model":7,"messages":"' + SECRET.encode() + b'"}',
        "NUL": b'{"messages":[{"role":"user","content":"\\u0000' + SECRET.encode() + b'"}]}',
    }
)
GOOD_BODIES = (
    chat_about("as a library writes it"),
    # Spaces, escapes and a number that a parser would rewrite.
    b' {"messages" :[{"role":"user","content":"a\\u0041\xc3\xa9"}],\n "n":1.0}\n',
    b'{"messages":[{"role":"user","content":"x"}],"max_tokens":7,"max_tokens":1,"unknown":{"a":[1e400]}}',
)
COUNTED = ("streams_started", "stream_msgs_sent", "stream_msgs_received", "streams_closed")


def arrived_whole(answers: Sequence[Answer], bodies: Sequence[bytes]) -> bool:
    """Whether the endpoints got the bodies byte for byte, and the service chose them."""
    headers = [each.headers for each in answers]
    got = [(each.get("x-simulated-body-xxh3"), each.get("x-extproc-pool")) for each in headers]
    return got == [(xxhash.xxh3_64_hexdigest(body), "vllm") for body in bodies]


async def test_one_pool_passes_every_body_on_unchanged(stack: Stack) -> None:
    """With one catch-all pool it is the endpoint that judges the body."""
    bodies = [*BAD_BODIES.values(), *GOOD_BODIES, chat_about("m" * 1_000_000)]
    async with connect(stack.url) as session:
        answers = [await send(session, body) for body in bodies]

    assert arrived_whole(answers, bodies)
    assert SECRET not in stack.service.log.read_text() + stack.gateway.log.read_text()


@table("mode", MODES)
async def test_bodies_arrive_unchanged_in_every_mode(stack: Stack, mode: str) -> None:
    """And a conversation stays, but where the body comes after the decision."""
    other = stack.through(mode)
    bodies = [b"1", *(chat_about("m" * size) for size in (61_000, 62_000, 1_000_000))]
    async with connect(other.url) as session:
        answers = [await send(session, body) for body in bodies]
        again = [await send(session, chat_about("stay")) for _ in range(8)]

    assert arrived_whole(answers, bodies)
    assert (len({answer.served_by for answer in again}) == 1) is (mode != "streamed")
    assert (
        other.gateway.ext_proc()["failure_mode_allowed"]
        == other.gateway.ext_proc()["streams_failed"]
        == 0
    )


async def test_body_sent_in_pieces_arrives_byte_for_byte(stack: Stack) -> None:
    """An upload without a content-length."""
    body = chat_about("chunked " * 2_000)

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(body), 1_000):
            yield body[start : start + 1_000]

    async with (
        connect(stack.url) as session,
        session.post(CHAT, data=pieces(), headers={"content-type": "application/json"}) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body)


async def test_unknown_method_is_passed_on(stack: Stack) -> None:
    async with connect(stack.url) as session:
        answers = [
            await send(session, b"", method="GET", path=f"{CHAT}?a=%ff"),
            await send(session, b"x" * 1_000, method="PUT"),
            await send(session, b"", method="DELETE"),
        ]

    assert {(answer.status, answer.served_by in stack.addresses) for answer in answers} == {
        (405, True)
    }


async def test_answer_streams_chunk_by_chunk(stack: Stack) -> None:
    """The first chunk is with the client before the endpoint has written the last."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    async with (
        serve(stack.spare) as endpoints,
        connect(stack.url) as session,
        session.post(
            CHAT, data=chat_about("held"), headers={"content-type": "application/json"}
        ) as answer,
    ):
        first = await answer.content.readany()
        endpoints.release()
        rest = await answer.content.read()

    assert (answer.status, first, rest) == (200, b"first ", b"last")


@table(
    ("strategy", "messages"),
    [("prefix_hash", 2), ("round_robin", 1)],
    ids=["body read", "body skipped"],
)
async def test_request_costs_two_messages_at_most(
    stack: Stack, strategy: str, messages: int
) -> None:
    """Headers and body; with round_robin the service's reply says not to send the body."""
    stack.use(pool(stack.addresses, {"name": strategy}))
    bodies = [
        chat_about(f"cost {n}", max_tokens=n, stream=s) for n in (1, 60) for s in (False, True)
    ]
    before = stack.gateway.ext_proc()

    def used() -> list[int]:
        now = stack.gateway.ext_proc()
        return [now[name] - before[name] for name in COUNTED]

    async with connect(stack.url) as session:
        answers = [await send(session, body) for body in bodies]
        listed = await send(session, b"", method="GET", path="/v1/models")
    await until(lambda: used()[-1] == 5, used)

    sent = 4 * messages + 1
    assert used() == [5, sent, sent, 5]
    assert arrived_whole(answers, bodies)
    assert listed.status == 200


class TestSeveralPools:
    """Here the body's model is needed, so a body that cannot be read is refused."""

    @pytest.fixture
    def two_pools(self, stack: Stack) -> Stack:
        stack.use(
            pool(stack.addresses[:2], name="llama", models=["llama-3"], adapters=["sql-lora"]),
            pool(stack.addresses[2:], name="qwen", models=["qwen-*"]),
        )
        return stack

    async def test_model_chooses_the_pool_and_no_client_does(self, two_pools: Stack) -> None:
        models = {"llama-3": "llama", "sql-lora": "llama", "qwen-2": "qwen", "qwen-": "qwen"}
        async with connect(two_pools.url) as session:
            answers = [
                await send(
                    session, chat_about("hello", model=model), headers={"x-extproc-pool": "qwen"}
                )
                for model in models
            ]
            unknown = await send(session, chat_about("hello", model="gpt-9"))
            listed = await send(session, b"", method="GET", path="/v1/models")

        assert [answer.headers["x-extproc-pool"] for answer in answers] == [*models.values()]
        assert {answer.served_by for answer in answers[:2]} <= {*two_pools.addresses[:2]}
        assert {answer.served_by for answer in answers[2:]} <= {*two_pools.addresses[2:]}
        assert (unknown.status, unknown.error["code"], unknown.served_by) == (
            404,
            "model_not_found",
            "",
        )
        assert "gpt-9" in unknown.error["message"]
        assert {model["id"] for model in json.loads(listed.body)["data"]} == {"llama-3", "sql-lora"}

    async def test_unreadable_model_is_refused_and_nothing_of_it_is_logged(
        self, two_pools: Stack
    ) -> None:
        """By the service, or as gRPC status text by Envoy."""
        failed = two_pools.gateway.ext_proc()["streams_failed"]
        async with connect(two_pools.url) as session:
            answers = await asyncio.gather(*(send(session, body) for body in BAD_BODIES.values()))
            await send(session, chat_body([{"role": "user", "content": SECRET}], model=SECRET))

        assert {(answer.status, answer.served_by) for answer in answers} == {(400, "")}
        for answer in answers:
            assert {"message", "type", "param", "code"} <= {*answer.error}
            assert SECRET not in answer.body.decode()
        assert SECRET not in two_pools.service.log.read_text() + two_pools.gateway.log.read_text()
        assert two_pools.gateway.ext_proc()["streams_failed"] == failed

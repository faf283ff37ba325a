"""What no client should send: routed without affinity or refused in OpenAI's words; nothing leaks."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from tests.stack.client import CHAT, Answer, ask, chat_body, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack, run_stack

pytestmark = pytest.mark.envoy

LIMIT_BYTES = 50_331_648
SECRET = "a-secret-of-a-client"

BAD_BODIES = {
    "nothing": b"",
    "not JSON": b"{" + SECRET.encode(),
    "not an object": json.dumps([SECRET]).encode(),
    "null": b"null",
    "deep": b'{"messages":' + b"[" * 100_000,
    "deep and closed": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800' + SECRET.encode() + b'"}]}',
    "NaN": b'{"messages":[{"role":"user","content":"' + SECRET.encode() + b'"}],"temperature":NaN}',
    "not UTF-8": b'{"messages":[{"role":"user","content":"\xff\xfe' + SECRET.encode() + b'"}]}',
    "fields of the wrong type": b'{"model":7,"messages":"' + SECRET.encode() + b'"}',
    "NUL": b'{"messages":[{"role":"user","content":"\\u0000' + SECRET.encode() + b'"}]}',
}


def _is_openai_error(answer: Answer) -> bool:
    error = answer.error
    return set(error) >= {"message", "type", "param", "code"} and isinstance(error["message"], str)


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_one_pool_passes_it_on_unchanged(stack: Stack, body: bytes) -> None:
    """With one catch-all pool it is the endpoint that judges the body."""
    async with connect(stack.url) as session:
        answer = await send(session, body)

    assert answer.served_by in stack.addresses
    assert answer.headers["x-extproc-pool"] == "vllm"
    assert answer.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body)
    assert SECRET not in stack.service.log.read_text() + stack.gateway.log.read_text()


async def test_unknown_method_is_passed_on(stack: Stack) -> None:
    async with connect(stack.url) as session:
        answers = [
            await send(session, b"", method="GET", path=f"{CHAT}?a=%ff"),
            await send(session, b"x" * 1_000, method="PUT"),
            await send(session, b"", method="DELETE"),
        ]

    assert {answer.served_by in stack.addresses for answer in answers} == {True}
    assert {answer.status for answer in answers} == {405}


PROTOCOLS = {"HTTP/1.1": "--http1.1", "HTTP/2": "--http2-prior-knowledge"}


# Curl's word for a stream that was reset. After a whole early answer Envoy may reset one without an error
# (RFC 9113 section 8.1), which curl before 8 takes for one; nghttp has the answer each time.
RESET = 92


async def _upload(stack: Stack, body: bytes, protocol: str) -> Answer:
    """Sends a large body with curl, which reads an early answer while it still sends."""
    options = ["--silent", "--include", "--max-time", "60", PROTOCOLS[protocol], "--data-binary", "@-"]
    # Without `Expect: 100-continue`, as most libraries send it.
    headers = ["--header", "content-type: application/json", "--header", "expect:"]
    code: int | None = RESET
    output = b""
    for _ in range(10):
        if code == RESET:
            code, output = await _run(["curl", *options, *headers, f"{stack.url}{CHAT}"], body)
    head, _, received = output.partition(b"\r\n\r\n")
    status, *lines = head.decode().splitlines()
    assert status.startswith(protocol)
    return Answer(int(status.split()[1]), received, dict(line.split(": ", 1) for line in lines))


async def _run(command: list[str], given: bytes) -> tuple[int | None, bytes]:
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    output, _ = await child.communicate(given)
    return child.returncode, output


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_twenty_megabytes_arrive(stack: Stack, protocol: str) -> None:
    body = ask("x" * 20_000_000)
    answer = await _upload(stack, body, protocol)

    assert answer.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body)
    assert answer.headers["x-extproc-pool"] == "vllm"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_body_over_the_limit_is_refused_in_openai_words(stack: Stack, protocol: str) -> None:
    answer = await _upload(stack, b"x" * (LIMIT_BYTES + 1_000_000), protocol)

    assert (answer.status, answer.headers["content-type"]) == (413, "application/json")
    assert answer.error == {
        "message": "The request body is larger than this gateway accepts.",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_too_large",
    }


async def test_no_endpoint_answers_in_openai_words(tmp_path: Path) -> None:
    """Every endpoint's port is closed: Envoy's own 503, with a hint when to come again."""
    with run_stack(tmp_path, simulate=None) as stack:
        async with connect(stack.url) as session:
            answer = await send(session, ask("nobody there"))

    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    assert (answer.error["type"], answer.error["code"]) == ("service_unavailable", "upstream_unavailable")


@pytest.fixture(scope="module")
def two_pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with run_stack(
        tmp_path_factory.mktemp("pools"),
        pools=lambda addresses: [
            pool(addresses[:2], name="llama", models=["llama-3"], adapters=["sql-lora"]),
            pool(addresses[2:], name="qwen", models=["qwen-*"]),
        ],
    ) as stack:
        yield stack


class TestSeveralPools:
    """Here the body's model is needed, so a body that cannot be read is refused."""

    @pytest.mark.parametrize(
        ("model", "name"),
        [("llama-3", "llama"), ("sql-lora", "llama"), ("qwen-2", "qwen"), ("qwen-", "qwen")],
    )
    async def test_model_chooses_the_pool(self, two_pools: Stack, model: str, name: str) -> None:
        async with connect(two_pools.url) as session:
            answer = await send(session, ask("hello", model=model))

        assert answer.headers["x-extproc-pool"] == name
        assert answer.served_by in (two_pools.addresses[:2] if name == "llama" else two_pools.addresses[2:])

    async def test_unknown_model_is_404_and_named(self, two_pools: Stack) -> None:
        async with connect(two_pools.url) as session:
            answer = await send(session, ask("hello", model="gpt-9"))

        assert (answer.status, answer.error["code"], answer.served_by) == (404, "model_not_found", "")
        assert answer.headers["content-type"] == "application/json"
        assert "gpt-9" in answer.error["message"]
        assert _is_openai_error(answer)

    @pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
    async def test_unreadable_model_is_refused(self, two_pools: Stack, body: bytes) -> None:
        async with connect(two_pools.url) as session:
            answer = await send(session, body)

        assert (answer.status, answer.served_by) == (400, "")
        assert _is_openai_error(answer)
        assert SECRET not in answer.body.decode()

    async def test_models_of_all_pools_are_listed(self, two_pools: Stack) -> None:
        async with connect(two_pools.url) as session:
            answer = await send(session, b"", method="GET", path="/v1/models")

        assert {model["id"] for model in json.loads(answer.body)["data"]} >= {"llama-3", "sql-lora"}

    async def test_nothing_of_a_body_is_logged(self, two_pools: Stack) -> None:
        """By the service, or as gRPC status text by Envoy."""
        async with connect(two_pools.url) as session:
            await asyncio.gather(*(send(session, body) for body in BAD_BODIES.values()))
            await send(session, chat_body([{"role": "user", "content": SECRET}], model=SECRET))

        assert two_pools.service.is_running
        assert SECRET not in two_pools.service.log.read_text() + two_pools.gateway.log.read_text()
        assert two_pools.gateway.ext_proc()["streams_failed"] == 0

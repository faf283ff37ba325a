"""What operators change in the shipped configuration: routes, a cluster per pool, paths, keys, buffers."""

import asyncio
import json
import subprocess

import pytest
import xxhash

from tests.stack.client import CHAT, chat_about, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack

pytestmark = pytest.mark.envoy

LIMIT_BYTES = 50_331_648
RESET = 92  # curl's word for a stream that was reset


async def test_the_operators_route_chooses_the_pool_whatever_the_model(stack: Stack) -> None:
    first, second = stack.addresses[:2], stack.addresses[2:]
    stack.use(
        pool(first, name="first", models=["simulated"]),
        pool(second, name="second", models=["other"]),
    )
    async with connect(stack.through("route_batch_to_second").url) as session:
        usual = await send(session, chat_about("hello"), headers={"x-extproc-pool": "second"})
        batch = [
            await send(session, chat_about(f"hello {n}"), path="/batch/v1/chat/completions")
            for n in range(6)
        ]
        listed = await send(session, b"", path="/v1/models", method="GET")
        theirs = await send(session, b"", path="/batch/v1/models", method="GET")

    assert (usual.status, usual.headers["x-extproc-pool"]) == (200, "first")
    assert {answer.headers["x-extproc-pool"] for answer in batch} == {"second"}
    assert {answer.served_by for answer in (*batch, theirs)} <= {*second}
    assert [model["id"] for model in json.loads(listed.body)["data"]] == ["other", "simulated"]


@pytest.fixture
def split(stack: Stack) -> Stack:
    """A cluster per pool without xDS, as docs/how-to/models-and-lora.md describes it."""
    first, second = stack.addresses[:2], stack.addresses[2:]
    pools = (
        pool(first, name="llama", models=["llama-3"]),
        pool(second, name="qwen", models=["qwen-2"]),
    )
    stack.use(*pools, clear_route_cache=True)
    return stack.through("split_cluster")


async def test_header_of_the_service_chooses_the_cluster_and_no_client_does(split: Stack) -> None:
    """With the service up its own wins; with the service down no pool gets another's prompts."""
    async with connect(split.url) as session:
        for model, mine in (("llama-3", split.addresses[:2]), ("qwen-2", split.addresses[2:])):
            bodies = [chat_about(f"{number}", model=model) for number in range(8)]
            for claim in ({}, {"x-extproc-pool": "qwen"}, {"x-extproc-pool": "llama"}):
                answers = [await send(session, body, headers=claim) for body in bodies]
                assert {answer.served_by for answer in answers} <= {*mine}
        split.service.kill()
        for claim in ({}, {"x-extproc-pool": "qwen"}):
            without = await send(session, chat_about("without", model="llama-3"), headers=claim)
            assert (without.status, without.served_by) == (503, "")


async def test_without_the_service_requests_are_refused_and_open_answers_end_whole(
    split: Stack,
) -> None:
    """The closed route, and not `failure_mode_allow: false`, which would cut them."""
    async with connect(split.url) as session:
        body = chat_about(
            "a long one", model="llama-3", max_tokens=200, stream=True, ignore_eos=True
        )
        async with session.post(
            CHAT, data=body, headers={"content-type": "application/json"}
        ) as answer:
            begun = await answer.content.readany()
            split.service.kill()
            refused = [
                await send(session, chat_about("x" * size, model=model))
                for model in ("llama-3", "qwen-2")
                for size in (10, 2_000_000)
            ]
            refused.append(await send(session, b"", path="/v1/models", method="GET"))
            rest = await answer.content.read()

    assert b"[DONE]" not in begun
    assert (begun + rest).count(b"data: ") >= 200
    assert rest.endswith(b"data: [DONE]\n\n")
    assert {
        (answer.status, answer.headers["retry-after"], answer.error["code"]) for answer in refused
    } == {(503, "1", "upstream_unavailable")}


async def test_one_line_opens_a_path(stack: Stack) -> None:
    async with connect(stack.through("open_ping").url) as session:
        answers = [await send(session, b"", path=path, method="GET") for path in ("/ping", "/load")]

    assert [answer.status for answer in answers] == [200, 404]


async def test_the_lock_that_the_docs_show_lets_in_who_has_a_key(stack: Stack) -> None:
    locked = stack.through("lock")
    before = locked.gateway.ext_proc()["streams_started"]
    key = {"authorization": "Bearer the-key-of-team-a"}
    async with connect(locked.url) as session:
        stranger = await send(session, b"", path="/v1/models", method="GET")
        assert locked.gateway.ext_proc()["streams_started"] == before
        known = await send(session, b"", path="/v1/models", method="GET", headers=key)

    assert (stranger.status, stranger.error["type"]) == (401, "invalid_request_error")
    assert known.status == 200


async def test_a_body_over_the_limit_is_refused_in_the_words_of_its_api(stack: Stack) -> None:
    async with connect(stack.through("small_buffer").url) as session:
        openai = await send(session, b" " * 200_000)
        anthropic = await send(session, b" " * 200_000, path="/v1/messages")

    assert (openai.status, anthropic.status) == (413, 413)
    assert openai.headers["content-type"] == anthropic.headers["content-type"] == "application/json"
    assert openai.error == {
        "message": "The request body is larger than this gateway accepts.",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_too_large",
    }
    assert json.loads(anthropic.body)["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2-prior-knowledge"])
async def test_twenty_megabytes_arrive_and_more_than_the_limit_does_not(
    stack: Stack, protocol: str
) -> None:
    """With curl, which reads an early answer while it still sends.

    After a whole early answer Envoy may reset an HTTP/2 stream without an error (RFC 9113 section
    8.1), which curl before 8 takes for one; nghttp has the answer each time.
    """
    body = chat_about("x" * 20_000_000)
    options = ["--silent", "--include", "--max-time", "60", protocol, "--data-binary", "@-"]
    headers = ["--header", "content-type: application/json", "--header", "expect:"]

    def upload(given: bytes) -> str:
        command = ["curl", *options, *headers, f"{stack.url}{CHAT}"]
        for _ in range(10):
            result = subprocess.run(command, input=given, capture_output=True, check=False)
            if result.returncode != RESET:
                break
        return result.stdout.decode()

    arrived = await asyncio.to_thread(upload, body)
    refused = await asyncio.to_thread(upload, b"x" * (LIMIT_BYTES + 1_000_000))

    assert f"x-simulated-body-xxh3: {xxhash.xxh3_64_hexdigest(body)}" in arrived
    assert refused.split()[1] == "413"
    assert '"body_too_large"' in refused

"""What the client records of answers of every kind, against a scripted server; and how they become events."""

import gzip
import itertools
import socket

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.processors.collector import collect_stream
from extproc.bench.processors.openai import AnthropicMessages, OpenAIChat, OpenAIResponses
from extproc.bench.processors.processor import ChatQuery, Processor, Read, cut_sse
from extproc.bench.record import Record, TokenSource
from extproc.bench.spec.tree import Target
from tests.bench.running import serving_null
from tests.bench.scripted import (
    ASK,
    DONE,
    ROLE,
    STREAM,
    USAGE,
    Script,
    ask_once,
    chunk,
    event,
    http_client,
    scripted,
)
from tests.tables import table


async def test_times_and_tokens_are_those_of_the_script() -> None:
    """Of bytes as they arrive: a role is the first byte, but not the first token; the usage is no token."""
    told = [(0.03, STREAM + ROLE), (0.05, chunk("ab")), (0.02, chunk("cd")), (0.02, chunk("ef"))]
    record = await ask_once([*told, (0.04, USAGE + DONE)])

    assert record.is_ok
    assert (record.sent_s, record.first_byte_s) == (0.0, 0.03)
    assert record.first_token_s == record.chunk_s[0]
    assert [*record.chunk_s, record.end_s] == pytest.approx([0.08, 0.1, 0.12, 0.16])
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (7, 4, 3)
    assert record.token_source is TokenSource.SERVER
    # No chunk is less than a token, however few its bytes.
    assert record.estimated_output_tokens == 3


async def test_missing_usage_is_estimated_and_an_empty_output_has_no_first_token() -> None:
    untold = await ask_once([(0, STREAM + chunk("abcdefgh") + DONE)])
    empty = await ask_once([(0, STREAM + ROLE + DONE)])

    assert (untold.input_tokens, untold.output_tokens) == (3, 2)
    assert untold.token_source is TokenSource.ESTIMATE
    assert (empty.is_ok, empty.first_token_s, empty.output_tokens) == (True, None, 0)


ERROR = b'data: {"error": {"message": "out of memory", "type": "internal"}}\n\n'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (
    len(chunk("a")),
    chunk("a"),
)
SLOW_DOWN = b'{"error": {"message": "slow down", "type": "rate_limit"}}'
HEAD_429 = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(
    SLOW_DOWN
)


@table(
    ("script", "failure", "detail", "text"),
    [
        ([(0, STREAM + chunk("a")), (0.02, ERROR + DONE)], "server error", "out of memory", "a"),
        ([(0, CHUNKED)], "disconnect", None, "a"),
        ([(0, STREAM + chunk("a"))], "cut short", None, "a"),
        ([(0, STREAM + b"data: {nope\n\n" + DONE)], "bad answer", None, ""),
        ([(0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n")], "protocol", None, ""),
        ([(0, HEAD_429 + SLOW_DOWN)], "http 429", "slow down", ""),
        (
            [(0, b"HTTP/1.1 503 No\r\nContent-Length: 8\r\n\r\nno hosts")],
            "http 503",
            "no hosts",
            "",
        ),
    ],
)
async def test_answer_that_fails_keeps_its_chunks(
    script: Script, failure: str, detail: str | None, text: str
) -> None:
    record = await ask_once(script)

    assert (record.failure, record.text, len(record.chunk_s)) == (failure, text, len(text))
    assert detail in (None, record.failure_detail)
    assert record.end_s is not None
    assert record.status == {"http 429": 429, "http 503": 503, "protocol": None}.get(failure, 200)
    assert record.retry_after_s == (7.0 if failure == "http 429" else None)


async def test_slow_trickle_of_single_bytes_is_stamped_when_a_chunk_is_whole() -> None:
    data = chunk("a") + chunk("b")
    record = await ask_once(
        [(0, STREAM), *((0.002, data[i : i + 1]) for i in range(len(data))), (0, DONE)]
    )

    assert record.text == "ab"
    assert record.chunk_s == pytest.approx([0.002 * len(data) / 2, 0.002 * len(data)], abs=0.004)


async def test_giant_chunk_is_one_chunk_and_split_characters_lose_nothing() -> None:
    giant = await ask_once([(0, STREAM + chunk("x" * 5_000_000) + DONE)])
    data = chunk("naïve 👋🏽") + chunk("日本語") + USAGE + DONE
    split = await ask_once(
        [(0, STREAM), *((0.001, data[i : i + 3]) for i in range(0, len(data), 3))]
    )

    assert (giant.is_ok, len(giant.chunk_s), len(giant.text)) == (True, 1, 5_000_000)
    assert (split.is_ok, split.text) == (True, "naïve 👋🏽日本語")


async def test_server_that_says_nothing_times_out() -> None:
    record = await ask_once([(60, STREAM)], target=Target(timeout=0.2))

    assert record.failure == "timeout"
    assert record.end_s is not None
    assert record.sent_s is not None


async def test_refused_connection_is_told_from_a_lost_one() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        record = Record(0, 0, 0, 0.0)
        async with http_client(unused.getsockname()[1]) as client:
            await client.send(ASK, record)

    assert record.failure == "connect"
    assert record.sent_s is None


async def test_whole_answer_has_tokens_but_no_first_token() -> None:
    usage = b'"usage": {"prompt_tokens": 5, "completion_tokens": 1}'
    body = b'{"choices": [{"message": {"content": "hi"}}], %s}' % usage
    head = b"HTTP/1.1 200 OK\r\nx-served-by: 10.0.0.1:8000\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    ask = ChatQuery("m", ASK.messages, 10, is_streaming=False)
    record = await ask_once([(0, head + body)], ask=ask)

    assert (record.text, record.input_tokens, record.output_tokens) == ("hi", 5, 1)
    assert record.first_token_s is None
    assert record.endpoint == "10.0.0.1:8000"


async def test_key_headers_and_body_of_the_spec_reach_the_server() -> None:
    target = Target(headers={"x-team": "blue"}, body={"temperature": 0})
    async with (
        scripted([(0, STREAM + DONE)]) as server,
        http_client(server.port, target=target, api_key="secret") as client,
    ):
        await client.send(ASK, Record(0, 0, 0, 0.0))

    (request,) = server.requests
    assert b"Authorization: Bearer secret" in request
    assert b"x-team: blue" in request
    assert b'"temperature":0' in request


async def test_connections_are_kept_between_requests() -> None:
    """A new connection per request would measure handshakes."""
    connections = []

    async def chat(request: web.Request) -> web.Response:
        assert request.transport is not None
        connections.append(request.transport.get_extra_info("peername"))
        return web.Response(body=ROLE + chunk("a") + USAGE + DONE, content_type="text/event-stream")

    async with serving_null(chat=chat) as port, http_client(port) as client:
        for _ in range(5):
            await client.send(ASK, Record(0, 0, 0, 0.0))

    assert connections == connections[:1] * 5


EVENTS = ["naïve 👋🏽", "", '{"a": "b\\n"}', "[DONE]"]
EVENT_STREAM = "".join(f": ping\r\n\r\nevent: x\ndata: {data}\n\n" for data in EVENTS).encode()


def cut(data: bytes, cuts: list[int]) -> list[Read]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [(float(b), data[a:b]) for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(min_value=0)), st.lists(st.binary()))
def test_events_are_the_same_however_they_are_cut(cuts: list[int], chunks: list[bytes]) -> None:
    """Any other bytes can be cut, too."""
    assert [data.decode() for _, data in cut_sse(cut(EVENT_STREAM, cuts))] == EVENTS
    assert sum(len(data) for _, data in cut_sse((0.0, chunk) for chunk in chunks)) <= sum(
        map(len, chunks)
    )


def test_event_has_the_time_of_its_last_byte_and_an_unfinished_one_is_none() -> None:
    reads = [(1.0, b"data: a"), (2.0, b"b\n"), (3.0, b"\ndata: c\n\ndata: d"), (4.0, b"\n\n")]

    assert list(cut_sse(reads)) == [(3.0, b"ab"), (3.0, b"c"), (4.0, b"d")]
    assert list(cut_sse([(1.0, b"data:a\ndata: b\n\ndata: lost")])) == [(1.0, b"a\nb")]


def delta(**fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields}]})


CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}


def typed_event(kind: str, **fields: object) -> bytes:
    return event({"type": kind, **fields})


@table(
    ("processor", "first", "last"),
    [
        (OpenAIChat(), delta(tool_calls=[CALL]), DONE),
        (OpenAIChat(), delta(function_call={"name": "f"}), DONE),
        (OpenAIChat(), delta(refusal="no"), DONE),
        (OpenAIChat(), delta(audio={"data": "AAAA"}), DONE),
        (OpenAIChat(), delta(reasoning_details=[{"text": "hm"}]), DONE),
        (
            AnthropicMessages(),
            typed_event("content_block_delta", delta={"partial_json": "{}"}),
            typed_event("message_stop"),
        ),
        *(
            (
                OpenAIResponses(),
                typed_event(f"response.{kind}.delta", delta="x"),
                typed_event("response.completed"),
            )
            for kind in ("function_call_arguments", "refusal", "reasoning_summary_text")
        ),
        # Ends that other servers send: no terminator, or one without its empty line; a BOM, CR alone.
        (OpenAIChat(), chunk("a"), event({"choices": [{"delta": {}, "finish_reason": "stop"}]})),
        (OpenAIChat(), chunk("a"), b"data: [DONE]"),
        # What the standard library reads, and with it OpenAI's client.
        (OpenAIChat(), chunk("a").replace(b"0", b"NaN"), DONE),
        (OpenAIChat(), chunk("a").replace(b'"a"', rb'"\ude00\ud83d"'), DONE),
        (OpenAIChat(), b"\xef\xbb\xbf" + chunk("a"), DONE.replace(b"\n", b"\r")),
    ],
)
def test_whatever_the_model_writes_first_is_the_first_token(
    processor: Processor, first: bytes, last: bytes
) -> None:
    record = Record(0, 0, 0, 0.0)
    collect_stream(record, [(1.0, ROLE), (2.0, first), (2.5, first), (3.0, last)], processor)

    assert (record.failure, record.first_token_s, record.chunk_s) == (None, 2.0, [2.0, 2.5])
    assert record.output_tokens >= 2
    assert record.text.encode().count("😀".encode()) == (b"ude00" in first)


@table(
    ("head", "body", "failure"),
    [
        (b"307 Away\r\nLocation: http://127.0.0.1:%d/elsewhere", b"", "http 307"),
        (b"200 OK\r\nContent-Encoding: gzip", gzip.compress(bytes(1 << 20)), "cut short"),
        (b"200 OK", chunk("x" * (65 << 20)), "too long"),
        (b"500 No", b"\x1b[2Jowned", "http 500"),
        (b"200 OK", chunk("a") + USAGE.replace(b":3", b":-3") + DONE, None),
    ],
)
async def test_hostile_answer_is_a_failure_and_takes_nothing_along(
    head: bytes, body: bytes, failure: str | None
) -> None:
    record = Record(0, 0, 0, 0.0)
    script: list[tuple[float, bytes]] = []
    async with scripted(script) as server, http_client(server.port, api_key="secret") as client:
        head = head.replace(b"%d", str(server.port).encode())
        script.append((0, b"HTTP/1.1 " + head + b"\r\nConnection: close\r\n\r\n" + body))
        await client.send(ASK, record)

    assert (record.failure, record.cached_tokens, len(server.requests)) == (failure, None, 1)
    assert "\x1b" not in record.failure_detail

"""What the client records of answers of every kind, good and bad, against a scripted server."""

import socket

import pytest

from extproc.bench.processors.processor import ChatQuery
from extproc.bench.record import Record, RunClock, TokenSource
from extproc.bench.spec.tree import Target
from tests.bench.scripted import (
    ASK,
    DONE,
    ROLE,
    STREAM,
    USAGE,
    ask_once,
    ask_server,
    chunk,
    http_client,
    scripted,
)

TOLERANCE_S = 0.010


async def test_times_match_a_script_within_ten_milliseconds() -> None:
    record, server = await ask_server(
        [(0, STREAM), (1.0, chunk("a")), (0.1, chunk("b")), (0.1, chunk("c")), (0.2, USAGE + DONE)]
    )

    head_s, *chunks_s, end_s = (at_s - server.received_s for at_s in server.written_s)
    assert head_s < 0.1
    assert chunks_s[0] >= 1.0
    assert record.sent_s is not None
    assert record.first_token_s == record.chunk_s[0]
    assert record.end_s is not None
    measured = [at_s - record.sent_s for at_s in (*record.chunk_s, record.end_s)]
    assert measured == pytest.approx([*chunks_s, end_s], abs=TOLERANCE_S)
    assert record.is_ok


async def test_role_only_chunk_is_the_first_byte_but_not_the_first_token() -> None:
    record, server = await ask_server([(0.1, STREAM + ROLE), (0.2, chunk("a") + USAGE + DONE)])

    role_s, token_s = server.written_s
    assert record.first_token_s is not None
    assert record.first_byte_s is not None
    assert token_s - role_s > 5 * TOLERANCE_S
    assert record.first_token_s - record.first_byte_s == pytest.approx(token_s - role_s, abs=TOLERANCE_S)


async def test_usage_chunk_gives_tokens_and_is_no_token_itself() -> None:
    record = await ask_once([(0, STREAM + chunk("ab") + chunk("cd") + USAGE + DONE)])

    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (7, 4, 3)
    assert record.token_source is TokenSource.SERVER
    assert record.estimated_output_tokens == 1
    assert len(record.chunk_s) == 2


async def test_missing_usage_is_estimated_and_said_to_be() -> None:
    record = Record(0, 0, 0, 0.0, estimated_input_tokens=3)
    async with (
        scripted([(0, STREAM + chunk("abcdefgh") + DONE)]) as server,
        http_client(server.port) as client,
    ):
        await client.send(ASK, record)

    assert (record.input_tokens, record.output_tokens) == (3, 2)
    assert record.token_source is TokenSource.ESTIMATE


async def test_empty_output_has_no_first_token_and_no_zero_in_its_place() -> None:
    record = await ask_once([(0, STREAM + ROLE + DONE)])

    assert record.is_ok
    assert record.first_token_s is None
    assert record.output_tokens == 0


async def test_error_in_mid_stream_fails_the_request_but_keeps_its_chunks() -> None:
    error = b'data: {"error": {"message": "out of memory", "type": "internal"}}\n\n'
    record = await ask_once([(0, STREAM + chunk("a")), (0.05, error + DONE)])

    assert (record.failure, record.failure_detail) == ("server error", "out of memory")
    assert len(record.chunk_s) == 1


async def test_disconnect_in_mid_stream_is_told_from_an_end() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = chunk("a")
    record = await ask_once([(0, chunked + b"%x\r\n%s\r\n" % (len(data), data))])

    assert record.failure == "disconnect"
    assert record.text == "a"
    assert record.end_s is not None


async def test_stream_that_ends_without_its_terminator_was_cut_short() -> None:
    record = await ask_once([(0, STREAM + chunk("a"))])

    assert record.failure == "cut short"


async def test_429_keeps_status_message_and_retry_after() -> None:
    body = b'{"error": {"message": "slow down", "type": "rate_limit"}}'
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(body)
    record = await ask_once([(0, head + body)])

    assert (record.failure, record.failure_detail) == ("http 429", "slow down")
    assert (record.status, record.retry_after_s) == (429, 7.0)
    assert record.end_s is not None


async def test_slow_trickle_of_single_bytes_is_stamped_when_a_chunk_is_whole() -> None:
    data = chunk("a") + chunk("b")
    trickle = [(0.002, data[i : i + 1]) for i in range(len(data))]
    record, server = await ask_server([(0, STREAM), *trickle, (0, DONE)])

    first_s, second_s = (server.written_s[len(chunk("a")) * i] for i in (1, 2))
    assert record.text == "ab"
    assert record.chunk_s[1] - record.chunk_s[0] == pytest.approx(second_s - first_s, abs=TOLERANCE_S)


async def test_giant_chunk_is_one_chunk() -> None:
    text = "x" * 5_000_000
    record = await ask_once([(0, STREAM + chunk(text) + DONE)])

    assert record.is_ok
    assert len(record.chunk_s) == 1
    assert len(record.text) == len(text)


async def test_split_characters_and_frames_lose_nothing() -> None:
    data = chunk("naïve 👋🏽") + chunk("日本語") + USAGE + DONE
    parts = [(0.001, data[i : i + 3]) for i in range(0, len(data), 3)]
    record = await ask_once([(0, STREAM), *parts])

    assert record.text == "naïve 👋🏽日本語"
    assert record.is_ok


async def test_answer_that_is_not_json_is_a_failure_of_its_own() -> None:
    record = await ask_once([(0, STREAM + b"data: {nope\n\n" + DONE)])

    assert record.failure == "bad answer"


async def test_answer_that_is_not_http_is_a_failure_of_its_own() -> None:
    record = await ask_once([(0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n")])

    assert record.failure == "protocol"
    assert record.status is None


async def test_refusal_that_is_not_json_keeps_its_text() -> None:
    record = await ask_once([(0, b"HTTP/1.1 503 No\r\nContent-Length: 8\r\n\r\nno hosts")])

    assert (record.failure, record.failure_detail) == ("http 503", "no hosts")


async def test_server_that_says_nothing_times_out() -> None:
    record = await ask_once([(1.0, STREAM)], target=Target(timeout=0.2))

    assert record.failure == "timeout"
    assert record.end_s is not None
    assert record.sent_s is not None
    assert 0.15 < record.end_s - record.sent_s < 0.9


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
    head = b"HTTP/1.1 200 OK\r\nx-served-by: 10.0.0.1:8000\r\nContent-Length: %d\r\n\r\n" % len(body)
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


async def test_connections_are_kept_between_requests(null_server: int) -> None:
    """A new connection per request would measure handshakes."""
    async with http_client(null_server) as client:
        for _ in range(5):
            await client.send(ASK, Record(0, 0, 0, 0.0))
        connector = client._session.connector
        assert connector is not None
        kept = sum(map(len, connector._conns.values()))

    assert kept == 1


def test_run_clock_counts_from_the_start_that_all_processes_share() -> None:
    clock = RunClock(lambda: 107.5)
    clock.start_at(100.0)

    assert clock() == 7.5

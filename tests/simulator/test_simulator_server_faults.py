"""Faults on purpose, each as a client sees it; and clients that go away all at once."""

import asyncio
import logging

import aiohttp
import msgspec
import pytest
from aiohttp import web

from extproc.errors import SettingsError
from extproc.simulator.http.faults import Faults
from tests.simulator.face import Face, serving
from tests.waiting import until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
STREAM = BODY | {"stream": True}


async def test_a_sick_endpoint_says_so_and_still_serves() -> None:
    async with serving(faults=Faults(is_sick=True)) as face:
        async with face.client.get("/health") as answer:
            assert answer.status == 503
        assert len(await face.events(CHAT, STREAM)) == 7


async def test_a_delay_passes_before_a_request_is_read() -> None:
    async with serving(faults=Faults(delay_s=0.2)) as face:
        clock = asyncio.get_running_loop().time
        began = clock()
        await face.post(CHAT, BODY)

        assert clock() - began > 0.2


async def test_errors_come_at_their_rate_and_with_their_status_in_vllms_shape() -> None:
    async with serving(faults=Faults(error_rate=0.3, error_status=503)) as face:
        statuses = [(await face.post(CHAT, BODY))[0] for _ in range(200)]
    async with serving(faults=Faults(error_rate=1)) as face:
        status, answer = await face.post(CHAT, BODY)

    assert set(statuses) == {200, 503}
    assert 40 < statuses.count(503) < 80
    assert (status, answer["error"]["type"], answer["error"]["code"]) == (
        500,
        "InternalServerError",
        500,
    )


async def test_a_request_that_hangs_is_never_answered_and_ends_with_its_client() -> None:
    async with serving(faults=Faults(hang_rate=1)) as face:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(face.post(CHAT, BODY), timeout=0.3)
        await until(lambda: not face.endpoint.load)


async def test_a_stream_is_closed_in_the_middle_and_a_whole_answer_before_its_first_byte() -> None:
    async with serving(faults=Faults(close_rate=1, close_after=2)) as face:
        async with face.client.post(CHAT, json=STREAM) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        await until(lambda: not face.endpoint.load and face.endpoint.driver.engine.is_idle)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await face.post(CHAT, BODY)


async def test_an_engine_that_dies_makes_its_endpoint_sick_and_useless(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as face:
        monkeypatch.setattr(face.endpoint.driver.engine, "step", lambda now: 1 / 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(face.post(CHAT, BODY), timeout=0.3)
        status, answer = await face.post(CHAT, BODY)
        async with face.client.get("/health") as health:
            assert health.status == 503

    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert "vllm: the engine died" in caplog.text


async def test_faults_are_replaced_while_the_endpoint_serves() -> None:
    async with serving() as face:
        before, _ = await face.post(CHAT, BODY)
        status, now = await face.post("/simulate/fail", {"error_rate": 1, "error_status": 502})
        during, _ = await face.post(CHAT, BODY)
        refused, refusal = await face.post("/simulate/fail", {"error_rate": 2})
        async with face.client.get("/simulate/fail") as answer:
            kept = await answer.json()
        await face.post("/simulate/fail", {})
        after, _ = await face.post(CHAT, BODY)

    assert (before, status, during, after) == (200, 200, 502, 200)
    assert (refused, refusal["error"]["param"]) == (400, "body.error_rate")
    assert kept == now
    assert now["error_status"] == 502


def test_faults_are_read_from_pairs_and_bad_ones_refused_by_name() -> None:
    expected = Faults(delay_s=0.5, close_after=3, is_sick=True)

    assert expected == Faults.parse(["delay_s=0.5", "close_after=3", "is_sick=true"])
    for pair in ("delay_s=-1", "error_rate=1.5", "error_status=404", "typo=1", "delay_s"):
        with pytest.raises(SettingsError, match=pair.partition("=")[0]):
            Faults.parse([pair])


CLIENTS = 129


def lines_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [
        record for record in caplog.records if record.name not in {"extproc.simulator", "asyncio"}
    ]


async def open_stream(face: Face) -> asyncio.StreamWriter:
    """Asks for a long stream on a connection of its own; returns it when tokens come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
    body = msgspec.json.encode({"prompt": "hello", "max_tokens": 4000, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    await reader.readuntil(b"data: ")
    return writer


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_crowd_that_vanishes_mid_stream_logs_nothing(
    caplog: pytest.LogCaptureFixture, is_reset: bool
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: complaints.append(context)
    )
    with caplog.at_level(logging.INFO):
        async with serving() as face:
            writers = await asyncio.gather(*(open_stream(face) for _ in range(CLIENTS)))
            for writer in writers:
                writer.transport.abort() if is_reset else writer.close()
            await until(lambda: face.endpoint.load == 0)

            assert face.endpoint.driver.engine.is_idle

    assert lines_of(caplog) == []
    assert [] == complaints


async def test_a_client_that_a_write_finds_gone_leaves_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport may know before the handler is cancelled: aiohttp's write then raises."""
    write = web.StreamResponse.write

    async def fail(response: web.StreamResponse, data: bytes) -> None:
        if b"[DONE]" in data:
            raise ConnectionResetError("Cannot write to closing transport")
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", fail)
    with caplog.at_level(logging.INFO):
        async with serving() as face:
            with pytest.raises(aiohttp.ClientPayloadError):
                await face.events(
                    "/v1/completions", {"prompt": "hello", "max_tokens": 4, "stream": True}
                )
            await until(lambda: face.endpoint.load == 0)

    assert lines_of(caplog) == []

"""Clients that go away all at once: nothing of it is worth a line in a log."""

import asyncio
import logging

import aiohttp
import orjson
import pytest
from aiohttp import web

from tests.simulator.face import Face, serving
from tests.waiting import until

CLIENTS = 129


def lines_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name not in {"extproc.simulator", "asyncio"}]


async def open_stream(face: Face) -> asyncio.StreamWriter:
    """Asks for a long stream on a connection of its own; returns it when tokens come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
    body = orjson.dumps({"prompt": "hello", "max_tokens": 4000, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    await reader.readuntil(b"data: ")
    return writer


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_crowd_that_vanishes_mid_stream_logs_nothing(
    caplog: pytest.LogCaptureFixture, is_reset: bool
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
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
                await face.events("/v1/completions", {"prompt": "hello", "max_tokens": 4, "stream": True})
            await until(lambda: face.endpoint.load == 0)

    assert lines_of(caplog) == []

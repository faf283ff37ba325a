"""The service's memory has a bound, whatever bodies come: the one that the README states."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from extproc.router.stream.events import RequestBody
from extproc.router.stream.ext_proc_pb2 import NONE, ProcessingResponse
from extproc.router.stream.names import PROCESS
from tests.hostile import HONEST, HOSTILE, Body, hostile_chat
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write_request
from tests.stack.process import memory_bytes
from tests.stack.service import Service, pool

AT_ONCE = 12
SIZE_BYTES = 31 * 1024 * 1024
# The container of the manifests has 512 MiB.
BOUND_BYTES = 400_000_000
NORMAL = hostile_chat(b'{"role":"user","content":"one of the others"}')


@pytest.fixture
def memory_service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    service.configure([pool(["127.0.0.1:1", "127.0.0.1:2"], probe=False)])
    with service:
        service.wait_ready()
        yield service


async def route_body(channel: grpc.aio.Channel, body: Body) -> grpc.StatusCode:
    """A stream of headers, a body and two answers; no body where the reply skips it, as in Envoy."""
    call = channel.stream_stream(PROCESS, None, None)(None)
    await call.write(write_request(headers(path=body.path, content_type=body.content_type)))
    first = await call.read()
    assert isinstance(first, bytes)
    answer = ProcessingResponse.FromString(first)
    if not answer.HasField("mode_override") or answer.mode_override.request_body_mode != NONE:
        await call.write(write_request(RequestBody(body.data)))
        assert await call.read() is not grpc.aio.EOF  # type: ignore[attr-defined]  # not in the stubs
    await call.done_writing()
    return await call.code()


async def send_bodies(service: Service, *bodies: Body) -> None:
    """All of them at once, on one connection as a proxy has it; each is routed."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options) as channel:
        codes = await asyncio.gather(*(route_body(channel, body) for body in (*bodies, NORMAL)))
    assert {*codes} == {grpc.StatusCode.OK}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["text", "an image", "a chat of 2,000 messages"])
async def test_twelve_honest_bodies_at_once_are_served_or_routed_without(
    memory_service: Service, kind: str
) -> None:
    await send_bodies(memory_service, *[HONEST[kind](SIZE_BYTES)] * AT_ONCE)

    assert memory_bytes(memory_service.pid, "VmHWM") <= BOUND_BYTES
    assert memory_service.metric("extproc_requests_total", outcome="routed") == AT_ONCE + 1
    # Four at least are read. A body without a length counts a megabyte until it is here, so all may be.
    unread = memory_service.metric("extproc_prompt_errors_total", why="budget")
    assert unread <= AT_ONCE + 1 - 4


@pytest.mark.timeout(300)
async def test_no_hostile_body_takes_more_memory_than_is_stated(memory_service: Service) -> None:
    for build in HOSTILE.values():
        await send_bodies(memory_service, *[build(SIZE_BYTES)] * 3)

    assert memory_bytes(memory_service.pid, "VmHWM") <= BOUND_BYTES
    assert memory_service.metric("extproc_requests_total", outcome="routed") == 4 * len(HOSTILE)

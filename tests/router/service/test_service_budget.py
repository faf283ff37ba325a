"""Bodies beyond the process's budget of bytes: routed without them, never refused for that."""

from pathlib import Path

import grpc
import grpc.aio
import orjson

from extproc.router.stream.events import RequestBody
from extproc.router.stream.names import PROCESS
from tests.router.stream.conversations import Went, headers
from tests.router.stream.wire import read, write
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool

BUDGET = 1_000_000


async def reply_to(service: Service, body: bytes) -> object:
    """What a proxy hears of a request with this body."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(service._listen, options) as channel:
        call = channel.stream_stream(PROCESS, None, None)(None)
        await call.write(write(headers()))
        await call.read()
        await call.write(write(RequestBody(body)))
        answer = await call.read()
        await call.done_writing()
    assert isinstance(answer, bytes)
    return read(answer)


async def test_a_body_beyond_the_budget_is_routed_without_it_and_counted(tmp_path: Path) -> None:
    port, admin_port = free_ports(2)
    service = Service(tmp_path, port=port, admin_port=admin_port)
    service.configure([pool(["127.0.0.1:1", "127.0.0.1:2"])], budget_bytes=BUDGET)
    fits, does_not = (
        orjson.dumps({"messages": [{"role": "user", "content": "x" * size}]})
        for size in (BUDGET // 2, 2 * BUDGET)
    )
    with service:
        service.wait_ready()
        for body in (fits, does_not, fits):
            assert isinstance(await reply_to(service, body), Went)

        assert service.metric("extproc_prompt_errors_total") == 1
        assert service.metric("extproc_picks_total", reason="home") == 2
        assert service.metric("extproc_requests_total", outcome="routed") == 3

"""The seam on both transports: what a handler sends reaches the client in order; its end is called once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Call, Status
from extproc.router.service.transport import bind_transport
from extproc.router.settings.server_settings import ServerSettings
from tests.grpc_server.serving import ECHO, Echo
from tests.waiting import until


class Kept(Echo):
    """Keeps the messages, and ends nothing of itself."""

    def __init__(self, call: Call) -> None:
        self.heard: list[bytes | bytearray | str] = []
        super().__init__(call, [])

    def on_message(self, message: bytes | bytearray) -> None:
        self.heard.append(message)
        super().on_message(message)

    def on_half_close(self) -> None:
        self.heard.append("half close")

    def on_close(self) -> None:
        self.heard.append("close")


class Served:
    """A service on one of the transports, and a channel to it."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.handlers: list[Kept] = []

    def accept(self, call: Call) -> Kept:
        if call.metadata.get("x-fail"):
            raise RuntimeError("the metadata says: secret")
        self.handlers.append(Kept(call))
        return self.handlers[-1]

    async def heard(self, count: int) -> list[bytes | bytearray | str]:
        """The first handler's messages, once there are so many."""
        await until(lambda: self.handlers and len(self.handlers[0].heard) >= count)
        return self.handlers[0].heard

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[grpc.aio.Channel]:
        settings = ServerSettings.model_validate(
            {"listen": "127.0.0.1:0", "transport": self.transport}
        )
        server = await bind_transport(settings, {ECHO: self.accept}, Budget(1 << 26))
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield channel
        await server.stop()


@pytest.fixture(params=["native", "grpcio"])
def served(request: pytest.FixtureRequest) -> Served:
    return Served(request.param)


Stream = grpc.aio.StreamStreamCall[bytes, bytes]


def open_call(channel: grpc.aio.Channel, **metadata: str) -> Stream:
    pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    return channel.stream_stream(ECHO, None, None)(None, metadata=grpc.aio.Metadata(*pairs))


async def read(call: Stream, count: int) -> list[object]:
    async with asyncio.timeout(60):
        return [await call.read() for _ in range(count)]


async def greet(call: Stream) -> None:
    await call.write(b"hello")
    assert [b"hello"] == await read(call, 1)


async def test_answers_and_news_reach_the_client_in_the_order_they_were_sent(
    served: Served,
) -> None:
    async with served.running() as channel:
        call = open_call(channel)
        await call.write(b"a")
        await call.write(b"b")
        assert [b"a", b"b"] == await read(call, 2)
        for number in range(100):
            served.handlers[0].call.send(b"%d" % number)
        assert [b"%d" % number for number in range(100)] == await read(call, 100)

        await call.done_writing()
        await served.heard(3)
        served.handlers[0].call.send(b"after the half close")

        assert [b"after the half close"] == await read(call, 1)


async def test_the_end_comes_after_what_was_sent_and_is_heard_once(served: Served) -> None:
    async with served.running() as channel:
        call = open_call(channel)
        await call.write(b"refuse")

        assert [b"last"] == await read(call, 1)
        assert await call.code() is grpc.StatusCode.NOT_FOUND
        assert await call.details() == "no such thing"
        assert [b"refuse", "close"] == await served.heard(2)


@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_a_call_may_be_finished_while_nothing_comes(
    served: Served, is_half_closed: bool
) -> None:
    async with served.running() as channel:
        call = open_call(channel)
        await greet(call)
        if is_half_closed:
            await call.done_writing()
            await served.heard(2)
        served.handlers[0].call.send(b"goodbye")
        served.handlers[0].call.finish()

        assert [b"goodbye", grpc.aio.EOF] == await read(call, 2)  # type: ignore[attr-defined]  # not in the stubs
        assert await call.code() is grpc.StatusCode.OK
        assert (await served.heard(2 + is_half_closed))[-1] == "close"


async def test_a_cancelled_call_closes_its_handler_once(served: Served) -> None:
    async with served.running() as channel:
        call = open_call(channel)
        await greet(call)
        call.cancel()
        await until(lambda: "close" in served.handlers[0].heard)
        served.handlers[0].call.send(b"too late")
        served.handlers[0].call.finish(Status.INTERNAL)
    heard = served.handlers[0].heard

    # To grpcio a cancelled call looks half-closed for a moment.
    assert [b"hello", "close"] == [what for what in heard if what != "half close"]


@pytest.mark.parametrize("where", ["open", "message"])
async def test_a_failure_is_told_and_logged_without_its_text_and_other_calls_go_on(
    served: Served, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.running() as channel:
        call = open_call(channel, x_fail="yes") if where == "open" else open_call(channel)
        if where == "message":
            await call.write(b"fail")

        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "internal error"
        await greet(open_call(channel))
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_path_that_is_not_served_is_unimplemented(served: Served) -> None:
    async with served.running() as channel:
        call = channel.unary_unary("/test.Service/Other", None, None)(b"")

        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED

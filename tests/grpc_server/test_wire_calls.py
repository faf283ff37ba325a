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


class KeptMessages(Echo):
    """Keeps the messages, and ends nothing of itself."""

    def __init__(self, call: Call) -> None:
        self.received: list[bytes | bytearray | str] = []
        super().__init__(call, [])

    def on_message(self, message: bytes | bytearray) -> None:
        self.received.append(message)
        super().on_message(message)

    def on_half_close(self) -> None:
        self.received.append("half close")

    def on_close(self) -> None:
        self.received.append("close")


class EchoService:
    """A service on one of the transports, and a channel to it."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.handlers: list[KeptMessages] = []

    def accept(self, call: Call) -> KeptMessages:
        if call.metadata.get("x-fail"):
            raise RuntimeError("the metadata says: secret")
        self.handlers.append(KeptMessages(call))
        return self.handlers[-1]

    async def received(self, count: int) -> list[bytes | bytearray | str]:
        """The first handler's messages, once there are so many."""
        await until(lambda: self.handlers and len(self.handlers[0].received) >= count)
        return self.handlers[0].received

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
def echo_service(request: pytest.FixtureRequest) -> EchoService:
    return EchoService(request.param)


Stream = grpc.aio.StreamStreamCall[bytes, bytes]


def open_echo(channel: grpc.aio.Channel, **metadata: str) -> Stream:
    pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    return channel.stream_stream(ECHO, None, None)(None, metadata=grpc.aio.Metadata(*pairs))


async def read_messages(call: Stream, count: int) -> list[object]:
    async with asyncio.timeout(60):
        return [await call.read() for _ in range(count)]


async def greet(call: Stream) -> None:
    await call.write(b"hello")
    assert [b"hello"] == await read_messages(call, 1)


async def test_answers_and_news_reach_the_client_in_the_order_they_were_sent(
    echo_service: EchoService,
) -> None:
    async with echo_service.running() as channel:
        call = open_echo(channel)
        await call.write(b"a")
        await call.write(b"b")
        assert [b"a", b"b"] == await read_messages(call, 2)
        for number in range(100):
            echo_service.handlers[0].call.send(b"%d" % number)
        assert [b"%d" % number for number in range(100)] == await read_messages(call, 100)

        await call.done_writing()
        await echo_service.received(3)
        echo_service.handlers[0].call.send(b"after the half close")

        assert [b"after the half close"] == await read_messages(call, 1)


async def test_the_end_comes_once_and_after_what_was_sent(
    echo_service: EchoService,
) -> None:
    async with echo_service.running() as channel:
        call = open_echo(channel)
        await call.write(b"refuse")

        assert [b"last"] == await read_messages(call, 1)
        assert await call.code() is grpc.StatusCode.NOT_FOUND
        assert await call.details() == "no such thing"
        assert [b"refuse", "close"] == await echo_service.received(2)


@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_a_call_may_be_finished_while_nothing_comes(
    echo_service: EchoService, is_half_closed: bool
) -> None:
    async with echo_service.running() as channel:
        call = open_echo(channel)
        await greet(call)
        if is_half_closed:
            await call.done_writing()
            await echo_service.received(2)
        echo_service.handlers[0].call.send(b"goodbye")
        echo_service.handlers[0].call.finish()

        assert [b"goodbye", grpc.aio.EOF] == await read_messages(call, 2)  # type: ignore[attr-defined]  # not in the stubs
        assert await call.code() is grpc.StatusCode.OK
        assert (await echo_service.received(2 + is_half_closed))[-1] == "close"


async def test_a_cancelled_call_closes_its_handler_once(echo_service: EchoService) -> None:
    async with echo_service.running() as channel:
        call = open_echo(channel)
        await greet(call)
        call.cancel()
        await until(lambda: "close" in echo_service.handlers[0].received)
        echo_service.handlers[0].call.send(b"too late")
        echo_service.handlers[0].call.finish(Status.INTERNAL)
    received = echo_service.handlers[0].received

    # To grpcio a cancelled call looks half-closed for a moment.
    assert [b"hello", "close"] == [what for what in received if what != "half close"]


@pytest.mark.parametrize("where", ["open", "message"])
async def test_a_failure_is_answered_and_logged_without_its_text_and_other_calls_go_on(
    echo_service: EchoService, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with echo_service.running() as channel:
        call = open_echo(channel, x_fail="yes") if where == "open" else open_echo(channel)
        if where == "message":
            await call.write(b"fail")

        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "internal error"
        await greet(open_echo(channel))
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_path_that_is_not_served_is_unimplemented(echo_service: EchoService) -> None:
    async with echo_service.running() as channel:
        call = channel.unary_unary("/test.Service/Other", None, None)(b"")

        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED

"""The seam on grpcio: what a handler sends reaches the client in order, and it hears of the end once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest

from extproc.router.wire.calls import Call, Status
from extproc.router.wire.grpcio import add_routes
from tests.waiting import until

PATH = "/test.Service/Method"


class Echo:
    """Answers each message with itself, twice; keeps what it heard."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.heard: list[bytes | bytearray | str] = []

    def on_message(self, message: bytes | bytearray) -> None:
        self.heard.append(message)
        match message:
            case b"fail":
                raise RuntimeError("the prompt says: secret")
            case b"refuse":
                self.call.send(b"last")
                self.call.finish(Status.NOT_FOUND, "no such thing")
                self.call.send(b"never")
            case _:
                self.call.send(bytes(message))
                self.call.send(bytes(message))

    def on_skipped(self, size: int) -> None:
        self.heard.append(f"skipped {size}")

    def on_half_close(self) -> None:
        self.heard.append("half close")

    def on_close(self) -> None:
        self.heard.append("close")


class Server:
    def __init__(self) -> None:
        self.handlers: list[Echo] = []

    def open(self, call: Call) -> Echo:
        if call.metadata.get("x-fail"):
            raise RuntimeError("the metadata says: secret")
        self.handlers.append(Echo(call))
        return self.handlers[-1]

    async def heard(self, count: int) -> list[bytes | bytearray | str]:
        """What the only handler heard, once that is so much."""
        await until(lambda: self.handlers and len(self.handlers[0].heard) >= count)
        return self.handlers[0].heard


@pytest.fixture
def served() -> Server:
    return Server()


@asynccontextmanager
async def serving(served: Server) -> AsyncGenerator[grpc.aio.Channel]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_routes(server, {PATH: served.open})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


Stream = grpc.aio.StreamStreamCall[bytes, bytes]


def open_call(channel: grpc.aio.Channel, **metadata: str) -> Stream:
    pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    return channel.stream_stream(PATH, None, None)(None, metadata=grpc.aio.Metadata(*pairs))


async def read(call: Stream, count: int) -> list[object]:
    async with asyncio.timeout(60):
        return [await call.read() for _ in range(count)]


async def test_answers_come_in_the_order_they_were_sent(served: Server) -> None:
    async with serving(served) as channel:
        call = open_call(channel)
        await call.write(b"a")
        await call.write(b"b")

        assert [b"a", b"a", b"b", b"b"] == await read(call, 4)


async def test_news_between_two_messages_reach_the_client_in_order(served: Server) -> None:
    async with serving(served) as channel:
        call = open_call(channel)
        await served_one(served, call)
        for number in range(100):
            served.handlers[0].call.send(b"%d" % number)

        assert [b"%d" % number for number in range(100)] == await read(call, 100)

        await call.done_writing()
        await served.heard(2)
        served.handlers[0].call.send(b"after the half close")

        assert [b"after the half close"] == await read(call, 1)


async def served_one(served: Server, call: Stream) -> None:
    await call.write(b"hello")
    assert [b"hello", b"hello"] == await read(call, 2)


async def test_the_end_comes_after_what_was_sent_and_is_heard_once(served: Server) -> None:
    async with serving(served) as channel:
        call = open_call(channel)
        await call.write(b"refuse")

        assert [b"last"] == await read(call, 1)
        assert await call.code() is grpc.StatusCode.NOT_FOUND
        assert await call.details() == "no such thing"
        assert [b"refuse", "close"] == await served.heard(2)


@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_a_call_may_be_finished_while_nothing_comes(served: Server, is_half_closed: bool) -> None:
    async with serving(served) as channel:
        call = open_call(channel)
        await served_one(served, call)
        if is_half_closed:
            await call.done_writing()
            await served.heard(2)
        served.handlers[0].call.send(b"goodbye")
        served.handlers[0].call.finish()

        assert [b"goodbye", grpc.aio.EOF] == await read(call, 2)  # type: ignore[attr-defined]  # not in the stubs
        assert await call.code() is grpc.StatusCode.OK
        assert (await served.heard(2 + is_half_closed))[-1] == "close"


async def test_a_cancelled_call_closes_its_handler_once(served: Server) -> None:
    async with serving(served) as channel:
        call = open_call(channel)
        await served_one(served, call)
        call.cancel()
        await until(lambda: "close" in served.handlers[0].heard)
        served.handlers[0].call.send(b"too late")
        served.handlers[0].call.finish(Status.INTERNAL)
    heard = served.handlers[0].heard

    # To grpcio a cancelled call looks half-closed for a moment.
    assert [b"hello", "close"] == [what for what in heard if what != "half close"]


@pytest.mark.parametrize("where", ["open", "message"])
async def test_a_failure_is_told_and_logged_without_its_text(
    served: Server, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(served) as channel:
        call = open_call(channel, x_fail="yes") if where == "open" else open_call(channel)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may be over
            await call.write(b"fail")

        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "internal error"
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_path_that_is_not_served_is_unimplemented(served: Server) -> None:
    async with serving(served) as channel:
        call = channel.unary_unary("/test.Service/Other", None, None)(b"")

        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED

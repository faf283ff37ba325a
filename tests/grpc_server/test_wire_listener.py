"""The listener over real sockets: what services see of calls, and what peers see of services."""

import asyncio
import logging
import resource
import socket
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest

from extproc.grpc_server import frames
from extproc.grpc_server.accepting import Acceptor, bind
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.certificates import Certificates, SelfSigned
from extproc.grpc_server.frames import Code, frame
from extproc.grpc_server.limits import WireLimits
from extproc.router.logs import RateLimit
from tests.grpc_server.header_blocks import literal
from tests.grpc_server.peer import END, data, framed
from tests.grpc_server.serving import ECHO, FEED, ServedListener, echo, serving_listener, trusting
from tests.tables import table
from tests.waiting import until

GREETING = frames.PREFACE + frames.settings({})
END_OF_CALL = data(1, b"", END)
# A client that allows us to send whatever we like.
WIDE_SETTINGS = frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
WIDE_WINDOWS = WIDE_SETTINGS + frames.window_update(0, 127 << 24)
TLS = Certificates(SelfSigned()).context()


def request_frame(stream_id: int, path: str) -> bytes:
    fields = (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())
    block = b"".join(literal(*field) for field in (*fields, (b"content-type", b"application/grpc")))
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)


def first_call_bytes(path: str) -> bytes:
    """A client's preface, its SETTINGS, and the first call."""
    return GREETING + request_frame(1, path)


async def exchange(served: ServedListener, data: bytes) -> bytes:
    """Sends `data` and returns all that comes until the server closes."""
    reader, _ = await served.connect(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""  # closed with bytes of ours still unread


async def test_a_message_larger_than_every_window_comes_back() -> None:
    options = [("grpc.max_receive_message_length", -1)]
    async with (
        serving_listener() as served,
        grpc.aio.insecure_channel(served.target, options) as channel,
    ):
        message = bytes(20_000_000)

        assert [message] == await echo(channel, message)
        assert served.listener.budget.used == 0


async def test_the_clients_own_limit_ends_a_call() -> None:
    async with serving_listener() as served, grpc.aio.insecure_channel(served.target) as channel:
        call = channel.stream_stream(ECHO, None, None)(None, timeout=0.2)

        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(served.ends) >= 1)


async def test_a_service_that_raised_hears_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Two messages come at once: the first one fails."""
    async with serving_listener() as served:
        await served.connect(first_call_bytes(ECHO) + 2 * data(1, framed(b"fail")))
        await until(lambda: served.ends)

    assert caplog.text.count("RuntimeError") == 1


async def test_a_message_beyond_the_budget_is_skipped_and_the_next_one_read() -> None:
    async with serving_listener(budget=Budget(100_000)) as served:
        async with grpc.aio.insecure_channel(served.target) as channel:
            assert [b"skipped 200000", b"small"] == await echo(channel, bytes(200_000), b"small")
        assert served.listener.budget.used == 0


SOON = WireLimits(preface_s=0.1, tick_s=0.05)
STRANGERS: list[tuple[dict[str, Any], bytes, str]] = [
    ({}, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1, where gRPC is served"),
    ({}, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS, where plain text is served"),
    ({}, b"\x00\x01nonsense", "no HTTP/2 preface"),
    ({"limits": SOON}, b"PRI * HTTP/2.0", "no HTTP/2 preface in time"),
    ({"limits": SOON, "tls": TLS}, b"", "no TLS handshake in time"),
]


@pytest.mark.parametrize(("how", "data", "line"), STRANGERS)
async def test_a_stranger_is_closed_in_time_with_one_clear_line(
    how: dict[str, Any], data: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_listener(**how) as served:
        assert await exchange(served, data) == b""
        await until(lambda: not served.listener.links)

    [record] = caplog.records
    assert record.getMessage().endswith(line)


async def test_a_flood_of_strangers_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_listener() as served:
        with caplog.filtering(RateLimit(monotonic)):
            for _ in range(100):
                await exchange(served, b"nonsense")

    # However slow the machine, it is far from a line each.
    assert 1 <= len(caplog.records) <= 50


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with serving_listener(WireLimits(connections=2)) as served:
        for _ in range(2):
            await served.connect(first_call_bytes(ECHO))
        await until(lambda: served.opened >= 2)

        assert await exchange(served, GREETING) == b""


async def test_who_never_asked_makes_room_for_who_comes(caplog: pytest.LogCaptureFixture) -> None:
    """A flood of silent connections shuts out neither a proxy nor a health check."""
    async with serving_listener(WireLimits(connections=3)) as served:
        for data in (first_call_bytes(ECHO), *[b""] * 10, first_call_bytes(ECHO)):
            await served.connect(data)
        await until(lambda: served.opened >= 2)

        assert len(served.listener.links) == 3

    assert "nothing is open on it" in caplog.text


@table("has_tls", [False, True])
async def test_who_asked_once_and_has_nothing_open_makes_room(*, has_tls: bool) -> None:
    """1. Room for 8, a proxy asks. 2. Another address opens 20, each with one request and its answer.

    3. The proxy's second request finds its connection, although it is the oldest.
    """
    client = trusting() if has_tls else None
    async with serving_listener(WireLimits(connections=8), tls=TLS if has_tls else None) as served:
        _, asks = await served.connect(first_call_bytes(ECHO) + END_OF_CALL, ssl=client)
        await until(lambda: len(served.ends) >= 1)
        for _ in range(20):
            await served.connect(
                first_call_bytes(ECHO) + END_OF_CALL, ssl=client, local_addr=("127.0.0.2", 0)
            )
            await until(lambda: len(served.ends) >= len(served.clients))
        ends = [await asyncio.wait_for(reader.read(), 30) for reader, _ in served.clients[1:14]]
        asks.write(request_frame(3, ECHO))
        await until(lambda: served.opened >= 22)

        assert len(served.listener.links) == 8
        assert all(b"nothing is open on it" in end for end in ends)


async def test_the_oldest_handshake_makes_room_for_who_comes() -> None:
    """1. Three connections are allowed, five begin a handshake. 2. The first two are closed, and no other."""
    async with serving_listener(WireLimits(connections=3), tls=TLS) as served:
        silent = [(await served.connect())[0] for _ in range(5)]
        for reader in silent[:2]:
            assert await asyncio.wait_for(reader.read(), 10) == b""

        assert len(served.listener.links) == 3
        assert not any(reader.at_eof() for reader in silent[2:])


async def test_who_drains_waits_for_no_handshake() -> None:
    async with serving_listener(tls=TLS) as served:
        reader, _ = await served.connect()
        await until(lambda: served.listener.links)
        served.listener.drain()

        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_peer_that_vanished_is_found_out_and_its_calls_are_ended() -> None:
    """A node that lost its network sends no FIN: a socket that says nothing and reads nothing."""
    async with serving_listener(WireLimits(idle_s=0.2, answer_s=0.2, tick_s=0.05)) as served:
        reader, _ = await served.connect(first_call_bytes(ECHO))
        await until(lambda: served.opened)
        # Nobody answers the PING.
        await asyncio.wait_for(reader.read(), 10)

        await until(lambda: len(served.ends) >= 1)


async def test_a_peer_that_reads_nothing_is_paused_then_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving_listener(WireLimits(answer_s=0.2, tick_s=0.05)) as served:
        await served.connect(first_call_bytes(FEED) + WIDE_WINDOWS, limit=1_000)
        await until(lambda: served.feeds)
        for _ in range(40):
            served.feeds[0].send(bytes(1_000_000))

        await until(lambda: len(served.ends) >= 1)
    assert "it does not read our replies" in caplog.text
    assert served.listener.budget.used == 0


async def test_rapid_resets_leave_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    # A hundredth of the shipped limit: even a machine that takes seconds over the attack passes it.
    limits = WireLimits(early_resets_per_s=50)
    async with (
        serving_listener(limits) as served,
        grpc.aio.insecure_channel(served.target) as channel,
    ):
        assert [b"before"] == await echo(channel, b"before")
        numbers = range(3, 4_003, 2)
        attack = b"".join(
            request_frame(n, ECHO) + frames.rst_stream(n, Code.CANCEL) for n in numbers
        )
        _, *others = await asyncio.gather(
            exchange(served, first_call_bytes(ECHO) + attack),
            *(echo(channel, b"%d" % n) for n in range(50)),
        )

        assert [[b"%d" % n] for n in range(50)] == others
        assert "a flood of streams that are reset at once" in caplog.text
        assert served.opened < 1_000


async def test_a_flood_of_handshakes_delays_those_of_its_own_address() -> None:
    """1. Forty connections of one address wait for their handshakes, of which two begin in a second.

    2. One of another address comes, and is next.
    """
    async with serving_listener(WireLimits(handshakes=4, handshakes_per_s=2), tls=TLS) as served:
        for _ in range(40):
            _, writer = await served.connect(local_addr=("127.0.0.2", 0))
            writer.write(b"\x16")
        await until(lambda: len(served.listener.links) >= 40)
        waiting = served.listener.waiting
        await asyncio.wait_for(served.connect(ssl=trusting()), 10)

        assert waiting - served.listener.waiting < 30 <= waiting


async def test_silent_connections_delay_no_handshake_not_even_of_their_own_address() -> None:
    limits = WireLimits(handshakes=4, handshakes_per_s=0.01)
    async with serving_listener(limits, tls=TLS) as served:
        for _ in range(40):
            await served.connect()
        await until(lambda: len(served.listener.links) >= 40)
        await asyncio.wait_for(served.connect(ssl=trusting()), 10)

        assert served.listener.waiting == 0


async def test_nothing_is_logged_of_ordinary_calls(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "extproc"):
        async with (
            serving_listener() as served,
            grpc.aio.insecure_channel(served.target) as channel,
        ):
            await echo(channel, b"x")

    assert caplog.records == []


async def test_a_unix_socket_serves_alike_and_leaves_no_file_behind(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/socket"
    async with serving_listener(listen=listen), grpc.aio.insecure_channel(listen) as channel:
        assert [b"x"] == await echo(channel, b"x")
        assert (tmp_path / "socket").is_socket()

    assert not (tmp_path / "socket").exists()


async def test_a_socket_that_somebody_else_bound_since_stays(tmp_path: Path) -> None:
    """A second service took the path over while the first one drained."""
    listen = f"unix:{tmp_path}/socket"
    async with serving_listener(listen=listen) as served:
        served.listener.drain()
        async with serving_listener(listen=listen), grpc.aio.insecure_channel(listen) as channel:
            await served.listener.stop()

            assert [b"x"] == await echo(channel, b"x")


async def test_who_has_ended_while_no_descriptor_was_free_accepts_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. A connection finds no descriptor: later, then. 2. It is over before that. 3. Nothing comes of it."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    [listening] = await bind("127.0.0.1:0")
    acceptor = Acceptor([listening], socket.socket.close)
    acceptor.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listening.getsockname()):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await until(lambda: "no connection can be accepted" in caplog.text, 40.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        acceptor.close()
        await asyncio.sleep(0.3)

    assert faults == []

"""What a NATS server sends is bounded, whoever is in its place."""

import asyncio
from unittest.mock import Mock

import pytest
from nats.aio.client import Client
from nats.errors import ProtocolError

from extproc.router.share.courier import LetterCounts, Receiver
from extproc.router.share.nats import BoundedParser, Nats, NatsAccess
from tests.router.share.gateways import end_task
from tests.tables import table
from tests.waiting import until


@table(
    "said",
    [
        b"MSG s 1 10000000000\r\n",
        b"HMSG s 1 12 1048577\r\n",
        b"MSG " + b"a" * 70_000,
        b"MSG a b " + b" " * 70_000,
        b"a" * 70_000,
    ],
)
async def test_what_no_server_sends_ends_the_connection_and_is_not_kept(said: bytes) -> None:
    parser = BoundedParser(Client())

    with pytest.raises(ProtocolError):
        await parser.parse(said)
    assert len(parser.buf) == 0


async def test_a_flood_of_short_messages_leaves_turns_to_others_and_waits_at_the_server() -> None:
    parser, turns = BoundedParser(Client()), 0
    flood = b"MSG s 1 1\r\nx\r\n" * 20_000

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await parser.parse(flood)
    counting.cancel()

    assert turns >= len(flood) // 2_048
    assert (len(parser.buf), parser.nc.stats["in_msgs"]) == (0, 20_000)


async def test_the_carrier_leaves_a_server_that_announces_too_much_and_comes_again() -> None:
    came = 0

    async def serve_nats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n')
        async for line in reader:
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\nMSG s 1 10000000000\r\n" + bytes(100_000))
        writer.close()

    async with await asyncio.start_server(serve_nats, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        nats = Nats(NatsAccess([f"nats://127.0.0.1:{port}"]), "llm", LetterCounts())
        running = asyncio.create_task(nats.run(Mock(spec_set=Receiver)))
        await until(lambda: came > 1)
        await end_task(running)
        await nats.close()

"""Gateways that share over a mesh of real sockets, and what others make of these."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from random import Random
from time import monotonic

import pytest
import uvloop

from extproc.errors import SettingsError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.prefill_stage import PrefillStage, Transfer
from extproc.router.routing.strategies.base import ClockAndRandom, PeerCounts
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.share.letters import Letter, name_of
from extproc.router.share.sealed import MAX_BYTES, Seal
from tests.router.share.gateways import (
    SECRET,
    ShareGateway,
    all_running,
    meshed,
    rave,
    until_counted,
    until_prompt,
)
from tests.stack.ports import free_ports
from tests.tables import table
from tests.waiting import until

LONG_S = 40.0


def meshed_gateways(count: int) -> list[ShareGateway]:
    ports = free_ports(count)
    return [ShareGateway(1 + place, meshed(port, ports)) for place, port in enumerate(ports)]


@pytest.fixture
async def lone() -> AsyncGenerator[ShareGateway]:
    [gateway] = meshed_gateways(1)
    async with gateway.running():
        yield gateway


@pytest.fixture
async def pair() -> AsyncGenerator[list[ShareGateway]]:
    """Two gateways whose letters come promptly."""
    gateways = meshed_gateways(2)
    async with all_running(gateways):
        await until_prompt(gateways)
        yield gateways


async def test_a_pick_counts_everywhere_until_its_end_or_a_farewell() -> None:
    gateways = meshed_gateways(4)
    async with all_running(gateways):
        await until_prompt(gateways)
        picks = [gateway.pick(str(place)) for place, gateway in enumerate(gateways)]
        await until_counted(gateways, 4)
        assert 1 == len({tuple(sorted(gateway.pool.book.counts().items())) for gateway in gateways})
        for pick in picks[1:]:
            pick.release()
        await until_counted(gateways, 1)
        gone, *others = gateways
        gone.courier.forget("llama")
        await until(lambda: all(other.neighbours == PeerCounts(2, 2, 0) for other in others))
        assert not any(other.pool.book.total for other in others)


async def test_gateways_hear_of_each_others_picks_of_both_stages(pair: list[ShareGateway]) -> None:
    stages = []
    for gateway in pair:
        stages.append(Pool("llama/prefill", PrefixCache(ClockAndRandom(Random(0), monotonic))))
        stages[-1].replace([Endpoint("p", "10.1.0.1:8000")])
        gateway.courier.keep(stages[-1])
        gateway.pool.prefill = PrefillStage(stages[-1], Transfer(overhead_ms=1), gateway.pool)
        for name in gateway.pool.snapshot.names:
            gateway.pool.book.set_peer_count(name, 50)
    shares = [gateway.courier.shares()["llama/prefill"].peers for gateway in pair]
    await until(lambda: all(each.counts.prompt == 1 for each in shares))
    pick = pair[0].pick("word" * 9_000)

    assert pick.prefill is not None
    await until(lambda: [stage.book.total for stage in stages] == [1, 1])
    pick.prefill.release()
    await until(lambda: stages[1].book.total == 0)
    pick.release()


async def test_no_gateway_counts_its_own_letters(pair: list[ShareGateway]) -> None:
    """It is in its own list of peers, too: what comes from itself is closed, and not dialled again."""
    one, other = pair
    received = other.counts["heard"]
    sent = one.counts["sent"]
    await until(lambda: other.counts["heard"] > received + 3)

    assert one.neighbours.active == 1
    assert one.counts["sent"] - sent <= other.counts["heard"] - received + 1


async def test_the_counts_of_one_whose_line_breaks_are_gone(pair: list[ShareGateway]) -> None:
    one, other = pair
    one.pick()
    await until_counted([other], 1)
    began_s = monotonic()
    one.carrier.send = lambda data: None  # type: ignore[method-assign]  # dead, and says no farewell
    await one.carrier.close()

    await until(lambda: other.neighbours.lost == 1)
    assert other.pool.book.total == 0
    # Not by the silence, which is found out with the heartbeat after three seconds: twice that is
    # generous.
    assert monotonic() - began_s < 8


@table(("cluster", "secret"), [("other", SECRET), ("llm", b"another secret, as long")])
async def test_another_installation_is_not_believed(
    pair: list[ShareGateway], cluster: str, secret: bytes
) -> None:
    one, _ = pair
    before = one.counts["foreign"]
    [port] = free_ports(1)
    stranger = ShareGateway(9, meshed(port, [_port(one)]), cluster=cluster, secret=secret)
    async with stranger.running():
        stranger.pick()
        await until(lambda: one.counts["foreign"] >= before + 2)

        assert (0, 1) == (one.pool.book.total, one.neighbours.active)
        assert stranger.neighbours.active == 0


@table(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: extproc\r\n\r\n",
        (1 + MAX_BYTES).to_bytes(4),  # too long
        bytes(4),  # empty
        (13).to_bytes(4) + bytes(13),  # of another version
        b"\xff" * 100_000,
    ],
)
async def test_what_is_no_letter_ends_its_line(lone: ShareGateway, data: bytes) -> None:
    reader, writer = await _dial(lone)
    writer.write(data)

    async with asyncio.timeout(LONG_S):
        assert await _read(reader) == b""
    assert lone.neighbours.active == 0
    writer.close()


async def test_beside_a_mad_peer_the_others_letters_come(pair: list[ShareGateway]) -> None:
    """It has the secret, and sends invented picks as fast as it can. The other's letters still come."""
    one, other = pair
    task = asyncio.create_task(rave(_port(one), one.me))
    try:
        await until(lambda: one.counts["flood"] + one.counts["heard"] > 1_000, LONG_S)
        for _ in range(5):
            pick = other.pick()
            await until_counted([one], 1)
            pick.release()
            await until_counted([one], 0)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_peer_that_does_not_read_keeps_nobody_waiting(pair: list[ShareGateway]) -> None:
    """A tenth of a gigabyte for one that takes nothing: what does not go out at once is dropped."""
    one, other = pair
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        sender = ShareGateway(5, meshed(free_ports(1)[0], [port, _port(one)]))
        async with sender.running():
            await until(lambda: len(sender.carrier.lines) == 2, LONG_S)  # type: ignore[attr-defined]
            for _ in range(1_000):
                sender.carrier.send(bytes(100_000))
            unsent = sender.counts["unsent"]
            assert unsent > 900
            before_s = other.counts["heard"]
            await until(lambda: other.counts["heard"] > before_s)


async def test_silent_connections_keep_no_newcomer_out() -> None:
    """More than there may be lines, which do not go for their silence. Who comes after them is heard."""
    letter = Seal("llm", SECRET, 7).close(Letter(7, name_of("llama"), 1, [], []))
    [port] = free_ports(1)
    lone = ShareGateway(1, meshed(port, [], clock=lambda: 0.0))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(lone.running())
        await until(lambda: _serves(lone), LONG_S)
        for _ in range(600):
            stack.enter_context(socket.create_connection(("127.0.0.1", _port(lone))))
            await asyncio.sleep(0)
        _, writer = await _dial(lone)
        writer.write(len(letter).to_bytes(4) + letter)
        await until(lambda: lone.counts["heard"] >= 1)
        writer.close()


def test_connections_that_are_gone_before_they_are_seen_are_nothing() -> None:
    """On the loop that serves, which knows nothing of who is gone."""
    faults: list[object] = []
    letter = Seal("llm", SECRET, 7).close(Letter(7, name_of("llama"), 1, [], []))

    async def flood() -> None:
        [gateway] = meshed_gateways(1)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with gateway.running():
            await until(lambda: _serves(gateway), LONG_S)
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", _port(gateway))) as gone:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _, writer = await _dial(gateway)
            writer.write(len(letter).to_bytes(4) + letter)
            await until(lambda: gateway.counts["heard"] >= 1, LONG_S)
            writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(flood())

    assert faults == []


async def test_a_port_that_is_taken_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = ShareGateway(1, meshed(taken.getsockname()[1], []))
        with pytest.raises(SettingsError, match=r"share\.mesh\.listen: cannot listen on"):
            await gateway.carrier.open()


async def test_who_has_used_up_its_seal_goes_on_under_another_name() -> None:
    def build_seal(cluster: str, secret: bytes, me: int) -> Seal:
        seal = Seal(cluster, secret, me)
        seal.sent = (1 << 32) - 1_000 if me == 1 else 0
        return seal

    ports = free_ports(2)
    one = ShareGateway(1, meshed(ports[0], ports), later=77, build_seal=build_seal)
    other = ShareGateway(2, meshed(ports[1], ports))
    async with one.running(), other.running():
        await until(lambda: other.courier.shares()["llama"].peers.delays().keys() == {77})
        one.pick()

        await until_counted([other], 1)


def _port(gateway: ShareGateway) -> int:
    return int(gateway.carrier.listen.rpartition(":")[2])  # type: ignore[attr-defined]


async def _dial(gateway: ShareGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", _port(gateway))


async def _serves(gateway: ShareGateway) -> bool:
    try:
        _, writer = await _dial(gateway)
    except ConnectionError:
        return False
    writer.close()
    return True


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""

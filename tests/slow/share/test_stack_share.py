"""Several `extproc serve` that share their picks: real processes, a real mesh, and no Envoy."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import grpc.aio
import pytest

from tests.slow.share.broker import Broker
from tests.slow.share.sharing import LONG_S, Sharing, StreamProxy, build, share_settings, started
from tests.stack.ports import free_ports
from tests.stack.service import Service
from tests.waiting import until


async def until_peers(services: Sequence[Sharing], count: int) -> None:
    """Until each uses the counts of so many others."""
    await until(lambda: all(one.peers() == count for one in services))


async def test_a_killed_gateway_counts_no_more_and_one_that_ends_sends_a_goodbye(
    tmp_path: Path,
) -> None:
    """A process that ends without a word, and with one.

    1. A request in flight at one of four counts at all of them. 2. That one is killed: it counts
       nowhere, and
    the others know that one is lost. 3. It is back: they are four again. 4. It is told to
    end: nobody is lost.
    """
    with ExitStack() as stack:
        four = started(build(tmp_path, 4), stack)
        await until_peers(four, 3)
        proxy = StreamProxy(four)
        killed, *others = four
        with suppress(grpc.aio.AioRpcError):  # the killed one's stream
            async with proxy.asking(0, ["hello"]):
                await until(lambda: all(service.in_flight() == 1 for service in others))
                killed.kill()
                await until(lambda: not any(service.in_flight() for service in others))
        await proxy.close()
        assert [1, 1, 1] == [service.peers("lost") for service in others]
        killed.start()
        await until_peers(others, 3)
        assert [0, 0, 0] == [service.peers("lost") for service in others]
        await asyncio.to_thread(killed.wait_until, killed.is_ready, LONG_S)
        killed.send(signal.SIGTERM)
        assert killed.wait(LONG_S) == 0
        await until(lambda: all((one.peers(), one.peers("lost")) == (2, 0) for one in others))
        [shown] = others[0].pools()
        assert (2, 2) == (shown["share"]["heard"], shown["share"]["prompt"])


async def next_turns(
    services: Sequence[Service], place: int, chats: list[list[str]], last: list[str]
) -> int:
    """Each chat has one more turn at one gateway; returns how many went where the turn before went."""
    proxy, hits = StreamProxy(services), 0
    for number, texts in enumerate(chats):
        texts.append(f"question {number} " + "words " * 200)
        async with proxy.asking(place, texts) as endpoint:
            hits += endpoint == last[number]
        last[number] = endpoint
        texts.append(f"answer {number} " + "words " * 100)
    await proxy.close()
    return hits


@pytest.mark.parametrize("carrier", ["mesh", "nats"])
async def test_a_gateway_that_is_started_again_hits_as_often_as_before(
    tmp_path: Path, carrier: str
) -> None:
    """It learns from what the other one sends.

    1. Chats begin at one of two, and go on at the other. 2. The first one is killed, and comes
       back. 3. They
    go on at the other, then at the first, and find their endpoints as before.
    """
    two = build(tmp_path / "two", 2)
    [port] = free_ports(1)
    with ExitStack() as stack:
        if carrier == "nats":
            stack.enter_context(broker := Broker(tmp_path, port))
            broker.wait_until(broker.is_ready, LONG_S)
            for service in two:
                access = {"user": "gateway", "password": {"env": "PASSWORD"}}
                service.share(
                    **share_settings(nats={"servers": [f"nats://127.0.0.1:{port}"], **access})
                )
        started(two, stack)
        await until_peers(two, 1)
        chats: list[list[str]] = [[] for _ in range(30)]
        last = ["" for _ in chats]
        await next_turns(two, 0, chats, last)
        await asyncio.sleep(0.1)
        before = await next_turns(two, 1, chats, last)
        killed = two[0]
        killed.kill()
        killed.start()
        await asyncio.to_thread(killed.wait_until, killed.is_ready, LONG_S)
        await until_peers(two, 1)
        await next_turns(two, 1, chats, last)
        await asyncio.sleep(0.1)
        after = await next_turns(two, 0, chats, last)

    print(f"{carrier}: of {len(chats)} later turns {before} hit before, {after} after")  # noqa: T201
    assert after >= before - 1 >= 27


async def test_a_gateway_hears_of_both_stages_of_another_ones_request(tmp_path: Path) -> None:
    """A prompt that one of two sends away counts at both its endpoints, until its sender is killed."""
    stage = {"endpoints": {"static": ["10.1.0.1:8000", "10.1.0.2:8000"]}, "gbit_per_s": 1_000}
    with ExitStack() as stack:
        two = started(build(tmp_path, 2, prefill=stage), stack)
        await until_peers(two, 2)  # one for each stage
        sender, other = two
        proxy = StreamProxy(two)
        with suppress(grpc.aio.AioRpcError):  # the killed one's streams
            async with AsyncExitStack() as streams:
                for number in range(60):
                    await streams.enter_async_context(proxy.asking(0, [f"stream {number}"]))
                await streams.enter_async_context(proxy.asking(0, ["words " * 20_000]))
                reason = {"pool": "vllm", "reason": "remote_prefill"}
                assert sender.metric("extproc_picks_total", **reason) == 1
                await until(lambda: [other.in_flight(0), other.in_flight(1)] == [61, 1])
                sender.kill()
                await until(lambda: [other.in_flight(0), other.in_flight(1)] == [0, 0])
        await proxy.close()

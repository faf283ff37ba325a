"""Letters and news between workers, over real socket pairs."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.router.feedback.outcome import Exchange, Outcome, Verdict
from extproc.router.service.siblings import Gone, Judged, Logged, News, OnTrial, Settled
from extproc.router.share.courier import Tally
from extproc.router.workers.links import Links

OUTCOME = Outcome("llama", "10.0.0.1:8000", Verdict.FAILED, 500, 0.25, 0.1)
EXCHANGE = Exchange(
    "llama", "10.0.0.1:8000", 200, 1.5, destinations=["a", "b"], first_token_s=0.25, ticket=2**64 - 63
)


class Receiver:
    """Each letter is of the sender that its first byte says."""

    def __init__(self) -> None:
        self.letters: list[bytes] = []
        self.lost: list[int] = []

    def take(self, data: bytes) -> int | None:
        self.letters.append(data)
        return data[0]

    def lose(self, sender: int) -> None:
        self.lost.append(sender)


class Worker:
    """One end."""

    def __init__(self, lane: int) -> None:
        self.tally = Tally()
        self.links = Links(lane, 64, self.tally)
        self.receiver = Receiver()
        self.news: list[tuple[int, News]] = []
        self.links.listen(lambda lane, news: self.news.append((lane, news)))


@asynccontextmanager
async def linked(count: int) -> AsyncIterator[list[Worker]]:
    workers = [Worker(lane) for lane in range(count)]
    for one in workers:
        for other in workers[: one.links.lane]:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.links.add(other.links.lane, ends[0])
            other.links.add(one.links.lane, ends[1])
    tasks = [asyncio.create_task(worker.links.run(worker.receiver)) for worker in workers]
    await asyncio.sleep(0)
    try:
        yield workers
    finally:
        for worker, task in zip(workers, tasks, strict=True):
            task.cancel()
            await worker.links.close()


async def settled() -> None:
    """Lets the loop read what was sent: packets of a socket pair are there at once."""
    for _ in range(5):
        await asyncio.sleep(0.001)


async def test_letters_go_to_all_others_whole_and_in_order() -> None:
    letters = [b"\x07" + bytes([number]) * size for number, size in enumerate((1, 1_000, 131_071))]
    async with linked(3) as (one, *others):
        for letter in letters:
            one.links.send(letter)
        await settled()

        assert [letters, letters] == [other.receiver.letters for other in others]
        assert one.receiver.letters == []
        assert one.tally.counts["sent"] == 6


async def test_news_go_to_all_or_to_one_as_they_were() -> None:
    told: list[News] = [Judged("llama", OUTCOME), OnTrial("llama", "pod-1"), Logged("llama")]
    async with linked(3) as (one, two, three):
        for news in told:
            one.links.tell(news)
        one.links.tell_one(2, Settled(EXCHANGE))
        one.links.tell_one(9, Settled(EXCHANGE))
        await settled()

        assert [(0, news) for news in told] == two.news
        assert [(0, news) for news in (*told, Settled(EXCHANGE))] == three.news


async def test_who_is_gone_is_lost_at_once() -> None:
    async with linked(3) as (one, two, three):
        one.links.send(b"\x07")
        await settled()
        await one.links.close()
        await settled()

        assert [[7], [7]] == [two.receiver.lost, three.receiver.lost]
        assert [[(0, Gone())], [(0, Gone())]] == [two.news, three.news]
        assert [[2], [1]] == [[*two.links.others()], [*three.links.others()]]
        two.links.send(b"\x08")
        await settled()
        assert [b"\x07", b"\x08"] == three.receiver.letters


async def test_who_reads_nothing_keeps_nobody_waiting() -> None:
    """What finds no room is dropped, and the others get theirs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    async with linked(2) as (one, two):
        one.links.add(5, ours)
        for _ in range(200):
            one.links.send(b"\x07" * 100_000)
            await asyncio.sleep(0)
        await settled()

        assert len(two.receiver.letters) == 200
        assert 0 < one.tally.counts["unsent"] < 200
    theirs.close()


async def test_bytes_that_are_no_news_are_nothing() -> None:
    async with linked(1) as (one,):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.links.add(1, ours)
        for junk in (b"N", b"Nnonsense", b"N\x91\xc0", b"?"):
            theirs.send(junk)
        await settled()

        assert one.news == []
        theirs.close()

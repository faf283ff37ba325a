"""When a list or a watch that failed is tried again."""

import asyncio
from random import Random

import pytest

from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.kube_api import read_retry_after
from tests.hosting import Handler
from tests.router.cluster.api_server import ApiServer, refuses, serving_api, stream_chunks
from tests.router.cluster.harness import Kube, has
from tests.router.cluster.objects import A, B, C, slice_object
from tests.tables import table


@pytest.mark.slow
async def test_an_outage_keeps_the_pool_and_backs_off(kube: Kube) -> None:
    second = ApiServer()
    async with serving_api(second):
        port = int(second.url.rpartition(":")[2])
        second.put(slice_object("s1", A, B))
        kube.server.url = second.url
        source = kube.build()
        task = asyncio.create_task(source.run(kube.sink))
        await kube.until(lambda _: second.watchers)
    await kube.until(lambda _: len(kube.delays) > 50)

    assert [[e.name for e in listed] for listed in kube.sink.lists] == [["default/a", "default/b"]]
    assert max(kube.delays) <= 30
    assert max(kube.delays[:30]) <= 2
    assert max(kube.delays[36:]) > 10
    assert all(delay <= 0.5 * 2**number for number, delay in enumerate(kube.delays))

    async with serving_api(second, port):
        second.put(slice_object("s2", C))
        await kube.until(has("a", "b", "c"))
        task.cancel()


async def test_back_off_starts_over_once_a_watch_has_sent_something(kube: Kube) -> None:
    kube.server.answer_next("list", *[refuses(500)] * 10)
    async with kube.watching():
        kube.server.bookmark()
        await kube.until(lambda sink: sink.confirmed_total)
        kube.server.end_watches()
        await kube.until(lambda _: len(kube.delays) >= 11)

    assert max(kube.delays[:10]) > 0.5
    assert kube.delays[10] <= 0.5


@pytest.mark.parametrize(
    ("answer", "lists", "waits_at_once", "reason"),
    [
        (stream_chunks(), 1, True, None),
        (refuses(403), 40, True, "403: scripted"),
        (refuses(410), 40, False, None),
    ],
    ids=["ends every watch", "a Role without the verb watch", "calls every version expired"],
)
async def test_a_server_whose_watches_all_fail_is_backed_off_from(
    kube: Kube, answer: Handler, *, lists: int, waits_at_once: bool, reason: str | None
) -> None:
    """A list that works says nothing of watches; an expired version costs no wait, once."""
    kube.server.answer_next("watch", *[answer] * 40)
    async with kube.running():
        await kube.until(lambda _: len(kube.delays) >= 40)

    assert len(kube.server.lists) in range(lists, lists + 2)
    assert 1 < max(kube.delays[:30]) <= 2
    assert max(kube.delays) > 4
    assert (kube.delays[0] > 0, all(kube.delays[1:])) == (waits_at_once, True)
    assert kube.sink.reasons[0] == reason


async def test_a_list_that_worked_starts_the_back_off_of_lists_over(kube: Kube) -> None:
    kube.server.answer_next("list", *[refuses(500)] * 10)
    kube.server.answer_next("watch", refuses(500))
    async with kube.running():
        await kube.until(lambda _: len(kube.delays) >= 11)
        kube.server.answer_next("list", refuses(500))
        await kube.until_watched()

    assert max(kube.delays[:10]) > 0.5
    assert max(kube.delays[10:]) <= 0.5


@pytest.mark.parametrize("call", ["list", "watch"])
@pytest.mark.parametrize("code", [429, 503])
async def test_a_server_says_when_to_come_back(kube: Kube, *, call: str, code: int) -> None:
    kube.server.answer_next(call, refuses(code, "7"))
    async with kube.running():
        await kube.until_watched()

    [delay_s] = kube.delays
    assert 7 <= delay_s <= 7 * 1.25


@table(
    ("text", "read_s"),
    [
        *(("1", 1), ("120", 120), ("999999999", 120)),
        *(
            (text, None)
            for text in ("0", "", "-1", "1.5", "²", "9" * 5_000, "Wed, 21 Oct 2026 07:28:00 GMT")
        ),
    ],
)
def test_a_retry_after_is_whole_seconds_and_no_more_than_two_minutes(
    text: str, read_s: int | None
) -> None:
    assert read_retry_after(text) == read_s


async def test_a_long_quiet_watch_counts_as_a_good_one_and_confirms_the_list(kube: Kube) -> None:
    now_s = iter(range(0, 100_000, 240))
    kube.server.answer_next("watch", *[stream_chunks()] * 12)
    async with kube.running(clock=lambda: next(now_s)):
        await kube.until(lambda _: len(kube.delays) >= 12)

    assert max(kube.delays) <= 0.5
    assert kube.sink.confirmed_total >= 12


class Highest(Random):
    """Draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def test_the_bound_doubles_up_to_the_cap_the_first_tries_are_eager_and_reset_starts_over() -> None:
    plain, eager = Backoff(Highest()), Backoff(Highest(), early_cap_s=2, early_tries=5)

    assert [plain.next_s() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [eager.next_s() for _ in range(10)] == [0.5, 1, 2, 2, 2, 4, 8, 16, 30, 30]
    for backoff in (plain, eager):
        backoff.reset()
    assert [plain.next_s() for _ in range(4)] == [0.5, 1, 2, 4]
    assert [eager.next_s() for _ in range(4)] == [0.5, 1, 2, 2]


def test_delays_are_spread_over_the_whole_bound() -> None:
    backoff = Backoff(Random(7), base_s=10, cap_s=10)
    delays = sorted(backoff.next_s() for _ in range(1_000))

    assert delays[0] < 0.1
    assert delays[-1] > 9.9
    assert delays[500] == pytest.approx(5, abs=0.5)

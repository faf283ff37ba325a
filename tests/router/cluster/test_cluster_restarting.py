"""A source that raises, ends or is cancelled from within is run again."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from extproc.errors import ExtprocError
from extproc.router.cluster.restarting import Restarting
from extproc.router.cluster.source import Sink, StaticSource
from extproc.router.routing.endpoint import Endpoint
from tests.router.cluster.harness import RecordingSink, running_source


class Source:
    """Does one thing per run; after the last it stays."""

    def __init__(self, *ends: Callable[[], None]) -> None:
        self._ends = iter(ends)
        self.runs = 0

    def __repr__(self) -> str:
        return "<Source>"

    async def run(self, _: Sink) -> None:
        self.runs += 1
        end = next(self._ends, None)
        if end is None:
            await asyncio.Event().wait()
        elif end is not returns:
            end()


def returns() -> None:
    pass


def fails(error: BaseException) -> Callable[[], None]:
    def end() -> None:
        raise error

    return end


class Naps:
    """Sleeps that are short and remembered, on a clock that the test moves."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.now_s = 0.0

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now_s


SECRET = "Bearer eyJhbGciOiJSUzI1NiJ9"  # nobody's


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (fails(ValueError(SECRET)), "ValueError at test_cluster_restarting.py:"),
        (fails(ExceptionGroup("tasks", [KeyError(SECRET)])), "KeyError"),
        (fails(asyncio.CancelledError(SECRET)), "CancelledError at test_cluster_restarting.py:"),
        (fails(MemoryError()), "MemoryError at test_cluster_restarting.py:"),
        (fails(OSError(24, "Too many open files")), "OSError: [Errno 24] Too many open files"),
        (fails(ExtprocError("in our\nown words")), "in our own words"),
        (fails(ExtprocError("x" * 1_000)), "x" * 299 + "…"),
        (returns, "the source ended by itself"),
    ],
    ids=["error", "group", "cancelled from within", "memory", "system", "ours", "long", "ends"],
)
async def test_a_source_is_always_run_again(
    sink: RecordingSink, end: Callable[[], None], reason: str
) -> None:
    source, naps = Source(end, end), Naps()
    async with running_source(
        Restarting(source, rng=Random(7), clock=naps.clock, sleep=naps.sleep), sink
    ):
        await sink.until(lambda _: source.runs >= 3)

    assert sink.restarts == ["internal", "internal"]
    assert all(text and text.startswith(reason) and "eyJ" not in text for text in sink.reasons)
    assert len(naps.delays) == 2


async def test_a_source_that_fails_at_once_is_backed_off_from_not_one_that_lived(
    sink: RecordingSink,
) -> None:
    naps = Naps()

    def lives() -> None:
        naps.now_s += 31
        raise ValueError

    source = Source(*[fails(ValueError())] * 20, *[lives] * 5)
    async with running_source(
        Restarting(source, rng=Random(7), clock=naps.clock, sleep=naps.sleep), sink
    ):
        await sink.until(lambda _: source.runs >= 26)

    assert max(naps.delays[:20]) > 10
    assert max(naps.delays[20:]) <= 0.5


async def test_cancelling_it_ends_it(sink: RecordingSink) -> None:
    source = Source()
    task = asyncio.create_task(Restarting(source, rng=Random(7)).run(sink))
    await sink.until(lambda _: source.runs)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.restarts == []


async def test_a_static_source_sends_its_list_once_and_then_confirms_it(
    sink: RecordingSink,
) -> None:
    endpoints = [Endpoint("a", "10.0.0.1:8000"), Endpoint("b", "10.0.0.2:8000")]
    async with running_source(StaticSource(endpoints, confirm_s=0.001), sink):
        await sink.until(lambda sink: sink.confirmed_total >= 3)

    assert (sink.lists, sink.restarts) == ([endpoints], [])

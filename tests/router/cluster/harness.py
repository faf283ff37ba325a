"""What the tests of every source share: a sink that remembers, and a source run for a while."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from extproc.router.cluster.kube_api import Patience
from extproc.router.cluster.source import Source
from extproc.router.routing.endpoint import Endpoint
from tests.router.cluster.api_server import ApiServer
from tests.waiting import LIMIT_S, until

PATIENT = Patience()
IMPATIENT = Patience(answer_s=0.5, silence_s=0.5)
BuildSource = Callable[..., Source]


class RecordingSink:
    """A pool's end of the seam that records every call."""

    def __init__(self) -> None:
        self.lists: list[list[Endpoint]] = []
        self.confirmed_total = 0
        self.restarts: list[str] = []
        self.reasons: list[str | None] = []
        self.lacking: list[tuple[str, str]] = []

    @property
    def names(self) -> list[str]:
        return [endpoint.name for endpoint in self.lists[-1]] if self.lists else []

    @property
    def addresses(self) -> list[str]:
        return [endpoint.address for endpoint in self.lists[-1]] if self.lists else []

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        self.lists.append(list(endpoints))

    def confirm(self, age_s: float = 0.0) -> None:
        self.confirmed_total += 1

    def restarted(self, why: str, reason: str | None = None) -> None:
        self.restarts.append(why)
        self.reasons.append(reason)

    def lacks(self, why: str, reason: str, has_list: bool = False) -> None:
        self.lacking.append((why, reason))

    async def until(
        self, claim: Callable[["RecordingSink"], object], limit_s: float = LIMIT_S
    ) -> None:
        await until(lambda: claim(self), lambda: vars(self), limit_s)


@asynccontextmanager
async def running_source(source: Source, sink: RecordingSink) -> AsyncIterator[asyncio.Task[None]]:
    """Runs `source` in the background; a source that ends by itself fails the test."""
    task = asyncio.create_task(source.run(sink))
    try:
        yield task
        assert not task.done(), "the source ended by itself"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def has(*names: str) -> Callable[[RecordingSink], bool]:
    return lambda sink: sink.names == [f"default/{name}" for name in names]


@dataclass
class Kube:
    """A scripted API server, and a source that follows it.

    `delays` are the back-offs that it chose; the sleeps themselves are short. `token` is the file
    of its credential.
    """

    server: ApiServer
    build: BuildSource
    sink: RecordingSink
    delays: list[float]
    token: Path

    def running(self, **options: object) -> AbstractAsyncContextManager[object]:
        return running_source(self.build(**options), self.sink)

    @asynccontextmanager
    async def watching(self, **options: object) -> AsyncIterator[None]:
        """The source runs, and watches every kind of which there are objects."""
        async with self.running(**options):
            await self.until_watched()
            yield

    async def until_watched(self, *kinds: str) -> None:
        kinds = kinds or tuple(
            kind for kind, known in self.server.collections.items() if known.objects
        )
        await self.until(lambda _: all(self.server.of(kind).watchers for kind in kinds))

    async def until(self, claim: Callable[[RecordingSink], object]) -> None:
        await self.sink.until(claim)

"""A pool's endpoints as they stand in the configuration."""

import asyncio
from collections.abc import Sequence

from extproc.router.cluster.source import Sink
from extproc.router.routing.endpoint import Endpoint


class StaticSource:
    """Tells one list, once, and confirms it every `confirm_s`: what is configured is never stale."""

    def __init__(self, endpoints: Sequence[Endpoint], *, confirm_s: float = 5.0) -> None:
        self._endpoints = tuple(endpoints)
        self._confirm_s = confirm_s

    def __repr__(self) -> str:
        return f"<StaticSource endpoints={len(self._endpoints)}>"

    async def run(self, sink: Sink) -> None:
        sink.replace(self._endpoints)
        while True:
            await asyncio.sleep(self._confirm_s)
            sink.confirm()

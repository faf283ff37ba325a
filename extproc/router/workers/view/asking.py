"""Asks workers over the unix sockets of their admin ports. One that does not answer in time is left out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter

# Workers answer in some milliseconds, and Prometheus waits for ten seconds.
ANSWER_S: Final = 2.0
# Why a worker is left out of what is told of all.
FAULTS: Final = ("timeout", "connection", "garbled")


class Told(Struct, frozen=True):
    """What a worker answered."""

    status: int
    content_type: str
    body: bytes


class Workers:
    """The workers that live now, as `live` tells; each is known by its socket's name."""

    def __init__(
        self,
        live: Callable[[], Sequence[Path]],
        registry: CollectorRegistry,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._live = live
        self._answer_s = answer_s
        self._silent: set[str] = set()
        text = "Times that a worker was left out, since it did not answer in time or not well."
        self._faults = Counter("extproc_worker_faults_total", text, ["why"], registry=registry)
        for why in FAULTS:
            self._faults.labels(why)

    def __repr__(self) -> str:
        return f"<Workers {', '.join(self.sockets())}>"

    def sockets(self) -> Mapping[str, Path]:
        """Those that live, by name."""
        return {path.stem: path for path in self._live()}

    def garbled(self) -> None:
        """Counts an answer that cannot be read."""
        self._faults.labels("garbled").inc()

    async def ask(
        self,
        worker: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Told | None:
        """Posts `body` if there is one, else gets; returns `None` where there is no answer in time."""
        socket = self.sockets().get(worker)
        if socket is None:
            return None
        method = "GET" if body is None else "POST"
        try:
            async with (
                _session(socket, self._answer_s) as session,
                session.request(method, path, data=body, headers=headers) as answer,
            ):
                told = Told(answer.status, answer.headers.get("content-type", ""), await answer.read())
                self._silent.discard(worker)
                return told
        except TimeoutError:
            self._faults.labels("timeout").inc()
        except (aiohttp.ClientError, OSError):
            self._faults.labels("connection").inc()
        self._silent.add(worker)
        return None

    async def ask_all(self, path: str, headers: Mapping[str, str] | None = None) -> dict[str, Told]:
        """Asks all at once; returns what those that answer with 200 told."""
        workers = [*self.sockets()]
        told = await asyncio.gather(*(self.ask(worker, path, headers=headers) for worker in workers))
        return {worker: one for worker, one in zip(workers, told, strict=True) if one and one.status == 200}

    async def ask_any(
        self, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Told | None:
        """Asks one after the other until one answers, whatever it says; who did not answer last, last."""
        for worker in sorted(self.sockets(), key=self._silent.__contains__):
            told = await self.ask(worker, path, body=body, headers=headers)
            if told is not None:
                return told
        return None


@asynccontextmanager
async def _session(socket: Path, answer_s: float) -> AsyncGenerator[aiohttp.ClientSession]:
    # A connection each time: a worker may be another process than a moment ago.
    connector = aiohttp.UnixConnector(str(socket), force_close=True)
    timeout = aiohttp.ClientTimeout(total=answer_s)
    async with aiohttp.ClientSession(
        "http://worker",
        connector=connector,
        timeout=timeout,
        # An explained request has the headers that it came with.
        skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
    ) as session:
        yield session

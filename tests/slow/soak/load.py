"""Clients: conversations whose turns go to any gateway, whole and as streams; some leave before the end."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import time
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import orjson
from xxhash import xxh3_64_hexdigest

from tests.slow.soak.books import ClientEntry, End
from tests.stack.client import CHAT, chat_body

THINK_S: Final = 1.0
LEAVING: Final = 0.06
STREAMS: Final = 0.6
_DONE: Final = b"data: [DONE]\n\n"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60)


class SoakLoad:
    """`users` at a time, each with one conversation after the other; `asked` grows."""

    def __init__(self, urls: Sequence[str], users: int, seed: int) -> None:
        self._urls = urls
        self._users = users
        self._rng = random.Random(seed)
        self._sessions: list[aiohttp.ClientSession] = []
        self._number = 0
        self._is_over = asyncio.Event()
        self.asked: list[ClientEntry] = []
        self.ends: Counter[str] = Counter()
        self.open = 0
        self.faults: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Asks while the context lasts, then lets everybody finish."""
        async with AsyncExitStack() as stack:
            self._sessions = [await stack.enter_async_context(_connect(url)) for url in self._urls]
            tasks = [asyncio.create_task(self._use()) for _ in range(self._users)]
            try:
                yield
            finally:
                self._is_over.set()
                await asyncio.gather(*tasks)

    async def _use(self) -> None:
        await self._pause(self._rng.uniform(0, THINK_S))
        while not self._is_over.is_set():
            chat: list[dict[str, str]] = []
            for _ in range(self._rng.randint(1, 8)):
                chat.append({"role": "user", "content": self._write()})
                chat.append({"role": "assistant", "content": await self._turn(chat)})
                await self._pause(self._rng.expovariate(1 / THINK_S))
                if self._is_over.is_set():
                    return

    async def _pause(self, seconds: float) -> None:
        """Sleeps, not beyond the end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), seconds)

    def _write(self) -> str:
        return f"question {self._rng.random()} " + "some words " * self._rng.randint(5, 60)

    async def _turn(self, chat: Sequence[dict[str, str]]) -> str:
        """Asks; returns the answer's text, empty if there is none."""
        self._number += 1
        gateway, name = self._rng.randrange(len(self._sessions)), f"request-{self._number}"
        is_stream = self._rng.random() < STREAMS
        tokens = self._rng.randint(4, 48)
        leaves_s = self._rng.uniform(0, 0.6) if self._rng.random() < LEAVING else None
        body = chat_body(chat, max_tokens=tokens, stream=is_stream, ignore_eos=True)
        began_s, sent = time(), SimpleNamespace(is_sent=False)
        self.open += 1
        end, status, text = await self._send(gateway, name, body, leaves_s, sent)
        self.open -= 1
        self.ends[end] += 1
        self.asked.append(ClientEntry(name, gateway, began_s, time(), end, status))
        return text

    async def _send(
        self, gateway: int, name: str, body: bytes, leaves_s: float | None, sent: SimpleNamespace
    ) -> tuple[End, int, str]:
        headers = {"content-type": "application/json", "x-request-id": name}
        post = self._sessions[gateway].post(
            CHAT, data=body, headers=headers, trace_request_ctx=sent
        )
        try:
            async with asyncio.timeout(leaves_s), post as answer:
                data = await answer.read()
                self._check(name, body, answer)
                text = _text(data, answer)
                return (End.BROKEN if text is None else End.WHOLE), answer.status, text or ""
        except aiohttp.ClientConnectorError:
            return End.REFUSED, 0, ""
        except aiohttp.ClientError:
            return End.BROKEN, 0, ""
        except TimeoutError:
            if leaves_s is None:
                self.faults.append(f"{name} had no answer in {_TIMEOUT.total} s")
            return (End.LEFT if sent.is_sent else End.UNHEARD), 0, ""

    def _check(self, name: str, body: bytes, answer: aiohttp.ClientResponse) -> None:
        arrived = answer.headers.get("x-simulated-body-xxh3")
        if arrived not in {None, xxh3_64_hexdigest(body)}:
            self.faults.append(f"{name} did not arrive as it was sent")


def _text(data: bytes, answer: aiohttp.ClientResponse) -> str | None:
    """Returns the text of an answer, `None` if it is not whole."""
    if answer.status != 200:
        return ""
    if not answer.content_type.startswith("text/event-stream"):
        return str(orjson.loads(data)["choices"][0]["message"]["content"])
    if not data.endswith(_DONE):
        return None
    lines = [line.removeprefix(b"data: ") for line in data.removesuffix(_DONE).splitlines() if line]
    return "".join(_content(orjson.loads(line)) for line in lines)


def _content(chunk: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


@asynccontextmanager
async def _connect(url: str) -> AsyncGenerator[aiohttp.ClientSession]:
    """A session that says whether anything of a request was sent."""

    async def note(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.is_sent = True

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(note)
    options: Any = {"timeout": _TIMEOUT, "trace_configs": [trace]}
    async with aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), **options
    ) as session:
        yield session

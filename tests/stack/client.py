"""What a client of the gateway does: chats, streams, goes away."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp
import orjson

CHAT = "/v1/chat/completions"
MODEL = "simulated"
# Bodies of every size that Envoy treats in another way.
SIZES = (0, 1, 61_000, 62_001, 1_000_000, 10_000_000)
# Larger ones are read from a file, as aiohttp recommends.
_SEND_WHOLE = 1_000_000
_WAIT = aiohttp.ClientTimeout(total=150)  # some are held while others are asked one by one


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `served_by` is the endpoint's `ip:port` as Envoy sends it, empty for Envoy's own."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def served_by(self) -> str:
        return self.headers.get("x-served-by", "")

    @property
    def error(self) -> Any:
        return orjson.loads(self.body)["error"]

    @property
    def cached_tokens(self) -> int:
        details = orjson.loads(self.body)["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"]) if details else 0


@asynccontextmanager
async def connect(url: str) -> AsyncGenerator[aiohttp.ClientSession]:
    """Yields a session with as many connections as it likes."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=_WAIT) as session:
        yield session


def chat_body(
    messages: Iterable[dict[str, str]], *, max_tokens: int = 4, stream: bool = False, **fields: Any
) -> bytes:
    body = {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "stream": stream,
        **fields,
    }
    return orjson.dumps(body)


def chat_about(text: str, **fields: Any) -> bytes:
    """Returns the body of a chat with one user message."""
    return chat_body([{"role": "user", "content": text}], **fields)


def chat_of_size(size_bytes: int) -> bytes:
    """Returns a chat of exactly this size, or as many bytes that are none."""
    empty = len(chat_about(""))
    return chat_about("m" * (size_bytes - empty)) if size_bytes > empty else b"1" * size_bytes


async def send(
    session: aiohttp.ClientSession,
    body: bytes,
    *,
    path: str = CHAT,
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> Answer:
    """Sends one request and reads the whole answer."""
    fields = {"content-type": "application/json", **(headers or {})}
    data = body if len(body) < _SEND_WHOLE else BytesIO(body)
    async with session.request(method, path, data=data, headers=fields) as answer:
        return Answer(
            answer.status, await answer.read(), {k.lower(): v for k, v in answer.headers.items()}
        )


class Chat:
    """A chat of several turns: each repeats everything said before."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._messages: list[dict[str, str]] = []
        self.answers: list[Answer] = []

    async def take_turn(self, session: aiohttp.ClientSession) -> Answer:
        turn = len(self.answers)
        text = f"conversation {self._number}, turn {turn}: " + f"word{self._number} " * 40
        self._messages.append({"role": "user", "content": text})
        answer = await send(session, chat_body(self._messages))
        self.answers.append(answer)
        if answer.status == 200:
            reply = orjson.loads(answer.body)["choices"][0]["message"]
            self._messages.append({"role": "assistant", "content": reply["content"]})
        return answer

    @property
    def endpoints(self) -> Counter[str]:
        return Counter(answer.served_by for answer in self.answers)


def send_all(
    session: aiohttp.ClientSession, about: str, count: int
) -> list["asyncio.Task[Answer]"]:
    """Begins so many chats side by side, each with a text of its own."""
    bodies = [chat_about(f"{about} {number}") for number in range(count)]
    return [asyncio.create_task(send(session, body)) for body in bodies]


def statuses(answers: Sequence[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


def servers(answers: Sequence[Answer]) -> Counter[str]:
    """Who answered, each of them well."""
    assert statuses(answers) == {200: len(answers)}
    return Counter(answer.served_by for answer in answers)


async def servers_by_text(session: aiohttp.ClientSession, texts: Sequence[str]) -> dict[str, str]:
    """Asks once per text, one after the other; returns who answered."""
    answers = [await send(session, chat_about(text)) for text in texts]
    assert statuses(answers) == {200: len(texts)}
    return {text: answer.served_by for text, answer in zip(texts, answers, strict=True)}

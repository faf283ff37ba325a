"""How a request shows who asks: a key from the environment, or a token that changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from extproc.bench.record import Clock
from extproc.bench.spec.tree import Target
from extproc.errors import ExtprocError

# After a refusal a new token is asked for, but no sooner than this after the last one: every request of a
# load may be refused at once.
_PAUSE_S = 1.0


class NoToken(ExtprocError):
    """There is no token to send."""


class Keys(Protocol):
    """Where requests take their key from."""

    async def get(self) -> str | None:
        """Returns the key for a request that is sent now; raises `NoToken`."""
        ...

    def refuse(self) -> None:
        """Tells that the server did not take the key."""
        ...


class FixedKey:
    """One key for the whole run, or none."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    async def get(self) -> str | None:
        return self._key

    def refuse(self) -> None:
        pass


Fetch = Callable[[], Any]
"""Returns an awaitable of a new token; raises `NoToken`."""


class ChangingToken:
    """A token that is fetched again every `every_s`, and after a refusal; many requests wait for one fetch.

    While a new one cannot be had, the old one is kept.
    """

    def __init__(self, fetch: Fetch, every_s: float, clock: Clock) -> None:
        self._fetch, self._every_s, self._clock = fetch, every_s, clock
        self._token: str | None = None
        self._fetched_s = self._due_s = -1e300
        self._lock = asyncio.Lock()

    async def get(self) -> str | None:
        if self._clock() >= self._due_s:
            async with self._lock:
                if self._clock() >= self._due_s:
                    await self._renew()
        return self._token

    async def _renew(self) -> None:
        try:
            self._token = await self._fetch()
        except NoToken:
            if self._token is None:
                raise
        self._fetched_s = self._clock()
        self._due_s = self._fetched_s + self._every_s

    def refuse(self) -> None:
        self._due_s = min(self._due_s, self._fetched_s + _PAUSE_S)


def open_keys(target: Target, api_key: str | None, clock: Clock) -> Keys:
    """Returns what a target says its requests are to show."""
    if target.token_file is not None:
        path = target.token_file
        return ChangingToken(lambda: asyncio.to_thread(_read_token, path), target.token_refresh, clock)
    return FixedKey(api_key)


def _read_token(path: Path) -> str:
    try:
        return _check_token(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None


def _check_token(text: str, source: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise NoToken(f"{source}: no token in it")
    return token

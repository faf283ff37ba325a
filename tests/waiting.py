"""How tests wait: for a fact, never for a time.

A limit here says when something is broken, not how fast it should be: it is generous, so that a
busy machine fails nothing. What a test says about speed it says by counting.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final

LIMIT_S: Final = 60.0
_PAUSE_S: Final = 0.01
_LONGEST: Final = 2_000


async def until(
    claim: Callable[[], object | Awaitable[object]], what: object = "", limit_s: float = LIMIT_S
) -> None:
    """Return once `claim()` is true (a coroutine is awaited first); after `limit_s` fail with `what`.

    `what` may be a callable: it is called only for the failure's text, of which 2,000 characters
    are shown.
    """
    give_up_s = time.monotonic() + limit_s
    while True:
        result = claim()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return
        if time.monotonic() > give_up_s:
            raise AssertionError(_describe(what, limit_s))
        await asyncio.sleep(_PAUSE_S)


def wait_until(claim: Callable[[], object], what: object = "", limit_s: float = LIMIT_S) -> None:
    """The same for tests without an event loop."""
    give_up_s = time.monotonic() + limit_s
    while not claim():
        if time.monotonic() > give_up_s:
            raise AssertionError(_describe(what, limit_s))
        time.sleep(_PAUSE_S)


def _describe(what: object, limit_s: float) -> str:
    text = str(what() if callable(what) else what)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text):,} characters)"
    return f"not true after {limit_s:g} s: {text}" if text else f"not true after {limit_s:g} s"

"""The pictures of a running service, as they come over its admin port."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import aiohttp
from msgspec import DecodeError
from msgspec.json import Decoder

from extproc.errors import ExtprocError
from extproc.router.service.live.picture import Picture

_AGAIN_S: Final = 1.0
_SILENT_S: Final = 10.0


async def watch(url: str, connector: aiohttp.BaseConnector | None = None) -> AsyncGenerator[Picture]:
    """Yields pictures for ever; a service that goes is waited for. Raises where there never was one."""
    is_known = False
    timeout = aiohttp.ClientTimeout(total=None, connect=_SILENT_S, sock_read=_SILENT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        while True:
            try:
                async with session.get(f"{url.rstrip('/')}/live") as answer:
                    await _check(answer, url)
                    async with aclosing(_pictures(answer)) as pictures:
                        async for picture in pictures:
                            is_known = True
                            yield picture
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if not is_known:
                    raise ExtprocError(f"{url}: {str(error) or 'no answer'}") from None
            await asyncio.sleep(_AGAIN_S)


async def _check(answer: aiohttp.ClientResponse, url: str) -> None:
    if answer.status != 200 or answer.content_type != "text/event-stream":
        text = (await answer.text())[:200].strip()
        raise ExtprocError(f"{url} has nothing to watch: {answer.status} {text}")


async def _pictures(answer: aiohttp.ClientResponse) -> AsyncGenerator[Picture]:
    decoder, rest = Decoder(Picture), b""
    async for data in answer.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            # Others have a name, and a line for it.
            if event.startswith(b"data: "):
                try:
                    yield decoder.decode(event[6:])
                except DecodeError as error:
                    raise ExtprocError(f"another version of the service: {error}") from None

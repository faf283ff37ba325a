"""A pool's endpoints from a watched YAML file.

The last good list stays through every fault: a missing file, a half-written one, a wrong one.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from watchfiles import awatch

from extproc.documents import Document, parse_document
from extproc.errors import AddressError, SettingsError
from extproc.router.cluster.reason import shorten
from extproc.router.cluster.source import Sink
from extproc.router.routing.endpoint import Endpoint, check_name, join_address


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    address: str
    port: int
    name: Annotated[str, Field(min_length=1)] | None = None


_rows = TypeAdapter(list[_Row])


class FileSource:
    """Tells the list in the file at `path` again whenever its content changes.

    A change is noticed through the file's directory, so a rename over the file and the swapped link
    of a mounted ConfigMap count too; a re-read every `poll_s` finds what the directory does not
    show (a link into another directory, a network file system). A file that is being written is not
    taken: `port: 80` may be going to be `port: 8000`. It must read the same after `quiet_s`.
    """

    def __init__(self, path: str | Path, *, poll_s: float = 5.0, quiet_s: float = 0.2) -> None:
        self._path = Path(path)
        self._poll_s = poll_s
        self._quiet_s = quiet_s
        self._good: bytes | None = None
        self._fault: str | None = None

    async def run(self, sink: Sink) -> None:
        self._good = self._fault = None
        await self._refresh(sink)
        async with aclosing(wakeups(self._path.parent, poll_s=self._poll_s)) as ticks:
            async for _ in ticks:
                await self._refresh(sink)

    async def _refresh(self, sink: Sink) -> None:
        try:
            content = await self._read_settled()
            if content == self._good:
                sink.confirm()
            else:
                sink.replace(parse_endpoints(content, str(self._path)))
        except OSError as error:
            self._refuse(
                sink, "file_unreadable", f"{self._path}: {error.strerror or type(error).__name__}"
            )
        except SettingsError as error:
            self._refuse(sink, "file_invalid", str(error))
        else:
            self._good, self._fault = content, None

    async def _read_settled(self) -> bytes:
        """Reads until two reads, a quiet moment apart, agree; an unchanged file needs no second one."""
        content = await asyncio.to_thread(self._path.read_bytes)
        while content != self._good:
            before = content
            await asyncio.sleep(self._quiet_s)
            content = await asyncio.to_thread(self._path.read_bytes)
            if content == before:
                break
        return content

    def _refuse(self, sink: Sink, why: str, fault: str) -> None:
        reason = shorten(fault)
        if fault == self._fault:
            # The same fault at every poll is one fault.
            sink.lacks(why, reason)
        else:
            self._fault = fault
            sink.restarted(why, reason)


def parse_endpoints(content: bytes, where: str = "endpoints") -> list[Endpoint]:
    """Reads a YAML list of `{address, port, name?}`; an endpoint without a name is named by its address.

    Raises `SettingsError` that names the faulty entry and its line. An empty file is a fault, since
    that is what a file looks like between truncation and writing; no endpoints on purpose is the
    list `[]`.
    """
    document = parse_document(content, where)
    rows = document.validate(_rows.validate_python)
    endpoints = [_endpoint(document, index, row) for index, row in enumerate(rows)]
    _refuse_repeats(document, "name", [endpoint.name for endpoint in endpoints])
    _refuse_repeats(document, "address", [endpoint.address for endpoint in endpoints])
    return endpoints


def _endpoint(document: Document, index: int, row: _Row) -> Endpoint:
    try:
        address = join_address(row.address, row.port)
        return Endpoint(name=check_name(row.name or address), address=address)
    except AddressError as error:
        raise SettingsError(f"{document.at((index,))}: {index}: {error}") from None


def _refuse_repeats(document: Document, noun: str, values: list[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise SettingsError(f"{document.at((index,))}: {noun} given twice: {value}")
        seen.add(value)


async def wakeups(directory: Path, *, poll_s: float) -> AsyncGenerator[None]:
    """Yields soon after a change in `directory`, and at least every `poll_s`, whatever happens to it."""
    while True:
        try:
            changes = awatch(
                directory,
                watch_filter=None,
                recursive=False,
                rust_timeout=int(poll_s * 1000),
                yield_on_timeout=True,
            )
            async with aclosing(changes):
                async for _ in changes:
                    yield
        except OSError:
            # The directory is gone, or the limit of inotify watches is reached: polling is left.
            await asyncio.sleep(poll_s)
            yield

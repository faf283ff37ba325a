"""A pool's endpoints from a watched YAML file.

The last good list stays through every fault: a missing file, a half-written one, a wrong one.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from watchfiles import awatch

from extproc.cluster.reason import shorten
from extproc.cluster.source import Sink
from extproc.errors import AddressError, SettingsError
from extproc.routing.endpoint import Endpoint, join_address


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    address: str
    port: int
    name: Annotated[str, Field(min_length=1)] | None = None


_rows = TypeAdapter(list[_Row])


class FileSource:
    """Tells the list in the file at `path` again whenever its content changes.

    A change is noticed through the file's directory, so a rename over the file and the swapped link of
    a mounted ConfigMap count too; a re-read every `poll_s` finds what the directory does not show
    (a link into another directory, a network file system).
    """

    def __init__(self, path: str | Path, *, poll_s: float = 5.0) -> None:
        self._path = Path(path)
        self._poll_s = poll_s
        self._good: bytes | None = None
        self._fault: str | None = None

    def __repr__(self) -> str:
        return f"<FileSource path={str(self._path)!r}>"

    async def run(self, sink: Sink) -> None:
        self._good = self._fault = None
        await self._refresh(sink)
        async with aclosing(wakeups(self._path.parent, poll_s=self._poll_s)) as ticks:
            async for _ in ticks:
                await self._refresh(sink)

    async def _refresh(self, sink: Sink) -> None:
        try:
            content = await asyncio.to_thread(self._path.read_bytes)
            if content == self._good:
                sink.confirm()
            else:
                sink.replace(parse_endpoints(content))
        except OSError as error:
            self._refuse(sink, "file_unreadable", error.strerror or type(error).__name__)
        except SettingsError as error:
            self._refuse(sink, "file_invalid", str(error))
        else:
            self._good, self._fault = content, None

    def _refuse(self, sink: Sink, why: str, fault: str) -> None:
        reason = shorten(f"{self._path}: {fault}")
        if fault == self._fault:
            # The same fault at every poll is one fault.
            sink.lacks(why, reason)
        else:
            self._fault = fault
            sink.restarted(why, reason)


def parse_endpoints(content: bytes) -> list[Endpoint]:
    """Reads a YAML list of `{address, port, name?}`; an endpoint without a name is named by its address.

    Raises `SettingsError` that names the faulty entry. An empty file is a fault, since that is what
    a file looks like between truncation and writing; no endpoints on purpose is the list `[]`.
    """
    try:
        rows = _rows.validate_python(yaml.safe_load(content))
        endpoints = [_endpoint(row) for row in rows]
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"not YAML: {error}") from None
    except ValidationError as error:
        raise SettingsError(
            "; ".join(_describe(fault["loc"], fault["msg"]) for fault in error.errors())
        ) from None
    except AddressError as error:
        raise SettingsError(str(error)) from None
    except ValueError as error:
        # YAML's own dates and numbers, half of which are none: 2026-13-45.
        raise SettingsError(f"not YAML: {error}") from None
    _refuse_repeats("name", [endpoint.name for endpoint in endpoints])
    _refuse_repeats("address", [endpoint.address for endpoint in endpoints])
    return endpoints


def _endpoint(row: _Row) -> Endpoint:
    address = join_address(row.address, row.port)
    return Endpoint(name=row.name or address, address=address)


def _refuse_repeats(noun: str, values: list[str]) -> None:
    if repeated := sorted(value for value, count in Counter(values).items() if count > 1):
        raise SettingsError(f"{noun} given twice: {', '.join(repeated)}")


def _describe(location: tuple[int | str, ...], message: str) -> str:
    where = ".".join(str(part) for part in location)
    return f"{where}: {message}" if where else message


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

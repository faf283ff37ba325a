"""Options that several commands of `extproc bench` share."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from extproc.bench.datasets.dataset_cache import DatasetCache
from extproc.bench.progress import run_until_signal
from extproc.bench.status_server import StatusServer, split_location

_T = TypeVar("_T")


brief_option = click.option(
    "--brief",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write verdict and headline figures here.",
)


board_option = click.option(
    "--board", metavar="HOST:PORT", help="Tell here how far it is, and which arm the router is to have."
)


shelf_option = click.option(
    "--datasets",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Prepared datasets are here, or kept here; of several folders the last one keeps.",
)


def read_cache(folders: tuple[Path, ...]) -> DatasetCache | None:
    return DatasetCache(folders) if folders else None


def run_with_status(
    address: str | None, work: Callable[[asyncio.Event, StatusServer | None], Awaitable[_T]]
) -> _T:
    """Runs `work` until it is told to end, with a board that is served where `address` says."""

    async def show(stop: asyncio.Event) -> _T:
        if address is None:
            return await work(stop, None)
        board = StatusServer()
        async with board.serving(*split_location(address)):
            return await work(stop, board)

    return run_until_signal(show)

"""Options that several commands of `extproc bench` share."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from extproc.bench.board import Board, split_location
from extproc.bench.datasets.shelf import Shelf
from extproc.bench.progress import until_told

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


def read_shelf(folders: tuple[Path, ...]) -> Shelf | None:
    return Shelf(folders) if folders else None


def until_told_on(address: str | None, work: Callable[[asyncio.Event, Board | None], Awaitable[_T]]) -> _T:
    """Runs `work` until it is told to end, with a board that is served where `address` says."""

    async def show(stop: asyncio.Event) -> _T:
        if address is None:
            return await work(stop, None)
        board = Board()
        async with board.serving(*split_location(address)):
            return await work(stop, board)

    return until_told(show)

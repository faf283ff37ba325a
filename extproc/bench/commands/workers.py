"""Load from several machines: `extproc bench worker` on each, and what a leader is told besides a spec."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from extproc.bench.board import Board, split_location
from extproc.bench.datasets.shelf import Shelf
from extproc.bench.load.crew import Crew
from extproc.bench.load.worker import serve_worker
from extproc.bench.progress import until_told
from extproc.bench.spec.section import parse_duration
from extproc.documents import read_file
from extproc.errors import SettingsError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# A token that can be guessed is none.
_SHORTEST_TOKEN = 16
_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., None])


@click.command("worker")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9200", show_default=True, help="Where.")
@click.option("--token-file", type=_FILE, help="What a leader must know; needed beyond loopback.")
def worker_command(listen: str, token_file: Path | None) -> None:
    """Offer load for `bench run --workers` elsewhere, one run at a time, until SIGTERM or SIGINT."""
    host, port = split_location(listen)
    token = _read_token(token_file)
    click.echo(f"worker at {listen}{'' if token else ', without a token'}", err=True)
    until_told(lambda stop: serve_worker(host, port, token, stop))


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


def crew_options(command: _Command) -> _Command:
    """Adds the options that `read_crew` takes."""
    for option in (
        click.option(
            "--workers-within", default="30s", show_default=True, help="How long to wait for the workers."
        ),
        click.option("--workers-token", type=_FILE, help="File with the token that the workers want."),
        click.option("--workers", metavar="HOST:PORT,…", help="Offer the load from these workers instead."),
    ):
        command = option(command)
    return command


def read_crew(workers: str | None, workers_token: Path | None, workers_within: str) -> Crew | None:
    """Returns the workers of a run, `None` where it is this machine's alone."""
    if workers is None:
        return None
    try:
        ready_within_s = float(str(parse_duration(workers_within)))
    except ValueError as error:
        raise SettingsError(f"--workers-within: {error}") from None
    named = tuple(split_location(worker) for worker in workers.split(","))
    if len(set(named)) < len(named):
        raise SettingsError("--workers: a worker is given twice")
    return Crew(named, _read_token(workers_token), ready_within_s)


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    token = read_file(path).decode(errors="replace").strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise SettingsError(f"{path}: a token is {_SHORTEST_TOKEN} or more printable ASCII characters")
    return token

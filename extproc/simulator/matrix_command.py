"""`extproc simulate matrix`."""

import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import click

from extproc import __version__
from extproc.simulator.engine.profiles import DEFAULT_PROFILE
from extproc.simulator.fleet.bus import BusFault
from extproc.simulator.fleet.changes import SCENARIOS
from extproc.simulator.fleet.matrix import Matrix, Row, render_rows, run_matrix
from extproc.simulator.fleet.progress import ProgressLine
from extproc.simulator.fleet.report import write_csv
from extproc.simulator.fleet_options import (
    LETTERS,
    LOSS,
    POSITIVE,
    RATE,
    SECONDS,
    SHARE_DELAY,
    SHARE_FAULT,
    SHARE_LOSS,
    Seeds,
    arms_option,
    check_workloads,
    csv_option,
    measured_option,
    warmup_option,
    write_file,
)


@click.command
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@arms_option
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=["sessions"],
    show_default=True,
    callback=check_workloads,
    help=f"Names or letters: {LETTERS}.",
)
@click.option("--load", "loads", type=RATE, multiple=True, default=[0.4, 0.75], show_default=True)
@click.option("--endpoints", type=POSITIVE, multiple=True, default=[8], show_default=True)
@click.option("--gateways", type=POSITIVE, multiple=True, default=[1], show_default=True)
@click.option(
    "--share-delay",
    "share_delays_ms",
    type=SECONDS,
    multiple=True,
    default=[None],
    metavar="MS",
    help=SHARE_DELAY,
)
@click.option("--share-loss", "share_losses", type=LOSS, multiple=True, default=[0.0], help=SHARE_LOSS)
@click.option(
    "--share-fault",
    "share_faults",
    type=click.Choice(BusFault, case_sensitive=False),
    multiple=True,
    default=[BusFault.NONE],
    help=SHARE_FAULT,
)
@click.option("--scenario", "scenarios", type=click.Choice([*SCENARIOS]), multiple=True, default=["plain"])
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=[DEFAULT_PROFILE],
    show_default=True,
)
@click.option("--seeds", type=Seeds(), default="11-13", show_default=True)
@warmup_option
@measured_option
@click.option("--workers", type=POSITIVE, help="Processes. [default: one per core]")
@csv_option
def matrix(
    folder: Path,
    *,
    workers: int | None,
    csv_path: Path | None,
    **axes: Any,
) -> None:
    """Simulate every combination, on all cores, and keep the figures in FOLDER.

    What FOLDER has is not run again: a command that was stopped continues, and one with more arms, loads or
    seeds adds to it.
    """
    cells = [*Matrix(**axes).cells()]
    progress = ProgressLine(1.0, sys.stderr, monotonic)
    rows = run_matrix(
        cells,
        folder,
        workers or os.cpu_count() or 1,
        lambda share, row: progress.show(share, _name(row)),
        __version__,
    )
    progress.close()
    click.echo(render_rows(rows), nl=False)
    write_file(csv_path, write_csv(rows).encode())


def _name(row: Row) -> str:
    named = ("workload", "load", "endpoints", "gateways", "scenario", "seed", "arm")
    return " ".join(str(row[name]) for name in named)

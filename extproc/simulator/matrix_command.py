"""`extproc simulate matrix`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import click

from extproc import __version__
from extproc.simulator.engine.profiles import DEFAULT_PROFILE
from extproc.simulator.fleet.bus import Fault
from extproc.simulator.fleet.duels import duels, render_duels
from extproc.simulator.fleet.gateway import Spread
from extproc.simulator.fleet.matrix import Matrix, render_rows, run_matrix
from extproc.simulator.fleet.progress import ProgressLine
from extproc.simulator.fleet.report import write_csv
from extproc.simulator.fleet.report_page import fleet_page
from extproc.simulator.fleet.rows import Row
from extproc.simulator.fleet.scenarios import SCENARIOS
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
    against_option,
    arms_option,
    check_workloads,
    html_option,
    measured_option,
    warmup_option,
    write,
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
    "--spread",
    "spreads",
    type=click.Choice(Spread, case_sensitive=False),
    multiple=True,
    default=[Spread.RANDOM],
)
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
    type=click.Choice(Fault, case_sensitive=False),
    multiple=True,
    default=[Fault.NONE],
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
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="A line per run.")
@html_option
@against_option
def matrix(
    folder: Path,
    *,
    workers: int | None,
    csv_path: Path | None,
    html_path: Path | None,
    against: Sequence[str],
    **axes: Any,
) -> None:
    """Simulate every combination, on all cores, and keep the figures in FOLDER.

    What FOLDER has is not run again: the same command goes on after it was stopped, and a command with
    more arms, loads or seeds adds to what is there.
    """
    cells = [*Matrix(**axes).cells()]
    progress = ProgressLine(1.0, sys.stderr, monotonic)
    rows = run_matrix(
        cells,
        folder,
        workers or os.cpu_count() or 1,
        lambda share, row: progress.tell(share, _name(row)),
        __version__,
    )
    progress.close()
    found = duels(rows, against or axes["arms"][:1])
    click.echo(f"{render_rows(rows)}\n{render_duels(found)}", nl=False)
    if csv_path is not None:
        write(csv_path, write_csv(rows).encode())
    write(html_path or folder / "report.html", fleet_page(rows, found).encode())


def _name(row: Row) -> str:
    named = ("workload", "load", "endpoints", "gateways", "scenario", "seed", "arm")
    return " ".join(str(row[name]) for name in named)

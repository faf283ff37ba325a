"""`extproc simulate prefill`."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import click

from extproc.simulator.fleet.split_table import LOADS, arms, render_split, run_split
from extproc.simulator.fleet_commands import POSITIVE, RATE, SECONDS


@click.command
@click.option(
    "--workload",
    "loads",
    type=click.Choice([*LOADS]),
    multiple=True,
    default=[*LOADS],
    show_default=True,
    help="What eight engines are asked.",
)
@click.option(
    "--prefill",
    "prefills",
    type=click.IntRange(1, 7),
    multiple=True,
    default=[2, 4, 6],
    show_default=True,
    help="How many of them only prefill.",
)
@click.option("--warmup-s", type=SECONDS, default=60.0, show_default=True, help="Time before it.")
@click.option("--measured-s", type=RATE, default=60.0, show_default=True, help="Time measured.")
@click.option("--seed", type=click.INT, default=0, show_default=True)
@click.option("--workers", type=POSITIVE, help="Processes. [default: one per core]")
def prefill(
    *,
    loads: Sequence[str],
    prefills: Sequence[int],
    warmup_s: float,
    measured_s: float,
    seed: int,
    workers: int | None,
) -> None:
    """Simulate eight engines together, and with some that only prefill, by several rules."""
    cells = [(load, count, rule) for load in loads for count, rule in arms(prefills)]
    with ProcessPoolExecutor(workers or os.cpu_count() or 1) as pool:
        runs = [
            pool.submit(run_split, *cell, (warmup_s, warmup_s + measured_s), seed) for cell in cells
        ]
        click.echo(render_split([run.result() for run in runs]), nl=False)

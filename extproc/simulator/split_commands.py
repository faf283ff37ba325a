"""`extproc simulate prefill`."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import click

from extproc.simulator.fleet.split_table import LOADS, arms, render_split, run_split
from extproc.simulator.fleet_commands import RATE


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
@click.option(
    "--measured-s",
    type=RATE,
    default=60.0,
    show_default=True,
    help="Time measured, after as much to warm up.",
)
def prefill(*, loads: Sequence[str], prefills: Sequence[int], measured_s: float) -> None:
    """Simulate engines that only prefill."""
    cells = [(load, count, rule) for load in loads for count, rule in arms(prefills)]
    with ProcessPoolExecutor() as pool:
        runs = [pool.submit(run_split, *cell, (measured_s, 2 * measured_s)) for cell in cells]
        click.echo(render_split([run.result() for run in runs]), nl=False)

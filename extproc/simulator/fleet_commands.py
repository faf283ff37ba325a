"""`extproc simulate fleet`."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import click
import orjson
from click.core import ParameterSource

from extproc import __version__
from extproc.simulator.engine.profiles import DEFAULT_PROFILE, find_profile
from extproc.simulator.fleet import autoscaler, seed_preset, spike
from extproc.simulator.fleet.autoscaler import parse_scaling
from extproc.simulator.fleet.bus import Fault
from extproc.simulator.fleet.cell import Cell
from extproc.simulator.fleet.change import SYNTAX
from extproc.simulator.fleet.duels import duels, render_duels
from extproc.simulator.fleet.export import export_run
from extproc.simulator.fleet.gateway import Spread
from extproc.simulator.fleet.progress import ProgressLine
from extproc.simulator.fleet.report import flatten, render, write_csv
from extproc.simulator.fleet.report_page import fleet_page
from extproc.simulator.fleet.rows import row_of
from extproc.simulator.fleet.scenarios import SCENARIOS
from extproc.simulator.fleet.spike import parse_spike
from extproc.simulator.fleet.summary import Summary
from extproc.simulator.fleet.trace import read_trace
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
    check_names,
    check_workloads,
    html_option,
    measured_option,
    warmup_option,
    write,
)

_NO_SCALER: Final = "none"
_BESIDE_PRESET: Final = {"preset", "profiles", "seeds", "json_path", "csv_path"}
_check_scalings = check_names("check_scalings", lambda text: text == _NO_SCALER or parse_scaling(text))
_check_spike = check_names("check_spike", lambda text: not text or parse_spike(text))


@click.command
@click.option("--preset", type=click.Choice(["seed-000"]), help="KubeAI's 8 x L4 benchmark, all 12 cells.")
@click.option(
    "--workload",
    default="sessions",
    show_default=True,
    callback=check_workloads,
    help=f"A name or a letter: {LETTERS}.",
)
@click.option(
    "--load",
    "loads",
    type=RATE,
    multiple=True,
    help="Share of the workload's capacity; each one is a run. [default: 0.75]",
)
@click.option("--rate", type=RATE, help="Requests per second instead.")
@click.option("--users", type=POSITIVE, help="Closed loop instead: so many sessions at a time.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Instead: a trace in Mooncake's format.")
@click.option("--trace-speed", type=RATE, default=1.0, show_default=True, help="Times as fast.")
@click.option("--requests", type=POSITIVE, help="So many instead of a measured time.")
@click.option("--think-s", type=SECONDS, help="Mean pause before a next turn. [default: the workload's]")
@click.option("--endpoints", type=POSITIVE, default=8, show_default=True)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=[DEFAULT_PROFILE],
    show_default=True,
    help="A profile's name or YAML file; several are given to the endpoints in turns.",
)
@arms_option
@click.option("--gateways", type=POSITIVE, default=1, show_default=True, help="Independent pickers.")
@click.option(
    "--spread", type=click.Choice(Spread, case_sensitive=False), default=Spread.RANDOM, show_default=True
)
@click.option("--share-delay", "share_delay_ms", type=SECONDS, metavar="MS", help=SHARE_DELAY)
@click.option("--share-loss", type=LOSS, default=0.0, show_default=True, help=SHARE_LOSS)
@click.option(
    "--share-fault",
    type=click.Choice(Fault, case_sensitive=False),
    default=Fault.NONE,
    show_default=True,
    help=SHARE_FAULT,
)
@click.option("--signal-delay-s", type=SECONDS, default=0.0, help="How late gateways hear of an end.")
@click.option("--discovery-delay-s", type=SECONDS, default=0.0, help="How late they hear of endpoints.")
@click.option("--cap", type=POSITIVE, help="Most requests in flight.")
@click.option("--ceiling", type=RATE, help="Most requests per second that the client's one core can do.")
@click.option("--scenario", type=click.Choice([*SCENARIOS]), default="plain", show_default=True)
@click.option("--change", "changes", multiple=True, metavar=SYNTAX, help="What happens to an endpoint.")
@click.option(
    "--spike",
    default="",
    callback=_check_spike,
    metavar=spike.SYNTAX,
    help="For a while so many times the load; seconds from the start of the run, warm-up included.",
)
@click.option(
    "--autoscale",
    "scalings",
    multiple=True,
    default=[_NO_SCALER],
    callback=_check_scalings,
    metavar=autoscaler.SYNTAX,
    help=f"Kubernetes' HPA by {', '.join(autoscaler.Metric)}; each one is a run, {_NO_SCALER} too.",
)
@click.option(
    "--slo-ttft-s",
    type=RATE,
    default=1.0,
    show_default=True,
    help="With a spike or an autoscaler: a second is missed in which more than 5 % wait longer.",
)
@warmup_option
@measured_option
@click.option("--seed", "seeds", type=Seeds(), default="0", show_default=True, help="3, 1,5 or 1-8.")
@click.option("--ideals/--no-ideals", default=True, help="What ideal caches would have had.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="All figures and all settings.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="A line per run.")
@click.option(
    "--export",
    "export_path",
    type=click.Path(path_type=Path),
    help="The first run's sessions as a dataset (`prepared`) for `extproc bench`.",
)
@html_option
@against_option
def fleet(
    *,
    preset: str | None,
    seeds: Sequence[int],
    ideals: bool,
    json_path: Path | None,
    csv_path: Path | None,
    export_path: Path | None,
    html_path: Path | None,
    against: Sequence[str],
    **asked: Any,
) -> None:
    """Simulate a fleet of endpoints behind the picker, in virtual time."""
    profiles = asked["profiles"]
    if preset:
        _refuse_others(click.get_current_context())
        _print_preset(profiles, seeds, json_path, csv_path)
        return
    cells = _cells(seeds=seeds, **asked)
    runs = [*zip(cells, _run(cells, with_ideals=ideals), strict=True)]
    # Runs at different loads are no rivals.
    for load in dict.fromkeys(cell.load for cell in cells):
        click.echo(render([summary for cell, summary in runs if cell.load == load]), nl=False)
    rows = [row_of(cell, summary, __version__) for cell, summary in runs]
    found = duels(rows, against or [cells[0].label])
    click.echo(render_duels(found) if len(seeds) > 1 or against else "", nl=False)
    write(html_path, fleet_page(rows, found).encode())
    write(json_path, _tell_all(profiles, runs))
    write(csv_path, write_csv([flatten(summary) for _, summary in runs]).encode())
    if export_path is not None:
        write(export_path, export_run(cells[0].simulate()))


def _cells(
    *,
    loads: Sequence[float],
    seeds: Sequence[int],
    arms: Sequence[str],
    scalings: Sequence[str],
    **asked: Any,
) -> list[Cell]:
    """What is asked for, run by run."""
    trace = asked["trace"]
    others = (asked["rate"], asked["users"], trace)
    if bool(loads) + sum(value is not None for value in others) > 1:
        raise click.UsageError("--load, --rate, --users and --trace say the same thing: give one.")
    if not any(value is not None for value in others):
        loads = loads or (0.75,)
    if trace is not None:
        asked |= {"workload": "trace", "trace_xxh3": read_trace(trace).digest}
    asked |= {name: tuple(asked[name]) for name in ("profiles", "changes")}
    return [
        Cell(arm=arm, seed=seed, load=load, autoscale="" if scaling == _NO_SCALER else scaling, **asked)
        for load in loads or (None,)
        for seed in seeds
        for arm in arms
        for scaling in scalings
    ]


def _tell_all(profiles: Sequence[str], runs: Sequence[tuple[Cell, Summary]]) -> bytes:
    told = [{"cell": cell, "figures": summary, "warnings": summary.warnings} for cell, summary in runs]
    known = {name: find_profile(name) for name in profiles}
    return _encode({"version": __version__, "profiles": known, "runs": told})


def _refuse_others(context: click.Context) -> None:
    """What a preset settles cannot be asked for beside it."""
    given = [
        option
        for option in context.command.params
        if option.name not in _BESIDE_PRESET
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"--preset settles {given[0].opts[0]}: give one of the two.")


def _run(cells: Sequence[Cell], *, with_ideals: bool) -> list[Summary]:
    """One after the other, and tells how far it is."""
    total = sum(cell.requests_about for cell in cells)
    progress, done = ProgressLine(total, sys.stderr, monotonic), 0
    found: list[Summary] = []
    for cell in cells:
        what = f"{cell.label}, seed {cell.seed}"
        watch = partial(_tell, progress, done, cell.requests_about, what)
        found.append(cell.run(with_ideals=with_ideals, watch=watch))
        done += cell.requests_about
        progress.tell(done, what)
    progress.close()
    return found


def _tell(progress: ProgressLine, before: int, size: int, what: str, share: float) -> None:
    progress.tell(before + share * size, what)


def _print_preset(
    names: Sequence[str], seeds: Sequence[int], json_path: Path | None, csv_path: Path | None
) -> None:
    profile = find_profile(seed_preset.PROFILE if names == (DEFAULT_PROFILE,) else names[0])
    click.echo(f"KubeAI's published 8 x L4 benchmark; profile {profile.name}: {profile.note}")
    click.echo(seed_preset.NOTE)
    cells = [
        cell
        for has_ceiling in (True, False)
        for seed in seeds
        for cell in seed_preset.simulate_cells(profile, seed, has_ceiling=has_ceiling)
    ]
    click.echo(seed_preset.render_cells(cells), nl=False)
    write(json_path, _encode(cells))
    write(csv_path, write_csv(seed_preset.list_rows(cells)).encode())


def _encode(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)

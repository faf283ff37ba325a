"""`extproc simulate fleet` and `extproc simulate matrix`."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import click
import orjson
from click.core import ParameterSource

from extproc import __version__
from extproc.errors import SettingsError
from extproc.vllm.fleet import autoscaler, seed_preset, spike
from extproc.vllm.fleet.arms import parse_arm
from extproc.vllm.fleet.autoscaler import parse_scaling
from extproc.vllm.fleet.bus import Fault
from extproc.vllm.fleet.cell import Cell
from extproc.vllm.fleet.change import SYNTAX
from extproc.vllm.fleet.duels import duels, render_duels
from extproc.vllm.fleet.export import export_run
from extproc.vllm.fleet.gateway import Spread
from extproc.vllm.fleet.matrix import Matrix, render_rows, run_matrix
from extproc.vllm.fleet.progress import ProgressLine
from extproc.vllm.fleet.report import flatten, render, write_csv
from extproc.vllm.fleet.report_page import fleet_page
from extproc.vllm.fleet.rows import Row, row_of
from extproc.vllm.fleet.scenarios import SCENARIOS
from extproc.vllm.fleet.spike import parse_spike
from extproc.vllm.fleet.summary import Summary
from extproc.vllm.fleet.trace import read_trace
from extproc.vllm.fleet.workloads import WORKLOADS, find_workload
from extproc.vllm.peers.registry import PEERS
from extproc.vllm.profiles import DEFAULT_PROFILE, find_profile

_ARMS: Final = ("round_robin", "least_load", "prefix_hash")


class _Number(click.FloatRange):
    """A range that takes no NaN and no infinity, which compare with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number to count with.", param, ctx)
        return number


class _Seeds(click.ParamType[Sequence[int]]):
    """`3`, `1,5` or `1-8`."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Sequence[int]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            return [seed for part in value.split(",") for seed in _range(part)]
        except ValueError:
            self.fail(f"{value!r}: write 3, 1,5 or 1-8.", param, ctx)


def _range(text: str) -> Sequence[int]:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _check_names(name: str, check: Callable[[str], object]) -> Callable[..., Sequence[str] | str]:
    """Returns a callback for one name or several, which says what is wrong with one."""

    def callback(
        _ctx: click.Context, _param: click.Parameter, asked: Sequence[str] | str
    ) -> Sequence[str] | str:
        for value in (asked,) if isinstance(asked, str) else asked:
            try:
                check(value)
            except SettingsError as fault:
                raise click.BadParameter(str(fault)) from None
        return asked

    callback.__name__ = name
    return callback


_POSITIVE = click.IntRange(1)
_SECONDS = _Number(0)
_RATE = _Number(0, min_open=True)
_LOSS = _Number(0, 1)
_LETTERS: Final = ", ".join(f"{one.letter} {one.name}" for one in WORKLOADS.values())
_check_workloads = _check_names("check_workloads", find_workload)
_check_arms = _check_names("check_arms", parse_arm)
_NO_SCALER: Final = "none"
_BESIDE_PRESET: Final = {"preset", "profiles", "seeds", "json_path", "csv_path"}
_check_scalings = _check_names("check_scalings", lambda text: text == _NO_SCALER or parse_scaling(text))
_check_spike = _check_names("check_spike", lambda text: not text or parse_spike(text))

_arms = click.option(
    "--arm",
    "arms",
    multiple=True,
    default=_ARMS,
    show_default=True,
    callback=_check_arms,
    metavar="NAME[:OPTION=VALUE,…]",
    help=f"A strategy with its settings, or a peer: {', '.join(PEERS)}. All get the same arrivals.",
)
_html = click.option("--html", "html_path", type=click.Path(path_type=Path), help="A page with plots.")
_against = click.option(
    "--against",
    multiple=True,
    metavar="ARM",
    help="Whom to compare the others with: the better of these. [default: the first arm]",
)
_SHARE_DELAY: Final = "Gateways tell each other their picks, so late. [default: they do not]"
_SHARE_LOSS: Final = "Share of what they tell that never comes."
_SHARE_FAULT: Final = "What is wrong with the way between them."
_warmup = click.option("--warmup-s", type=_SECONDS, help="Not measured. [default: the workload's]")
_measured = click.option("--measured-s", type=_RATE, help="Measured after that. [default: the workload's]")


@click.command
@click.option("--preset", type=click.Choice(["seed-000"]), help="KubeAI's 8 x L4 benchmark, all 12 cells.")
@click.option(
    "--workload",
    default="sessions",
    show_default=True,
    callback=_check_workloads,
    help=f"A name or a letter: {_LETTERS}.",
)
@click.option(
    "--load",
    "loads",
    type=_RATE,
    multiple=True,
    help="Share of the workload's capacity; each one is a run. [default: 0.75]",
)
@click.option("--rate", type=_RATE, help="Requests per second instead.")
@click.option("--users", type=_POSITIVE, help="Closed loop instead: so many sessions at a time.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Instead: a trace in Mooncake's format.")
@click.option("--trace-speed", type=_RATE, default=1.0, show_default=True, help="Times as fast.")
@click.option("--requests", type=_POSITIVE, help="So many instead of a measured time.")
@click.option("--think-s", type=_SECONDS, help="Mean pause before a next turn. [default: the workload's]")
@click.option("--endpoints", type=_POSITIVE, default=8, show_default=True)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=[DEFAULT_PROFILE],
    show_default=True,
    help="A profile's name or YAML file; several are given to the endpoints in turns.",
)
@_arms
@click.option("--gateways", type=_POSITIVE, default=1, show_default=True, help="Independent pickers.")
@click.option(
    "--spread", type=click.Choice(Spread, case_sensitive=False), default=Spread.RANDOM, show_default=True
)
@click.option("--share-delay", "share_delay_ms", type=_SECONDS, metavar="MS", help=_SHARE_DELAY)
@click.option("--share-loss", type=_LOSS, default=0.0, show_default=True, help=_SHARE_LOSS)
@click.option(
    "--share-fault",
    type=click.Choice(Fault, case_sensitive=False),
    default=Fault.NONE,
    show_default=True,
    help=_SHARE_FAULT,
)
@click.option("--signal-delay-s", type=_SECONDS, default=0.0, help="How late gateways hear of an end.")
@click.option("--discovery-delay-s", type=_SECONDS, default=0.0, help="How late they hear of endpoints.")
@click.option("--cap", type=_POSITIVE, help="Most requests in flight.")
@click.option("--ceiling", type=_RATE, help="Most requests per second that the client's one core can do.")
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
    type=_RATE,
    default=1.0,
    show_default=True,
    help="With a spike or an autoscaler: a second is missed in which more than 5 % wait longer.",
)
@_warmup
@_measured
@click.option("--seed", "seeds", type=_Seeds(), default="0", show_default=True, help="3, 1,5 or 1-8.")
@click.option("--ideals/--no-ideals", default=True, help="What ideal caches would have had.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="All figures and all settings.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="A line per run.")
@click.option(
    "--export",
    "export_path",
    type=click.Path(path_type=Path),
    help="The first run's sessions as a dataset (`prepared`) for `extproc bench`.",
)
@_html
@_against
def fleet(
    *,
    preset: str | None,
    loads: Sequence[float],
    rate: float | None,
    users: int | None,
    trace: str | None,
    profiles: Sequence[str],
    arms: Sequence[str],
    changes: Sequence[str],
    scalings: Sequence[str],
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
    if preset:
        _refuse_others(click.get_current_context())
        _print_preset(profiles, seeds, json_path, csv_path)
        return
    others = (rate, users, trace)
    if bool(loads) + sum(value is not None for value in others) > 1:
        raise click.UsageError("--load, --rate, --users and --trace say the same thing: give one.")
    if not any(value is not None for value in others):
        loads = loads or (0.75,)
    if trace is not None:
        asked |= {"workload": "trace", "trace_xxh3": read_trace(trace).digest}
    cells = [
        Cell(
            arm=arm,
            seed=seed,
            load=load,
            rate=rate,
            users=users,
            trace=trace,
            profiles=tuple(profiles),
            changes=tuple(changes),
            autoscale="" if scaling == _NO_SCALER else scaling,
            **asked,
        )
        for load in loads or (None,)
        for seed in seeds
        for arm in arms
        for scaling in scalings
    ]
    runs = [*zip(cells, _run(cells, with_ideals=ideals), strict=True)]
    summaries = [summary for _, summary in runs]
    # Runs at different loads are no rivals.
    for load in dict.fromkeys(cell.load for cell in cells):
        click.echo(render([summary for cell, summary in runs if cell.load == load]), nl=False)
    rows = [row_of(cell, summary, __version__) for cell, summary in runs]
    found = duels(rows, against or [cells[0].label])
    click.echo(render_duels(found) if len(seeds) > 1 or against else "", nl=False)
    _write(html_path, fleet_page(rows, found).encode())
    told = [{"cell": cell, "figures": summary, "warnings": summary.warnings} for cell, summary in runs]
    known = {name: find_profile(name) for name in profiles}
    _write(json_path, _encode({"version": __version__, "profiles": known, "runs": told}))
    _write(csv_path, write_csv([flatten(summary) for summary in summaries]).encode())
    if export_path is not None:
        _write(export_path, export_run(cells[0].simulate()))


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
    _write(json_path, _encode(cells))
    _write(csv_path, write_csv(seed_preset.list_rows(cells)).encode())


def _encode(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def _write(path: Path | None, content: bytes) -> None:
    if path is None:
        return
    try:
        path.write_bytes(content)
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None


@click.command
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_arms
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=["sessions"],
    show_default=True,
    callback=_check_workloads,
    help=f"Names or letters: {_LETTERS}.",
)
@click.option("--load", "loads", type=_RATE, multiple=True, default=[0.4, 0.75], show_default=True)
@click.option("--endpoints", type=_POSITIVE, multiple=True, default=[8], show_default=True)
@click.option("--gateways", type=_POSITIVE, multiple=True, default=[1], show_default=True)
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
    type=_SECONDS,
    multiple=True,
    default=[None],
    metavar="MS",
    help=_SHARE_DELAY,
)
@click.option("--share-loss", "share_losses", type=_LOSS, multiple=True, default=[0.0], help=_SHARE_LOSS)
@click.option(
    "--share-fault",
    "share_faults",
    type=click.Choice(Fault, case_sensitive=False),
    multiple=True,
    default=[Fault.NONE],
    help=_SHARE_FAULT,
)
@click.option("--scenario", "scenarios", type=click.Choice([*SCENARIOS]), multiple=True, default=["plain"])
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=[DEFAULT_PROFILE],
    show_default=True,
)
@click.option("--seeds", type=_Seeds(), default="11-13", show_default=True)
@_warmup
@_measured
@click.option("--workers", type=_POSITIVE, help="Processes. [default: one per core]")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="A line per run.")
@_html
@_against
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
        _write(csv_path, write_csv(rows).encode())
    _write(html_path or folder / "report.html", fleet_page(rows, found).encode())


def _name(row: Row) -> str:
    named = ("workload", "load", "endpoints", "gateways", "scenario", "seed", "arm")
    return " ".join(str(row[name]) for name in named)

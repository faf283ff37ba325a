"""`extproc simulate fleet` and `extproc simulate matrix`."""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from extproc import __version__
from extproc.errors import SettingsError
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet import autoscaler, seed_preset
from extproc.simulator.fleet.advise import Question, find_needs, write_needs
from extproc.simulator.fleet.arms import parse_arm
from extproc.simulator.fleet.autoscaler import parse_scaling
from extproc.simulator.fleet.bus import BusFault
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.changes import SCENARIOS
from extproc.simulator.fleet.matrix import Row, cross, render_rows, run_matrix
from extproc.simulator.fleet.progress import ProgressLine
from extproc.simulator.fleet.report import flatten, render_summaries, write_csv
from extproc.simulator.fleet.summary import Summary
from extproc.simulator.fleet.trace import read_trace
from extproc.simulator.fleet.traffic import SPIKE_SYNTAX, parse_spike
from extproc.simulator.fleet.workloads import WORKLOADS, expand_names, find_workload
from extproc.simulator.peers.registry import PEERS

ARMS: Final = ("round_robin", "least_load", "prefix_hash", "prefix_cache")


class Number(click.FloatRange):
    """A range that takes no NaN and no infinity, which compare with nothing."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Seeds(click.ParamType[Sequence[int]]):
    """`3`, `1,5` or `1-8`."""

    name = "seeds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Sequence[int]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            return [seed for part in value.split(",") for seed in _range(part)]
        except ValueError:
            self.fail(f"{value!r}: write 3, 1,5 or 1-8.", param, ctx)


def _range(text: str) -> Sequence[int]:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def check_names(name: str, check: Callable[[str], object]) -> Callable[..., Sequence[str] | str]:
    """Returns a click callback that checks one name or several by `check`, which raises `SettingsError`."""

    def callback(
        _ctx: click.Context, _param: click.Parameter, given: Sequence[str] | str
    ) -> Sequence[str] | str:
        for value in (given,) if isinstance(given, str) else given:
            try:
                check(value)
            except SettingsError as fault:
                raise click.BadParameter(str(fault)) from None
        return given

    callback.__name__ = name
    return callback


POSITIVE: Final = click.IntRange(1)
SECONDS: Final = Number(0)
RATE: Final = Number(0, min_open=True)
LOSS: Final = Number(0, 1)
LETTERS: Final = ", ".join(f"{one.letter} {one.name}" for one in WORKLOADS.values())
check_workloads: Final = check_names("check_workloads", find_workload)
_FAULTS: Final = click.Choice(BusFault, case_sensitive=False)
PRESETS: Final = (
    "KubeAI's 8 x L4 benchmark, all 12 cells; its k6 threads on 8 x H100 and on 2 x L4."
)
SHARE_DELAY: Final = (
    "Gateways send each other their picks; milliseconds until they arrive. [default: never]"
)
SHARE_LOSS: Final = "Share of these messages that is lost."
SHARE_FAULT: Final = "What is wrong with the connection between gateways."

arms_option = click.option(
    "--arm",
    "arms",
    multiple=True,
    default=ARMS,
    show_default=True,
    callback=check_names("check_arms", parse_arm),
    metavar="NAME[:OPTION=VALUE,…]",
    help=f"A strategy with its settings, or another router's rule: {', '.join(PEERS)}.",
)
csv_option = click.option(
    "--csv", "csv_path", type=click.Path(path_type=Path), help="Write a line per run."
)
warmup_option = click.option(
    "--warmup-s", type=SECONDS, help="Warm-up time. [default: the workload's]"
)
measured_option = click.option(
    "--measured-s", type=RATE, help="Time that is measured. [default: the workload's]"
)


def write_file(path: Path | None, content: bytes) -> None:
    """Writes an output file, if there is a path; raises `SettingsError` where that fails."""
    if path is None:
        return
    try:
        path.write_bytes(content)
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None


_AXES: Final[Sequence[tuple[Sequence[str], object, Mapping[str, Any]]]] = (
    (["--endpoints"], 8, {"type": POSITIVE}),
    (["--gateways"], 1, {"type": POSITIVE, "help": "Independent pickers."}),
    (
        ["--share-delay", "share_delay_ms"],
        None,
        {"type": SECONDS, "metavar": "MS", "help": SHARE_DELAY},
    ),
    (["--share-loss"], 0.0, {"type": LOSS, "help": SHARE_LOSS}),
    (["--share-fault"], BusFault.NONE, {"type": _FAULTS, "help": SHARE_FAULT}),
    (["--scenario"], "plain", {"type": click.Choice([*SCENARIOS])}),
)


def _take_axes(*, multiple: bool) -> Callable[[Any], Any]:
    """One value of each for a fleet, several for a matrix."""

    def decorate(command: Any) -> Any:
        for names, value, given in reversed(_AXES):
            more = {
                "default": [value] if multiple else value,
                "show_default": value is not None,
                **given,
            }
            command = click.option(*names, multiple=multiple, **more)(command)
        return command

    return decorate


_NO_SCALER: Final = "none"
_BESIDE_PRESET: Final = {"preset", "profiles", "seeds", "json_path", "csv_path"}
_check_scalings = check_names(
    "check_scalings", lambda text: text == _NO_SCALER or parse_scaling(text)
)
_check_spike = check_names("check_spike", lambda text: not text or parse_spike(text))


@click.command
@click.option("--preset", type=click.Choice(["seed-000", *seed_preset.THREADS]), help=PRESETS)
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
    help="Share of the workload's capacity. Several make several runs. [default: 0.75]",
)
@click.option("--rate", type=RATE, help="Requests per second instead.")
@click.option("--users", type=POSITIVE, help="Closed loop instead: this many sessions at a time.")
@click.option(
    "--trace", type=click.Path(dir_okay=False), help="A trace in Mooncake's format instead."
)
@click.option(
    "--trace-speed", type=RATE, default=1.0, show_default=True, help="Speed of the replay."
)
@click.option("--requests", type=POSITIVE, help="This many, instead of a measured time.")
@click.option(
    "--think-s", type=SECONDS, help="Mean pause before the next turn. [default: the workload's]"
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help="A profile's name or YAML file; several go round the endpoints. [default: the workload's]",
)
@arms_option
@_take_axes(multiple=False)
@click.option(
    "--spike",
    default="",
    callback=_check_spike,
    metavar=SPIKE_SYNTAX,
    help="For BURST_S seconds, TIMES the load. AFTER_S counts from the start, with warm-up.",
)
@click.option(
    "--autoscale",
    "scalings",
    multiple=True,
    default=[_NO_SCALER],
    callback=_check_scalings,
    metavar=autoscaler.SYNTAX,
    help=f"Kubernetes' HPA by {', '.join(autoscaler.Metric)}; each one is a run, also {_NO_SCALER}.",
)
@click.option(
    "--slo-ttft-s",
    type=RATE,
    default=1.0,
    show_default=True,
    help="With a spike or an autoscaler: a second is bad if more than 5 % wait longer.",
)
@warmup_option
@measured_option
@click.option(
    "--seed", "seeds", type=Seeds(), default="0", show_default=True, help="As 3, 1,5 or 1-8."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write figures and settings here."
)
@csv_option
def fleet(
    *,
    preset: str | None,
    seeds: Sequence[int],
    json_path: Path | None,
    csv_path: Path | None,
    **options: Any,
) -> None:
    """Simulate a fleet behind the picker, in virtual time."""
    profiles = options["profiles"]
    if preset:
        _refuse_others(click.get_current_context())
        if threads := seed_preset.THREADS.get(preset):
            profile = find_profile(profiles[0] if profiles else threads.profile)
            click.echo(f"KubeAI's k6 threads; profile {profile.name}: {profile.note}")
            click.echo(seed_preset.render_threads(threads, profile, seeds), nl=False)
            return
        _print_preset(profiles, seeds, json_path, csv_path)
        return
    cells = _list_cells(seeds=seeds, **options)
    runs = [*zip(cells, _run(cells), strict=True)]
    # Runs at different loads are no rivals.
    for load in dict.fromkeys(cell.load for cell in cells):
        click.echo(
            render_summaries([summary for cell, summary in runs if cell.load == load]), nl=False
        )
    write_file(json_path, _encode_runs(runs))
    write_file(csv_path, write_csv([flatten(summary) for _, summary in runs]).encode())


def _list_cells(
    *,
    loads: Sequence[float],
    seeds: Sequence[int],
    arms: Sequence[str],
    scalings: Sequence[str],
    **others: Any,
) -> list[MatrixCell]:
    """Returns one cell for each combination of load, seed, arm and autoscaler."""
    trace = others["trace"]
    paces = sum(value is not None for value in (others["rate"], others["users"], trace))
    if bool(loads) + paces > 1:
        raise click.UsageError("--load, --rate, --users and --trace exclude each other: give one.")
    if not paces:
        loads = loads or (0.75,)
    if trace is not None:
        others |= {"workload": "trace", "trace_xxh3": read_trace(trace).digest}
    others["profiles"] = tuple(others["profiles"])
    return [
        MatrixCell(
            arm=arm,
            seed=seed,
            load=load,
            autoscale="" if scaling == _NO_SCALER else scaling,
            **others,
        )
        for load in loads or (None,)
        for seed in seeds
        for arm in arms
        for scaling in scalings
    ]


def _encode_runs(runs: Sequence[tuple[MatrixCell, Summary]]) -> bytes:
    found = [
        {"cell": cell, "figures": summary, "warnings": summary.warnings} for cell, summary in runs
    ]
    definitions = {name: find_profile(name) for cell, _ in runs for name in cell.profile_names}
    document = {"version": __version__, "profiles": definitions, "runs": found}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _refuse_others(context: click.Context) -> None:
    """A preset fixes everything but the profile and the seeds."""
    given = [
        option
        for option in context.command.params
        if option.name not in _BESIDE_PRESET
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"--preset fixes {given[0].opts[0]}: give one of the two.")


def _run(cells: Sequence[MatrixCell]) -> list[Summary]:
    """Runs one after the other and shows the progress."""
    total = sum(cell.requests_about for cell in cells)
    progress, done = ProgressLine(total, sys.stderr, monotonic), 0
    found: list[Summary] = []
    for cell in cells:
        what = f"{cell.label}, seed {cell.seed}"
        watch = partial(_show, progress, done, cell.requests_about, what)
        found.append(cell.run(watch))
        done += cell.requests_about
        progress.show(done, what)
    progress.close()
    return found


def _show(progress: ProgressLine, before: int, size: int, what: str, share: float) -> None:
    progress.show(before + share * size, what)


def _print_preset(
    names: Sequence[str], seeds: Sequence[int], json_path: Path | None, csv_path: Path | None
) -> None:
    profile = find_profile(names[0] if names else seed_preset.PROFILE)
    click.echo(f"KubeAI's published 8 x L4 benchmark; profile {profile.name}: {profile.note}")
    click.echo(seed_preset.NOTE)
    cells = [
        cell
        for has_ceiling in (True, False)
        for seed in seeds
        for cell in seed_preset.simulate_cells(profile, seed, has_ceiling=has_ceiling)
    ]
    click.echo(seed_preset.render_cells(cells) + seed_preset.tell_cells(cells), nl=False)
    write_file(json_path, msgspec.json.format(msgspec.json.encode(cells), indent=2))
    write_file(csv_path, write_csv(seed_preset.list_rows(cells)).encode())


@click.command
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@arms_option
@click.option(
    "--workload",
    multiple=True,
    default=["sessions"],
    show_default=True,
    callback=lambda ctx, param, names: check_workloads(ctx, param, expand_names(names)),
    help=f"Names or letters: {LETTERS}; held-out: the 20 from swe on, everyday: the 12 from fanout on.",
)
@click.option("--load", type=RATE, multiple=True, default=[0.4, 0.75], show_default=True)
@_take_axes(multiple=True)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=[""],
    help="A,B,B: one endpoint of the first kind, two of the second, and so on. [default: the workload's]",
)
@click.option("--seeds", "seed", type=Seeds(), default="11-13", show_default=True)
@click.option(
    "--ties",
    type=Seeds(),
    default="0",
    show_default=True,
    help="Draws among equal endpoints; each is a run over the same arrivals.",
)
@warmup_option
@measured_option
@click.option("--workers", type=POSITIVE, help="Processes. [default: one per core]")
@csv_option
def matrix(
    folder: Path,
    *,
    workers: int | None,
    csv_path: Path | None,
    arms: Sequence[str],
    profiles: Sequence[str],
    seed: Sequence[int],
    ties: Sequence[int],
    **axes: Any,
) -> None:
    """Simulate every combination, on all cores.

    FOLDER keeps the figures. Runs that it has are not done again. So a stopped command continues,
    and one with more arms, loads or seeds adds to it.
    """
    kinds = [(*name.split(","),) if name else () for name in profiles]
    window = {name: [axes.pop(name)] for name in ("warmup_s", "measured_s")}
    cells = [
        *cross(
            **dict(sorted(axes.items(), reverse=True)),
            **window,
            profiles=kinds,
            seed=seed,
            ties=ties,
            arm=arms,
        )
    ]
    progress = ProgressLine(1.0, sys.stderr, monotonic)
    rows = run_matrix(
        cells,
        folder,
        workers or os.cpu_count() or 1,
        lambda share, row: progress.show(share, _name_row(row)),
        __version__,
    )
    progress.close()
    click.echo(render_rows(rows), nl=False)
    write_file(csv_path, write_csv(rows).encode())


def _name_row(row: Row) -> str:
    named = ("workload", "load", "endpoints", "gateways", "scenario", "seed", "ties", "arm")
    return " ".join(str(row[name]) for name in named)


@click.command
@click.argument("trace", type=click.Path(dir_okay=False))
@click.option("--engine", required=True, help="A profile's name or YAML file.")
@click.option(
    "--p95-ms", type=RATE, default=500.0, show_default=True, help="Most that 95 % may wait for."
)
@click.option("--most", type=POSITIVE, default=64, show_default=True, help="Most endpoints tried.")
@click.option("--requests", type=POSITIVE, help="Only the first ones of the trace.")
def advise(**given: Any) -> None:
    """Say how many endpoints a TRACE needs.

    TRACE is in Mooncake's format, as a pool's `record` writes it. It is replayed in virtual time by
    three strategies.
    """
    progress = ProgressLine(1.0, sys.stderr, monotonic)
    question = Question(**given)
    needs = find_needs(question, progress.show)
    progress.close()
    click.echo(write_needs(question, needs), nl=False)

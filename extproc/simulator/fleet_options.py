"""Options that the commands `fleet` and `matrix` have in common."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from extproc.errors import SettingsError
from extproc.simulator.fleet.arms import parse_arm
from extproc.simulator.fleet.workloads import WORKLOADS, find_workload
from extproc.simulator.peers.registry import PEERS

ARMS: Final = ("round_robin", "least_load", "prefix_hash")


class Number(click.FloatRange):
    """A range that takes no NaN and no infinity, which compare with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Seeds(click.ParamType[Sequence[int]]):
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
SHARE_DELAY: Final = "Gateways send each other their picks; milliseconds until they arrive. [default: never]"
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
    help=f"A strategy with its settings, or a peer: {', '.join(PEERS)}. All get the same arrivals.",
)
csv_option = click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="A line per run.")
warmup_option = click.option("--warmup-s", type=SECONDS, help="Not measured. [default: the workload's]")
measured_option = click.option(
    "--measured-s", type=RATE, help="Measured after that. [default: the workload's]"
)


def write_file(path: Path | None, content: bytes) -> None:
    """Writes an output file, if there is a path; raises `SettingsError` where that fails."""
    if path is None:
        return
    try:
        path.write_bytes(content)
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None

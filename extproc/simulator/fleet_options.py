"""What the commands of the fleet are asked, as far as they are asked the same."""

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
            self.fail(f"{value} is no number to count with.", param, ctx)
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


POSITIVE: Final = click.IntRange(1)
SECONDS: Final = Number(0)
RATE: Final = Number(0, min_open=True)
LOSS: Final = Number(0, 1)
LETTERS: Final = ", ".join(f"{one.letter} {one.name}" for one in WORKLOADS.values())
check_workloads: Final = check_names("check_workloads", find_workload)
SHARE_DELAY: Final = "Gateways tell each other their picks, so late. [default: they do not]"
SHARE_LOSS: Final = "Share of what they tell that never comes."
SHARE_FAULT: Final = "What is wrong with the way between them."

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
html_option = click.option("--html", "html_path", type=click.Path(path_type=Path), help="A page with plots.")
against_option = click.option(
    "--against",
    multiple=True,
    metavar="ARM",
    help="Whom to compare the others with: the better of these. [default: the first arm]",
)
warmup_option = click.option("--warmup-s", type=SECONDS, help="Not measured. [default: the workload's]")
measured_option = click.option(
    "--measured-s", type=RATE, help="Measured after that. [default: the workload's]"
)


def write(path: Path | None, content: bytes) -> None:
    """Writes a file that was asked for; raises `SettingsError` where that cannot be."""
    if path is None:
        return
    try:
        path.write_bytes(content)
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None

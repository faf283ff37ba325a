"""Arm against arm, paired by seed: both were asked the same. No loss is averaged away."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from extproc.simulator.fleet.report import lay_out
from extproc.simulator.fleet.rows import LOADS, PANEL, Case, Row, by_arm, number_of, split, title_of

LOSS: Final = 0.03

FIGURES: Final[Mapping[str, tuple[str, bool]]] = {
    "ttft_mean_ms": ("TTFT mean", False),
    "ttft_p99_ms": ("TTFT p99", False),
    "total_tok_per_s": ("tokens/s", True),
}
"""What arms are compared by: how it is called, and whether more of it is better."""

DUEL_HEAD: Final = ("arm", "against", "figure", "ratio", "range", "seeds", "lost")
LOSS_HEAD: Final = ("case", "arm", "figure", "median", "seeds that lost more than 3 %")


@dataclass(frozen=True, slots=True)
class Duel:
    """One arm in one case by one figure: by seed, its figure as a share of the other's."""

    case: Case
    arm: str
    against: str
    figure: str
    ratios: Mapping[int, float]

    @property
    def is_better_high(self) -> bool:
        return FIGURES[self.figure][1]

    @property
    def median(self) -> float:
        return median(self.ratios.values())

    @property
    def lost(self) -> dict[int, float]:
        """The seeds in which the arm was worse by more than `LOSS`, and their ratios."""
        return {
            seed: ratio
            for seed, ratio in self.ratios.items()
            if (1 / ratio if self.is_better_high and ratio else ratio) > 1 + LOSS
        }


def duels(rows: Iterable[Row], against: Sequence[str]) -> list[Duel]:
    """Every other arm against the better of these in each seed, in each case and by each figure."""
    found: list[Duel] = []
    for case, group in split(rows, (*PANEL, *LOADS)).items():
        arms = by_arm(group)
        others = [arms[name] for name in against if name in arms]
        for arm, runs in arms.items():
            if arm not in against and others:
                found += _fight(case, (arm, runs), (" or ".join(against), others))
    return found


def _fight(
    case: Case, one: tuple[str, Sequence[Row]], other: tuple[str, Sequence[Sequence[Row]]]
) -> Iterator[Duel]:
    (arm, runs), (against, groups) = one, other
    for figure, (_, is_better_high) in FIGURES.items():
        choose = max if is_better_high else min
        mine = _by_seed(runs, figure)
        theirs = [_by_seed(group, figure) for group in groups]
        bests = {seed: [found[seed] for found in theirs if found.get(seed)] for seed in mine}
        ratios = {seed: value / choose(bests[seed]) for seed, value in mine.items() if bests[seed]}
        if ratios:
            yield Duel(case, arm, against, figure, ratios)


def _by_seed(rows: Iterable[Row], figure: str) -> dict[int, float]:
    found = ((row["seed"], number_of(row, figure)) for row in rows)
    return {int(str(seed)): value for seed, value in found if value is not None}


def duel_cells(duel: Duel) -> tuple[str, ...]:
    low, high = min(duel.ratios.values()), max(duel.ratios.values())
    counts = str(len(duel.ratios)), str(len(duel.lost) or "-")
    name = FIGURES[duel.figure][0]
    return (duel.arm, duel.against, name, f"{duel.median:.3f}", f"{low:.3f}-{high:.3f}", *counts)


def loss_cells(duel: Duel) -> tuple[str, ...]:
    seeds = ", ".join(f"{seed}: {ratio:.3f}" for seed, ratio in sorted(duel.lost.items()))
    return (case_name(duel.case), duel.arm, FIGURES[duel.figure][0], f"{duel.median:.3f}", seeds)


def case_name(case: Case) -> str:
    """A case in few words: what is everywhere the same in most matrices is left out."""
    usual = {"scenario": "plain", "gateways": "1", "spread": "random", "endpoints": "8"}
    return title_of(
        tuple((name, value) for name, value in case if value != usual.get(name) and value != "None")
    )


def render_duels(found: Sequence[Duel]) -> str:
    """Two tables: every pair, and every loss."""
    if not found:
        return ""
    lost = [duel for duel in found if duel.lost]
    pairs = "\n".join(
        f"{case_name(case)}\n{lay_out([DUEL_HEAD, *map(duel_cells, group)])}"
        for case, group in _by_case(found).items()
    )
    losses = lay_out([LOSS_HEAD, *map(loss_cells, lost)]) if lost else "No loss of more than 3 %.\n"
    return f"{pairs}\nLosses, by seed\n{losses}"


def _by_case(found: Iterable[Duel]) -> dict[Case, list[Duel]]:
    cases: dict[Case, list[Duel]] = {}
    for duel in found:
        cases.setdefault(duel.case, []).append(duel)
    return cases

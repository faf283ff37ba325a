"""What many runs amount to: arm against arm, a page with plots, and how far a simulation is."""

import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from extproc.simulator.commands import simulate as command
from extproc.simulator.fleet.cell import Cell
from extproc.simulator.fleet.duels import duels, render_duels
from extproc.simulator.fleet.progress import ProgressLine
from extproc.simulator.fleet.report_page import fleet_page
from extproc.simulator.fleet.rows import Row, row_of


def row(arm: str, seed: int, ttft: float, *, load: float = 0.75, workload: str = "C", **more: object) -> Row:
    """A run with this mean TTFT, a p99 of ten times as much and 100 tokens a second for each ms less."""
    return {
        "arm": arm,
        "seed": seed,
        "load": load,
        "workload": workload,
        "scenario": "plain",
        "endpoints": 8,
        "gateways": 1,
        "spread": "random",
        "profiles": ["l4"],
        "version": "1",
        "ttft_mean_ms": ttft,
        "ttft_p99_ms": 10 * ttft,
        "hit_rate": 0.5,
        "shared_hit_rate": 0.6,
        "total_tok_per_s": 1000.0 - ttft,
        "faults": [],
        **more,
    }


PAIR = [row("a", 1, 100), row("a", 2, 200), row("a", 3, 300)]
RIVAL = [row("b", 1, 90), row("b", 2, 220), row("b", 3, 300)]


def test_arms_are_compared_seed_by_seed() -> None:
    mean, p99, tokens = duels([*PAIR, *RIVAL], ["a"])

    assert mean.ratios == pytest.approx({1: 0.9, 2: 1.1, 3: 1.0})
    assert mean.median == 1.0
    assert mean.lost == {2: pytest.approx(1.1)}
    assert p99.ratios == pytest.approx(mean.ratios)
    assert tokens.ratios == pytest.approx({1: 910 / 900, 2: 780 / 800, 3: 1.0})
    assert not tokens.lost


def test_fewer_tokens_are_a_loss_and_fewer_milliseconds_a_gain() -> None:
    (*_, tokens) = duels([row("a", 1, 100), row("b", 1, 200)], ["a"])

    assert tokens.lost == {1: pytest.approx(800 / 900)}


def test_better_of_several_is_that_of_each_seed() -> None:
    mean, *_ = duels([*PAIR, *RIVAL, row("c", 1, 95), row("c", 2, 205)], ["a", "b"])

    assert mean.arm == "c"
    assert mean.ratios == pytest.approx({1: 95 / 90, 2: 205 / 200})
    assert [*mean.lost] == [1]


def test_cases_are_not_mixed_and_what_was_not_measured_is_left_out() -> None:
    found = duels(
        [row("a", 1, 100), row("a", 1, 100, load=0.4), row("b", 1, 50, load=0.4), row("b", 2, 50)], ["a"]
    )

    assert {dict(duel.case)["load"] for duel in found} == {"0.4"}
    assert not duels([row("a", 1, 100, ttft_mean_ms=None), row("b", 1, 1, ttft_mean_ms=None)], ["a"])[0].lost


def test_every_loss_is_listed_with_its_seeds() -> None:
    text = render_duels(duels([*PAIR, *RIVAL], ["a"]))
    losses = text[text.index("Losses") :]

    assert re.search(r"TTFT mean +1.000 +2: 1.100", losses)
    assert "No loss" in render_duels(duels([row("a", 1, 100), row("b", 1, 100)], ["a"]))
    assert render_duels([]) == ""


class Page(HTMLParser):
    """Counts what a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.fetched += [value for name, value in attrs if name in {"src", "href"} and value]


def test_page_has_a_panel_of_three_plots_for_each_case_and_fetches_nothing() -> None:
    rows = [
        row(arm, seed, 100 * seed * load, load=load, workload=workload)
        for arm in ("a", "b")
        for seed in (1, 2)
        for load in (0.4, 0.75)
        for workload in ("C", "T <script>")
    ]
    text = fleet_page(rows, duels(rows, ["a"]))
    page = Page(text)

    assert page.tags["svg"] == 6
    assert "script" not in page.tags
    assert [link for link in page.fetched if not link.startswith("data:")] == []
    assert "prefers-color-scheme: dark" in text


def test_plot_shows_the_median_of_the_seeds_at_each_load() -> None:
    rows = [row("a", seed, ttft, load=0.5) for seed, ttft in ((1, 10), (2, 20), (3, 90))]
    text = fleet_page([*rows, row("a", 1, 10, load=0.75)], [])

    assert "a: 20 at 0.5" in text
    assert "a: 200 at 0.5" in text


def test_one_load_is_bars_and_a_fleet_that_changed_has_a_table_of_what_that_cost() -> None:
    cost = {
        "elastic_least": 4,
        "elastic_most": 9,
        "elastic_slo_seconds_missed": 11,
        "elastic_reaction_s": None,
    }
    rows = [
        {**row(arm, 1, 10, elastic_held_seconds=held), **cost}
        for arm, held in (("none", 2000), ("queue", 4321))
    ]
    text = fleet_page(rows, [])

    assert "<title>queue: 4321</title>" in text
    assert "<polyline" not in text
    assert (
        "<td>queue</td><td>0.75</td><td>4-9</td><td>-</td><td>-</td><td>11</td><td>-</td><td>4321</td>"
        in text
    )
    assert "As the load changed" not in fleet_page([row("a", 1, 10)], [])


def test_a_page_without_losses_says_so_and_names_one_case_once() -> None:
    rows = [row("a", 1, 100), row("b", 1, 100)]
    text = fleet_page(rows, duels(rows, ["a"]))

    assert "No loss of more than 3 %." in text
    assert "<th>case</th>" not in text


def test_page_says_what_was_not_served() -> None:
    text = fleet_page([row("a", 1, 10, faults=["offered 1, served 0"])], [])

    assert "1 warnings" in text
    assert "offered 1, served 0" in text


def test_plots_of_a_page_are_well_formed() -> None:
    for svg in re.findall(r"<svg.*?</svg>", fleet_page(PAIR, []), re.DOTALL):
        ET.fromstring(svg)


def test_row_is_a_cell_and_its_figures() -> None:
    cell = Cell(arm="random", workload="U", load=0.2, endpoints=2, warmup_s=0, measured_s=10)
    found = row_of(cell, cell.run(), "1")

    assert (found["arm"], found["workload"], found["digest"]) == ("random", "U", cell.digest)
    assert found["ttft_mean_ms"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_tells_percent_and_time_left() -> None:
    out, times = StringIO(), iter([0.0, 10.0, 60.0, 100.0])
    progress = ProgressLine(200, out, lambda: next(times))
    for done in (20, 22, 120, 200):
        progress.tell(done, f"run {done}")
    progress.close()

    # Two per cent more are no news without a terminal.
    assert out.getvalue().splitlines() == [
        " 10%  1:30 left  run 20",
        " 60%  0:40 left  run 120",
        "100%  0:00 left  run 200",
    ]


def test_progress_on_a_terminal_is_one_line_that_covers_what_it_was() -> None:
    out = Terminal()
    progress = ProgressLine(1, out, lambda: 0.0)
    progress.tell(0.0, "a long name")
    progress.tell(0.5, "short")
    progress.close()

    first, second = out.getvalue().removeprefix("\r").removesuffix("\n").split("\r")
    assert first == "  0%  ? left  a long name"
    assert second.rstrip() == " 50%  0:00 left  short"
    assert len(second) >= len(first)


def test_nothing_to_do_is_done() -> None:
    out = StringIO()
    ProgressLine(0, out, lambda: 0.0).tell(0)

    assert out.getvalue() == "100%  0:00 left\n"


def test_fleet_over_loads_writes_a_page_and_tells_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    asked = [
        "fleet",
        "--workload",
        "U",
        "--load",
        "0.2",
        "--load",
        "0.4",
        "--endpoints",
        "2",
        "--seed",
        "1-2",
    ]
    times = ["--warmup-s", "0", "--measured-s", "20", "--html", str(path)]
    result = CliRunner().invoke(
        command, [*asked, *times, "--arm", "random", "--arm", "least_load"], catch_exceptions=False
    )
    lines = [line for line in result.stderr.splitlines() if "left" in line]

    assert Page(path.read_text()).tags["polyline"] == 6
    assert lines[-1].startswith("100%  0:00 left")
    assert len(lines) > 10
    assert "against" in result.stdout
    assert "%" not in result.stdout.replace("3 %", "")

"""The dashboards, as they are rendered."""

import json
import re
from typing import Any

from monitoring.dashboards import BOARDS, Board, Panel
from monitoring.grafana import render
from tests.tables import table

BOARD_NAMES = [board.uid for board in BOARDS]


@table("board", BOARDS, ids=BOARD_NAMES)
def test_a_dashboard_asks_what_its_description_says(board: Board) -> None:
    made = json.loads(render(board))
    panels = [each for each in made["panels"] if each["type"] != "row"]

    assert made["uid"] == board.uid
    assert [[target["expr"] for target in each["targets"]] for each in panels] == [
        [query.expr for query in panel.queries] for panel in board.panels
    ]
    assert {each["datasource"]["uid"] for each in panels} == {"${datasource}"}
    chosen = {variable["name"] for variable in made["templating"]["list"]} | {"__rate_interval"}
    used = {
        name
        for panel in board.panels
        for query in panel.queries
        for name in re.findall(r"\$(\w+)", query.expr)
    }
    assert used <= chosen


@table("board", BOARDS, ids=BOARD_NAMES)
def test_panels_stand_side_by_side_and_have_numbers_and_titles_of_their_own(board: Board) -> None:
    panels = json.loads(render(board))["panels"]
    places = [(at["x"], at["y"], at["w"], at["h"]) for at in (each["gridPos"] for each in panels)]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    titles = [panel.title for panel in board.panels]

    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) == 23
    assert len({each["id"] for each in panels}) == len(panels)
    assert len(titles) == len({*titles})


def test_latency_is_in_the_first_row_and_figures_have_units_and_colours() -> None:
    made = {board.uid: json.loads(render(board))["panels"] for board in BOARDS}
    first = [panel.unit for uid in ("extproc-router", "extproc-pool") for panel in _rows(uid)]
    bare = [
        (uid, each["title"]) for uid, panels in made.items() for each in panels if _is_bare(each)
    ]
    shed = next(each for each in made["extproc-router"] if each["title"] == "Requests shed (429)")

    assert first.count("s") == 3
    assert bare == [("extproc-router", "Alerts")]
    steps = [
        (step["color"], step["value"])
        for step in shed["fieldConfig"]["defaults"]["thresholds"]["steps"]
    ]
    assert steps == [("text", None), ("orange", 0.001), ("red", 0.01)]
    assert all(
        "[$__rate_interval]" in expr
        for board in BOARDS
        for expr in _asked(board, "deriv(", "rate(")
    )


def _rows(uid: str) -> tuple[Panel, ...]:
    [board] = [board for board in BOARDS if board.uid == uid]
    return board.rows[0].panels


def _is_bare(panel: dict[str, Any]) -> bool:
    return panel["type"] != "row" and bool(panel["fieldConfig"]["defaults"]["unit"] == "short")


def _asked(board: Board, *words: str) -> list[str]:
    queries = [query.expr for panel in board.panels for query in panel.queries]
    return [expr for expr in queries if any(word in expr for word in words)]

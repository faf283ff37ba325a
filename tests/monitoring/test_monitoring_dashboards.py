"""The dashboards, as they are rendered."""

import json
import re

from monitoring.dashboards import BOARDS, Board
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

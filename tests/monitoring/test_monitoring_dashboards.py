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
def test_panels_stand_side_by_side_and_have_numbers_of_their_own(board: Board) -> None:
    panels = json.loads(render(board))["panels"]
    cells = [
        (x, y)
        for each in panels
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]

    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) == 23
    assert len({each["id"] for each in panels}) == len(panels)


def test_no_two_panels_of_a_dashboard_have_one_title() -> None:
    titles = [(board.uid, panel.title) for board in BOARDS for panel in board.panels]

    assert len(titles) == len({*titles})

"""Where prompts part: planted faults are named and placed, and clean traffic gets no word."""

from random import Random

import pytest

from extproc.router.lint.partings import find_partings
from tests.router.lint.planted import (
    KINDS,
    PATHS,
    RULES,
    START,
    place_of,
    plant_fault,
    planted_head,
    write_body,
    write_lines,
)
from tests.tables import table


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_planted_fault_is_named_and_placed(kind: str, path: str) -> None:
    heads = [planted_head(path, plant_fault(kind, path, n)) for n in range(8)]

    found = [parting for parting, _ in find_partings(heads)]

    assert [(each.kind, each.place, each.message, each.byte) for each in found] == [
        (kind, *place_of(kind, path))
    ]
    assert found[0].prompts == 8
    assert 1_000 < found[0].tokens < 3_000


def _grown(name: str, system: str) -> list[bytes]:
    """Every turn of a chat, each sent twice."""
    said, bodies = list[tuple[str, str]](), list[bytes]()
    for turn in range(4):
        said.append(("user", write_lines(f"{name} asks {turn}", 1 + turn)))
        bodies += [write_body(PATHS[0], system, said)] * 2
        said.append(("assistant", write_lines(f"{name} hears {turn}", 20)))
    return bodies


@pytest.mark.parametrize(
    "systems",
    [[START + RULES], [write_lines(f"tenant {k}") for k in range(8)], [""]],
    ids=["one system", "many tenants", "none"],
)
def test_clean_chats_get_no_word(systems: list[str]) -> None:
    chats = [_grown(f"chat {k}", systems[k % len(systems)]) for k in range(8)]
    bodies = [body for chat in chats for body in chat]
    Random(1).shuffle(bodies)

    assert find_partings([planted_head(PATHS[0], body) for body in bodies[:64]]) == []


def test_answer_that_is_asked_for_again_is_no_fault() -> None:
    said = [("user", write_lines("asks", 3)), ("assistant", write_lines("says", 40))]
    bodies = [
        write_body(PATHS[0], RULES, [*said, ("user", write_lines(f"goes on {k}", 2))])
        for k in range(8)
    ]

    assert find_partings([planted_head(PATHS[0], body) for body in bodies]) == []


def test_chats_whose_clock_stands_still_for_some_count_all_the_same() -> None:
    bodies = [
        write_body(
            PATHS[0], f"It is 12:0{k // 4} now.\n{RULES}", [("user", write_lines(f"q{k}", 2))]
        )
        for k in range(16)
    ]

    (found, _), *more = find_partings([planted_head(PATHS[0], body) for body in bodies])

    assert (found.kind, found.byte, found.prompts, more) == ("time", 6, 16, [])


def test_history_that_is_cut_at_its_begin_each_turn_is_found() -> None:
    turns = [
        ("user" if k % 2 == 0 else "assistant", write_lines(f"turn {k}", 10)) for k in range(24)
    ]
    bodies = [write_body(PATHS[0], RULES, turns[k : k + 9]) for k in range(0, 12, 2)]

    (found, _), *_ = find_partings([planted_head(PATHS[0], body) for body in bodies])

    assert (found.kind, found.place, found.message) == ("inserted", "message", 1)


def test_prompts_of_different_salts_are_not_compared() -> None:
    heads = [planted_head(PATHS[0], plant_fault("uuid", PATHS[0], n)) for n in range(8)]
    salted = [type(head)(head.at_s, str(n), head.turns) for n, head in enumerate(heads)]

    assert find_partings(salted) == []


FORMS = {
    "an address": ("number", [f"10.78.{125 + n}.{7 * n}" for n in range(8)]),
    "a time in one word": ("time", [f"20261111T14{15 + n}12Z" for n in range(8)]),
    "an hour": ("time", [f"{n} pm" for n in range(1, 9)]),
    "a month": ("date", [f"{month} 2026" for month in ("May", "June", "July", "August") * 2]),
    "a short hash": (
        "hex",
        ["356a192", "da4b923", "77de68d", "ac3478d", "c1dfd96", "902ba3c", "fe5dbbc", "b6589fc"],
    ),
    "base64": ("id", [f"{'YJ1kD/+r'[n:]}{'YJ1kD/+r'[:n]}Nw3tQx+Z/b9_" for n in range(8)]),
}


@table("form", [*FORMS])
def test_values_that_are_written_otherwise_are_one_kind(form: str) -> None:
    kind, values = FORMS[form]
    bodies = [
        write_body(PATHS[0], f"{START}{value}\n{RULES}", [("user", write_lines(f"q{value}", 2))])
        for value in values
    ]

    assert [
        (found.kind, found.byte, found.prompts)
        for found, _ in find_partings([planted_head(PATHS[0], body) for body in bodies])
    ] == [(kind, len(START), 8)]


def test_one_tool_more_at_the_end_is_a_block_and_no_other_order() -> None:
    tools = [{"name": f"tool_{k}", "description": write_lines(f"t{k}", 8)} for k in range(4)]
    bodies = [
        write_body(PATHS[0], RULES, [("user", write_lines(f"q{n}", 2))], tools[: 3 + n % 2])
        for n in range(8)
    ]

    (found, _), *more = find_partings([planted_head(PATHS[0], body) for body in bodies])

    assert (found.kind, found.place, more) == ("inserted", "tools", [])


def test_short_marker_that_moves_is_found() -> None:
    texts = [write_lines(f"turn {k}", 8) for k in range(10)]
    bodies = [
        write_body(
            PATHS[0],
            RULES,
            [(("user", "assistant")[k % 2], t + "<here>" * (k == n)) for k, t in enumerate(texts)],
        )
        for n in range(0, 10, 2)
    ]

    (found, _), *_ = find_partings([planted_head(PATHS[0], body) for body in bodies])

    assert (found.kind, found.message, found.byte) == ("inserted", 1, len(texts[0]))


@pytest.mark.parametrize("is_system", [True, False])
def test_documents_that_some_prompts_share_by_chance_get_no_word(is_system: bool) -> None:
    texts = [write_lines(f"document {k}", 12) for k in range(30)]
    heads = []
    for n in range(64):
        found = "\n\n".join(Random(n).choices(texts, [2] * 4 + [1] * 26, k=5))
        asked = write_lines(f"q{n}", 1)
        system, said = (RULES + found, asked) if is_system else (RULES, f"{found}\n{asked}")
        heads.append(planted_head(PATHS[0], write_body(PATHS[0], system, [("user", said)])))

    assert find_partings(heads) == []

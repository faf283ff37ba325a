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

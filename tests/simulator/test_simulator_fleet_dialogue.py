"""What a router sees: chats with the lengths that were planned, and the texts that are common."""

import json
from random import Random

import pytest

from extproc.router.routing.prompt.parse import parse
from extproc.simulator.fleet.dialogue import Dialogue, make_text
from extproc.simulator.fleet.gateway import EndpointNames
from extproc.simulator.fleet.session import CommonText, PlannedSession, PlannedTurn
from extproc.simulator.fleet.workloads import WORKLOADS, Demand, draw_sessions
from tests.tables import table

TURNS = (PlannedTurn(1050, 20), PlannedTurn(1100, 30))
CHAT = PlannedSession(7, TURNS, (CommonText(1, 1000, 5.0),), chars_per_token=3.5)


def messages(body: bytes) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in json.loads(body)["messages"]]


def lengths(body: bytes) -> list[tuple[str, int]]:
    return [(role, len(text)) for role, text in messages(body)]


def test_chat_grows_by_answer_and_question_of_their_lengths() -> None:
    dialogue = Dialogue(CHAT)
    first, second = dialogue.ask(0), dialogue.ask(1)

    assert lengths(first) == [("system", 5000), ("user", 175)]
    assert lengths(second) == [("system", 5000), ("user", 175), ("assistant", 70), ("user", 105)]
    assert second.startswith(first.removesuffix(b"]}"))


def test_head_in_the_message_of_the_user_stands_before_the_question() -> None:
    session = PlannedSession(7, TURNS, CHAT.heads, head_role="user")
    ((role, text),) = messages(Dialogue(session).ask(0))

    assert (role, len(text)) == ("user", 5200)
    assert text.startswith(messages(Dialogue(CHAT).ask(0))[0][1])


def test_recorded_history_is_one_body() -> None:
    session = PlannedSession(7, (PlannedTurn(60, 20),), history=(10, 20, 30), is_replayed=True)

    assert lengths(Dialogue(session).ask(0)) == [("user", 40), ("assistant", 80), ("user", 120)]


def test_sessions_have_the_head_in_common_and_nothing_else() -> None:
    one, other = (messages(Dialogue(PlannedSession(owner, TURNS, CHAT.heads)).ask(0)) for owner in (1, 11))

    assert one[0] == other[0]
    assert one[1][1][:20] != other[1][1][:20]


@table("chars", [0, 1, 10, 100_000, 700_000])
def test_text_has_exactly_so_many_characters(chars: int) -> None:
    assert len(make_text(b"name", chars)) == chars


@table("name", WORKLOADS)
def test_bodies_of_every_workload_have_the_characters_of_their_tokens(name: str) -> None:
    for session in draw_sessions(name, Demand(300, 1.0), 3)[:10]:
        dialogue = Dialogue(session)
        for turn, asked in enumerate(session.turns):
            chars = sum(length for _, length in lengths(dialogue.ask(turn)))
            heads = sum(head.tokens * head.chars_per_token for head in session.heads)
            own = (asked.prompt_tokens - session.head_tokens) * session.chars_per_token
            assert chars == pytest.approx(heads + own, abs=2 * turn + 2 * len(session.history) + 2)


def test_characters_per_token_differ_by_session_and_by_a_fifth_at_most() -> None:
    errors = [session.chars_per_token / 4 for session in draw_sessions("U", Demand(500), 0)]

    assert min(errors) == pytest.approx(0.8, abs=0.01)
    assert max(errors) == pytest.approx(1.2, abs=0.01)


def test_body_is_what_the_service_reads() -> None:
    prompt = parse("/v1/chat/completions", "application/json", Dialogue(CHAT).ask(0))

    assert prompt.first_user_message(9) == "7.0 " + prompt.first_user_message(9)[4:]


def test_endpoints_are_called_something_else_for_each_seed() -> None:
    names = [{EndpointNames(Random(seed))[number].name for number in range(8)} for seed in (1, 2)]

    assert len(names[0]) == 8
    assert not names[0] & names[1]


def test_agents_grow_evenly_to_thirty_thousand_tokens() -> None:
    sessions = [session for session in draw_sessions("G", Demand(600), 1) if len(session.turns) > 30]

    for session in sessions[:-1]:
        prompts = [turn.prompt_tokens for turn in session.turns]
        grown = [
            after.prompt_tokens - before.prompt_tokens - before.output_tokens
            for before, after in zip(session.turns, session.turns[1:], strict=False)
        ]
        assert prompts[0] == 2000
        assert prompts[-1] == pytest.approx(30_000, abs=800)
        assert min(grown) > 0
        assert len(prompts) <= 40

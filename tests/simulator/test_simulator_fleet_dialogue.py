"""What a router sees: chats with the lengths that were planned, and the texts that are common."""

import json
from random import Random

import pytest

from extproc.router.routing.prompt.parse import parse
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.gateway import EndpointNames
from extproc.simulator.fleet.session import Transcript, make_text, write_body
from extproc.simulator.fleet.workloads import WORKLOADS, draw_sessions
from tests.simulator.prompts import planned
from tests.tables import table

HEAD = Transcript(3).then("system", "head.text", 1000)
CHAT = planned(7, (1050, 20), (1100, 30), head=HEAD)


def messages(body: bytes) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in json.loads(body)["messages"]]


def lengths(body: bytes) -> list[tuple[str, int]]:
    return [(role, len(text)) for role, text in messages(body)]


def test_text_has_its_characters_and_without_a_role_goes_on_with_the_message_before() -> None:
    script = Transcript().then("user", "tenant.head", 100).then("", "chat.asked", 10)
    ((role, text),) = messages(write_body(script.ask("chat.said", 5)))
    sizes = [0, 1, 10, 100_000, 700_000]

    assert (role, len(text)) == ("user", sum(message.chars for message in script.messages))
    assert [len(make_text(b"name", chars)) for chars in sizes] == sizes


def test_sessions_have_the_head_in_common_and_equal_texts_behind_different_ones_differ() -> None:
    one, other = (messages(write_body(planned(owner, (1050, 20), head=HEAD).turns[0])) for owner in (1, 11))
    a, b, again = (Transcript().then("system", name, 50).then("user", "same", 50) for name in "aba")

    assert one[0] == other[0]
    assert one[1][1][:20] != other[1][1][:20]
    assert a.messages[1].text != b.messages[1].text
    assert a.messages == again.messages


@table("name", WORKLOADS)
def test_bodies_of_every_workload_have_the_characters_of_their_tokens(name: str) -> None:
    for session in draw_sessions(name, Demand(300, 1.0), 3)[:10]:
        for turn in session.turns:
            said = turn.messages[:-1]
            assert sum(length for _, length in lengths(write_body(turn))) == sum(part.chars for part in said)
            assert turn.prompt_tokens == sum(part.tokens for part in said)
            assert turn.output_tokens == turn.messages[-1].tokens


def test_characters_per_token_differ_by_session_and_by_a_fifth_at_most() -> None:
    asked = [session.turns[0].messages[0] for session in draw_sessions("U", Demand(500), 0)]
    errors = [message.chars / message.tokens / 4 for message in asked if message.tokens > 500]

    assert min(errors) == pytest.approx(0.8, abs=0.01)
    assert max(errors) == pytest.approx(1.2, abs=0.01)


def test_chat_grows_by_answer_and_question_of_their_lengths_and_the_service_reads_it() -> None:
    first, second = (write_body(turn) for turn in CHAT.turns)
    planned_chars = [(message.role, message.chars) for message in CHAT.turns[1].messages[:-1]]
    prompt = parse("/v1/chat/completions", "application/json", first)

    assert lengths(first) == planned_chars[:2]
    assert lengths(second) == planned_chars
    assert [message.tokens for message in CHAT.turns[1].messages] == [1000, 50, 20, 30, 30]
    assert second.startswith(first.removesuffix(b"]}"))
    assert prompt.first_user_message(50) == messages(first)[1][1][:50]


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

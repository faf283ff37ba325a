"""What vLLM leaves out of a prompt before it caches it makes no difference here either."""

from typing import Any

import orjson
import pytest

from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.prompt.parse import parse
from tests.router.routing.fleet import Fleet
from tests.router.routing.left_out import (
    ALIKE,
    ALIKE_BY_TEMPLATE,
    ALIKE_ELSEWHERE,
    APART,
    APART_BY_TEMPLATE,
    APART_ELSEWHERE,
    ASK,
    GUIDE,
    billing_line,
    user_parts,
)
from tests.tables import table

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"


def head(path: str, **body: Any) -> str:
    return parse(path, "application/json", orjson.dumps({"model": "m", **body})).head(10_000)


@table("one, other", ALIKE.values(), ids=ALIKE)
def test_what_the_engine_leaves_out_tells_no_prompts_apart(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert head(MESSAGES, **one) == head(MESSAGES, **other)


@table("one, other", APART.values(), ids=APART)
def test_what_the_engine_reads_does(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert head(MESSAGES, **one) != head(MESSAGES, **other)


@table("path, one, other", (ALIKE_ELSEWHERE | ALIKE_BY_TEMPLATE).values())
def test_what_other_apis_leave_out_tells_no_prompts_apart(
    path: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert head(f"/v1/{path}", **one) == head(f"/v1/{path}", **other)


@table("path, one, other", (APART_ELSEWHERE | APART_BY_TEMPLATE).values())
def test_what_other_apis_read_does(path: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert head(f"/v1/{path}", **one) != head(f"/v1/{path}", **other)


def test_chats_keep_the_line_as_vllm_does() -> None:
    one, other = ({"role": "system", "content": [billing_line(number), GUIDE]} for number in (1, 2))

    assert head(CHAT, messages=[one]) != head(CHAT, messages=[other])


def turn(number: int, answers: int) -> Query:
    """A later turn of a coding agent's session, with a billing line of its own."""
    said = [{"role": "assistant", "content": f"Step {each}. " * 40} for each in range(answers)]
    asked = [
        user_parts({"type": "text", "text": f"Result {each}. " * 40}) for each in range(answers)
    ]
    history = [message for pair in zip(said, asked, strict=True) for message in pair]
    body = {
        "model": "m",
        "system": [billing_line(number), GUIDE | {"text": "You are an agent. " * 200}],
        "messages": [ASK, *history],
    }
    return Query("POST", MESSAGES, {}, orjson.dumps(body))


def test_a_coding_agents_next_turn_goes_where_the_last_one_went() -> None:
    fleet = Fleet("abcd")
    first = fleet.picker.pick(turn(1, 3)).pick
    first.release()
    fleet.clock.now_s += 10
    decision = fleet.picker.pick(turn(2, 4))

    assert (decision.pick.endpoint, decision.pick.reason) == (first.endpoint, "session")


@pytest.mark.parametrize("names", [("m",), ("m", "alias")])
def test_names_of_one_model_share_what_is_cached_and_adapters_do_not(
    names: tuple[str, ...],
) -> None:
    fleet = Fleet("abcd")
    picker = Picker([Route(fleet.pool, ("m", "alias"), frozenset({"sql"}))])

    def ask(model: str) -> Query:
        body = {"model": model, "messages": [{"role": "user", "content": "Why? " * 500}]}
        return Query("POST", CHAT, {}, orjson.dumps(body))

    keys = {picker.propose(ask(name)).key for name in names}

    assert len(keys) == 1
    assert picker.propose(ask("sql")).key not in keys

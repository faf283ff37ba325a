"""Keys, prefixes and routing keys."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.prompt.parse import Prompt, parse
from extproc.router.routing.prompt.prefix import Key, KeyKind, parse_key, prefix_of, routing_key
from tests.tables import table

FIRST, HEAD, CONVERSATION = (
    parse_key(name) for name in ("first_user_message", "prompt_head", "conversation")
)
SESSION, USER = parse_key("header:X-Session"), parse_key("field:user")
CHAT = "/v1/chat/completions"


def parse_chat(*turns: tuple[str, str], **fields: Any) -> Prompt:
    messages = [{"role": role, "content": content} for role, content in turns]
    return parse(CHAT, "application/json", json.dumps({"messages": messages, **fields}).encode())


PROMPT = parse_chat(("system", "be"), ("user", "hello"), user="me")


@table(
    ("text", "key"),
    [
        ("first_user_message", Key(KeyKind.FIRST_USER_MESSAGE)),
        ("prompt_head", Key(KeyKind.PROMPT_HEAD)),
        ("conversation", Key(KeyKind.CONVERSATION)),
        ("header:X-Session-ID", Key(KeyKind.HEADER, "x-session-id")),
        (" field : prompt_cache_key ", Key(KeyKind.FIELD, "prompt_cache_key")),
        ("field:User", Key(KeyKind.FIELD, "User")),
    ],
)
def test_key_is_read_from_its_text(text: str, key: Key) -> None:
    assert key == parse_key(text)
    assert key == parse_key(str(key))


@table(
    ("text", "why"),
    [
        (
            "",
            "choose from first_user_message, prompt_head, conversation, header:<name>, field:<name>",
        ),
        ("first_message", "is not a key"),
        ("Header:x", "is not a key"),
        ("header", "needs a name: header:<name>"),
        ("field: ", "needs a name: field:<name>"),
        ("conversation:x", "takes no name: write conversation"),
        ("prompt_head:", "takes no name"),
    ],
)
def test_what_is_no_key_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_key(text)


@table(
    ("prompt", "keys", "headers", "prefix"),
    [
        (PROMPT, [FIRST], {}, "hel"),
        (PROMPT, [HEAD], {}, "\x1esy"),
        (PROMPT, [CONVERSATION], {}, PROMPT.conversation(3)),
        (PROMPT, [USER], {}, "me"),
        (PROMPT, [SESSION], {"x-session": "session-1"}, "session-1"),
        (PROMPT, [SESSION, FIRST], {"x-session": "s"}, "s"),
        (PROMPT, [SESSION, FIRST], {}, "hel"),
        (PROMPT, [SESSION, FIRST], {"x-session": ""}, "hel"),
        (PROMPT, [SESSION, parse_key("field:none"), USER, FIRST], {}, "me"),
        (PROMPT, [SESSION], {}, None),
        (PROMPT, [], {"x-session": "s"}, None),
        (None, [FIRST, HEAD, CONVERSATION, USER], {}, None),
        (None, [FIRST, SESSION], {"x-session": "s"}, "s"),
        *(
            (parse_chat(*turns), [FIRST, USER], {}, None)
            for turns in ([], [("system", "be")], [("user", "")])
        ),
    ],
)
def test_first_key_present_wins(
    prompt: Prompt | None, keys: list[Key], headers: dict[str, str], prefix: str | None
) -> None:
    assert prefix == prefix_of(prompt, keys, 3, headers)


def test_routing_key_is_the_same_in_every_release() -> None:
    assert (
        routing_key("Once upon", model="llama", adapter="sql", cache_salt="s")
        == 13_718_901_486_457_590_997
    )


fields = st.tuples(st.text(), st.text(), st.text(), st.text())


Fields = tuple[str, str, str, str]


def key_of_fields(prefix: str, model: str, adapter: str, salt: str) -> int:
    """The key of these fields: 64 bits, alike only where their bytes are."""
    return routing_key(prefix, model=model, adapter=adapter, cache_salt=salt)


@given(fields, fields)
def test_different_fields_are_framed_differently(one: Fields, other: Fields) -> None:
    assert (key_of_fields(*one) == key_of_fields(*other)) == (one == other)


@given(st.text(st.sampled_from("1,:a"), max_size=9), st.tuples(*[st.integers(0, 9)] * 3))
def test_text_moved_between_fields_is_framed_differently(text: str, cuts: tuple[int, ...]) -> None:
    first, second, third = sorted(cuts)
    one = (text[:first], text[first:second], text[second:third], text[third:])
    others = [("", "", "", text), (text, "", "", ""), ("", text, "", ""), ("", "", text, "")]

    assert all((key_of_fields(*one) == key_of_fields(*other)) == (one == other) for other in others)


def test_prefix_that_utf8_cannot_spell_has_a_routing_key() -> None:
    assert routing_key("\udcff", model="m") != routing_key("?", model="m")


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
turns = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), texts), max_size=6
)


@given(turns, turns, st.integers(0, 200))
def test_head_of_a_turn_starts_the_head_of_the_next(
    earlier: list[tuple[str, str]], later: list[tuple[str, str]], chars: int
) -> None:
    now, then = parse_chat(*earlier).head(chars), parse_chat(*earlier, *later).head(chars)
    assert then.startswith(now)
    if len(now) == chars:
        assert then == now


@table(
    "api",
    [
        ("/v1/responses", "instructions", "input"),
        ("/v1/messages", "system", "messages"),
        (CHAT, "", "messages"),
    ],
)
@given(texts, texts, turns, st.integers(1, 40))
def test_conversation_keeps_its_routing_keys(
    api: tuple[str, str, str], system: str, first: str, later: list[tuple[str, str]], chars: int
) -> None:
    path, system_field, items = api
    opening = [("user", first)] if system_field else [("system", system), ("user", first)]
    fields = {system_field: system} if system_field else {}
    prompts = [
        parse(
            path,
            "",
            json.dumps({**fields, items: [{"role": r, "content": c} for r, c in chat]}).encode(),
        )
        for chat in (opening, [*opening, *later])
    ]
    for key in (FIRST, CONVERSATION):
        now, then = (prefix_of(prompt, [key], chars, {}) for prompt in prompts)
        assert now == then

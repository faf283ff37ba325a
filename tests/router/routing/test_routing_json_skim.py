"""Large bodies: read as small ones are, at a cost that has a bound, whatever they hold."""

import gc
import json
import sys
import tracemalloc
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.errors import PromptError, PromptTooComplex
from extproc.router.routing.prompt.json_effort import LIMITS, ReadLimits
from extproc.router.routing.prompt.json_reader import RECODED_BYTES
from extproc.router.routing.prompt.json_skim import Skim
from extproc.router.routing.prompt.parse import Prompt, parse
from tests.hostile import CHAT, HONEST, HOSTILE, Body, content, fill
from tests.tables import table

PATHS = [
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/score",
    "/v1/systemone",
    "/invocations",
    "/x",
]
WHOLE = replace(LIMITS, whole_bytes=1 << 40)
# Small enough that a few bytes are a large body, long values and many windows.
TINY = replace(LIMITS, whole_bytes=0, near_bytes=8, text_bytes=16, window_bytes=16)
SKIMS = [TINY, replace(LIMITS, whole_bytes=0), replace(TINY, skip_bytes=0)]


def answers(prompt: Prompt, chars: int) -> list[str | None]:
    return [
        prompt.model,
        prompt.cache_salt,
        prompt.field("user"),
        prompt.first_user_message(chars),
        prompt.head(chars),
        prompt.conversation(chars),
    ]


def read_both(
    path: str, body: bytes, chars: int, limits: ReadLimits
) -> tuple[list[str | None], list[str | None]]:
    whole, skimmed = (parse(path, "", body, limits=given) for given in (WHOLE, limits))
    return answers(whole, chars), answers(skimmed, chars)


texts = st.text() | st.text(st.sampled_from('a"\\\n\u00e9世😀{}[],: '), max_size=60)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
parts = st.one_of(
    texts,
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"image_url": texts | st.fixed_dictionaries({"detail": texts, "url": texts})}),
    st.fixed_dictionaries({"content": st.lists(st.fixed_dictionaries({"text": texts}), max_size=3)}),
    st.dictionaries(texts, values, max_size=3),
    values,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool"])},
    optional={
        "content": parts | st.lists(parts, max_size=4),
        "tool_calls": st.lists(values, max_size=2),
        "name": texts,
    },
)
prompts = st.one_of(
    texts,
    st.lists(messages, max_size=5),
    st.lists(texts, max_size=3),
    st.lists(st.lists(messages, max_size=2), max_size=2),
    st.lists(st.integers(0, 200_000), max_size=30),
    st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=3),
    values,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ["messages", "prompt", "input", "system", "instructions", "documents", "query", "state"], prompts
        ),
        "tools": st.lists(values, max_size=3),
        **dict.fromkeys(["model", "cache_salt", "user"], texts | scalars),
        **dict.fromkeys(["x", "y"], values),
    },
)


@given(
    st.sampled_from(PATHS),
    requests,
    st.tuples(st.integers(0, 80), st.integers(1, 400)),
    st.sampled_from(SKIMS),
    st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 1}, {"indent": 9, "ensure_ascii": False}]),
)
@example("/v1/chat/completions", {"messages": [0]}, (1, 1), SKIMS[0], {})
@example("/v1/chat/completions", {"tools": [{"a": "why " * 9, "b": [7] * 40}]}, (80, 9), SKIMS[0], {})
def test_large_body_gives_the_prompt_that_a_small_one_gives(
    path: str, request: dict[str, Any], lengths: tuple[int, int], limits: ReadLimits, written: dict[str, Any]
) -> None:
    """And any part of it gives one, too."""
    chars, cut = lengths
    body = json.dumps(request, **written).encode(errors="replace")

    whole, skimmed = read_both(path, body, chars, limits)
    assert whole == skimmed
    for given_limits in (WHOLE, limits):
        part = parse(path, "", body[:cut], is_partial=True, limits=given_limits)
        for texts_ in (whole, answers(part, chars)):
            assert all(len(text or "") <= chars for text in texts_[3:5])
            "".join(text or "" for text in texts_).encode()  # may be logged, sent or hashed


def ask(body: Body, *, is_partial: bool = False) -> Prompt | None:
    try:
        prompt = parse(body.path, body.content_type, body.data, is_partial=is_partial)
    except PromptError:
        return None
    assert answers(prompt, 100)
    return prompt


# The effort that is left may be overdrawn by one step: a search in one window, or one value.
BOUND = LIMITS.effort + LIMITS.reserve + 1_000_000
SIZE = 4_000_000


@pytest.mark.parametrize("size", [65_000, SIZE, 31_000_000])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_body_takes_bounded_effort(kind: str, size: int) -> None:
    prompt = ask(HOSTILE[kind](size))

    assert prompt is None or prompt.effort <= BOUND


@table("kind", ["arrays 480 deep", "small objects", "empty arrays", "open brackets"])
def test_small_body_of_many_brackets_is_read_with_a_bound_too(kind: str) -> None:
    prompt = ask(HOSTILE[kind](LIMITS.whole_bytes // 2))

    assert prompt is not None
    assert prompt.effort > 0


def test_image_is_hashed_once_for_all_keys() -> None:
    prompt = ask(HONEST["an image"](SIZE))
    assert prompt is not None
    before = prompt.effort

    assert prompt.head(100) == prompt.head(100)
    assert prompt.effort - before < SIZE // 16


@table("is_partial", [False, True])
@table("kind", HOSTILE)
def test_hostile_body_takes_bounded_calls(kind: str, is_partial: bool) -> None:
    """Counts what `Effort` does not know of: every call, of Python and of C."""
    body = HOSTILE[kind](SIZE)
    body = body._replace(data=body.data[: -9 if is_partial else None])
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        ask(body, is_partial=is_partial)
    finally:
        sys.setprofile(None)

    assert calls <= 300_000


@table("kind", HOSTILE)
def test_hostile_body_takes_little_memory_and_its_model_is_found(kind: str) -> None:
    body = HOSTILE[kind](SIZE)
    tracemalloc.start()
    try:
        prompt = ask(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes <= 4_000_000
    assert (prompt and prompt.model) == (body.model if prompt else None)


@table("size", [100_000, 3_000_000])
@table("kind", HONEST)
def test_honest_large_body_gives_what_a_small_one_gives(kind: str, size: int) -> None:
    body = HONEST[kind](size)
    whole, skimmed = (
        parse(body.path, body.content_type, body.data, limits=limits) for limits in (WHOLE, LIMITS)
    )

    assert answers(whole, 300) == answers(skimmed, 300)
    assert skimmed.fault is None


@table("kind", [*HONEST, *HOSTILE])
@table("effort", [0, 1_000, 10_000, 100_000, 1_000_000])
def test_prompt_answers_however_little_may_be_spent(kind: str, effort: int) -> None:
    """Stops at every stage: nothing but `parse` may raise, and what is cut short says so."""
    path, data, content_type, _ = (HONEST.get(kind) or HOSTILE[kind])(200_000)
    for reserve in (0, 10_000, 100_000):
        limits = replace(LIMITS, effort=effort, reserve=reserve)
        try:
            prompt = parse(path, content_type, data, limits=limits)
        except PromptError:
            continue
        answers(prompt, 100)


LARGE = replace(LIMITS, whole_bytes=0)
LONG = b"x" * 70_000


@table(
    ("body", "model", "first"),
    [
        (b'{"model":"m","prompt":"%b' % LONG, "m", "xxx"),
        (b'{"model":"m","prompt":"\\"%b\\' % LONG, "m", '"xx'),
        (rb'{"model":"m","prompt":"%b\u4e' % (rb"\"" * 40_000), "m", '"""'),
        (b'{"model":"m","prompt":["%b' % LONG, "m", "xxx"),
        (b'{"model":"m","prompt":[{"role":"user","content":"%b' % LONG, "m", "xxx"),
        (b'{"model":"m","prompt":[1,2,3' + b" " * 70_000, "m", "1,2"),
        (b'{"prompt":"abc","model":"%b' % LONG, None, "abc"),
        (b'{"prompt":"abc","x":%b,"user":12' % LONG.replace(b"x", b"1")[:50_000], None, "abc"),
        (b'{"prompt":"abc","model":"m"' + b" " * 70_000, "m", "abc"),
    ],
)
def test_large_partial_body_is_read_as_far_as_it_came(body: bytes, model: str | None, first: str) -> None:
    prompt = parse("/v1/completions", "", body, is_partial=True, limits=LARGE)

    assert (model, first) == (prompt.model, prompt.first_user_message(3))
    assert prompt.field("user") is None


@table("body", [b"", b" " * 9, b"[]", b'{"a" 1}', b"{1:2}", b'{"a":1 "b":2}', b'{"a":1,}', b"{}{}", b'{"a":'])
def test_large_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(PromptError):
        parse(CHAT, "", body, limits=LARGE)


@table(
    ("messages", "first"),
    [
        (b'[{"role":"user","content":"%b\xff"}]' % LONG, "x" * 9),
        (b'[{"role":"user","content":"%b"}]' % (b"\x00" * 70_000), ""),
        (b'[{"role":"user","content":"%b"}]' % (rb"\\" * 40_000), ""),
        (b'[{"role":"user","content":"hi"} "%b"]' % LONG, "hi"),
        (b'[{"role":"user","content":"hi","x":}, "%b"]' % LONG, "hi"),
        (b'[{"role":"user","content":"%b"}]' % (rb"\q" * 40_000), ""),
    ],
)
def test_broken_message_of_a_large_body_costs_no_more_than_its_prompt(messages: bytes, first: str) -> None:
    prompt = parse(CHAT, "", b'{"model":"m","messages":%b}' % messages, limits=LARGE)

    assert ("m", first) == (prompt.model, prompt.first_user_message(9))


def test_large_body_in_utf_16_is_read_unless_it_is_very_large() -> None:
    body = json.dumps({"model": "m", "prompt": "é😀" * 40_000}).encode("utf-16")

    assert parse("/v1/completions", "", body).first_user_message(4) == "é😀é😀"
    with pytest.raises(PromptError):
        parse("/v1/completions", "", json.dumps({"x": "y" * RECODED_BYTES}).encode("utf-16"))


@table(
    ("path", "body", "head"),
    [
        ("/v1/completions", b'{"prompt":[1,%b1]}' % (b" " * 700), "1,1"),
        (CHAT, b'{"messages":[{"role":"somebody-whom-nobody-knows"}]}', "\x1esomebody-whom-nobody-knows\x1f"),
    ],
)
def test_numbers_far_apart_and_a_long_role_are_read(path: str, body: bytes, head: str) -> None:
    assert [parse(path, "", body, limits=limits).head(99) for limits in (LARGE, TINY)] == [head] * 2


def test_what_is_left_in_the_body_shows_no_text() -> None:
    skim = Skim(b'{"a":"%b"}' % LONG)
    [(_, start)] = skim.top()

    assert LONG[:20].decode() not in repr(skim.value(start))


def test_text_that_ends_too_far_away_still_has_a_head() -> None:
    body = content(fill(rb"say \"hi\", ", 30_000_000))
    prompt = parse(body.path, "", body.data)

    assert isinstance(prompt.fault, PromptTooComplex)
    assert (prompt.model, prompt.first_user_message(9)) == ("m", 'say "hi",')


def test_odd_model_at_the_end_is_read_as_anywhere() -> None:
    body = HOSTILE["small objects"](SIZE).data.replace(b'"model":"m"', rb'"model":"\ud800m"')

    assert parse(CHAT, "", body).model == "?m"


@table("kind", HOSTILE)
def test_body_is_gone_when_its_prompt_is(kind: str) -> None:
    """Without a garbage collection, which would let a dozen bodies of 31 MB pile up."""
    body = HOSTILE[kind](SIZE)
    gc.disable()
    try:
        before = sys.getrefcount(body.data)
        ask(body)
        after = sys.getrefcount(body.data)
    finally:
        gc.enable()

    assert before == after

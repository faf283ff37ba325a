"""Large bodies: read as small ones are, at a cost that has a bound, whatever they hold."""

import gc
import json
import math
import sys
import tracemalloc
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.errors import PromptError, PromptTooComplex
from extproc.router.routing.prompt.chain import chain_of
from extproc.router.routing.prompt.json_reader import LIMITS
from extproc.router.routing.prompt.media import DIGEST
from extproc.router.routing.prompt.parse import Prompt, parse
from tests.hostile import CHAT, HONEST, HOSTILE, Body, content
from tests.tables import table

PATHS = [
    *(CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/score", "/v1/systemone"),
    *("/invocations", "/x"),
]
WHOLE = replace(LIMITS, small_bytes=1 << 40)
LARGE = replace(LIMITS, small_bytes=0)
# A few bytes are a large body, of which a few are read.
TINY = replace(LARGE, head_bytes=64, tail_bytes=32, medium_bytes=8, containers=4, values=8)


def prompt_fields(prompt: Prompt, chars: int) -> list[str | None]:
    return [
        prompt.model,
        prompt.cache_salt,
        prompt.field("user"),
        prompt.first_user_message(chars),
        prompt.head(chars),
        prompt.conversation(chars),
    ]


texts = st.text() | st.text(st.sampled_from('a"\\\n\u00e9世😀{}[],: '), max_size=60)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
parts = st.one_of(
    texts,
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries(
        {"image_url": texts | st.fixed_dictionaries({"detail": texts, "url": texts})}
    ),
    st.fixed_dictionaries(
        {"content": st.lists(st.fixed_dictionaries({"text": texts}), max_size=3)}
    ),
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
            [
                "messages",
                "prompt",
                "input",
                "system",
                "instructions",
                "documents",
                "query",
                "state",
            ],
            prompts,
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
    st.sampled_from(
        [{}, {"ensure_ascii": False}, {"indent": 1}, {"indent": 9, "ensure_ascii": False}]
    ),
)
@example("/v1/chat/completions", {"messages": [0]}, (1, 1), {})
@example("/x", {"user": 1e16, "tools": [math.inf]}, (1, 1), {})
@example("/v1/chat/completions", {"tools": [{"a": "why " * 9, "b": [7] * 40}]}, (80, 9), {})
def test_large_body_gives_the_prompt_that_a_small_one_gives(
    path: str, request: dict[str, Any], lengths: tuple[int, int], written: dict[str, Any]
) -> None:
    """And any part of it, and as much as may be read of it, gives one, too."""
    chars, cut = lengths
    body = json.dumps(request, **written).encode(errors="replace")
    whole, large = (
        prompt_fields(parse(path, "", body, limits=limits), chars) for limits in (WHOLE, LARGE)
    )
    assert whole == large

    for limits, is_partial in ((WHOLE, True), (LARGE, True), (TINY, True), (TINY, False)):
        part = body[: cut if is_partial else None]
        try:
            texts_ = prompt_fields(
                parse(path, "", part, is_partial=is_partial, limits=limits), chars
            )
        except PromptTooComplex:
            continue
        assert all(len(text or "") <= chars for text in texts_[3:5])
        "".join(text or "" for text in texts_).encode()  # may be logged, sent or hashed


def parse_body(body: Body, *, is_partial: bool = False) -> Prompt | None:
    try:
        prompt = parse(body.path, body.content_type, body.data, is_partial=is_partial)
    except PromptError:
        return None
    assert prompt_fields(prompt, 100)
    return prompt


SIZE = 4_000_000


@table("is_partial", [False, True])
@table("kind", HOSTILE)
def test_hostile_body_takes_bounded_calls(kind: str, is_partial: bool) -> None:
    """Of Python and of C; what one call takes is bounded by bytes, containers and values."""
    body = HOSTILE[kind](SIZE)
    body = body._replace(data=body.data[: -9 if is_partial else None])
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        parse_body(body, is_partial=is_partial)
    finally:
        sys.setprofile(None)

    assert calls <= 300_000


@table("kind", HOSTILE)
def test_hostile_body_takes_little_memory_and_its_model_is_found(kind: str) -> None:
    body = HOSTILE[kind](SIZE)
    tracemalloc.start()
    try:
        prompt = parse_body(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes <= 12_000_000
    assert (prompt and prompt.model) == (body.model if prompt else None)


@table("kind", HONEST)
def test_honest_large_body_gives_what_a_small_one_gives(kind: str) -> None:
    body, whole_of = HONEST[kind](1_000_000), HONEST[kind](3_000_000)
    small, large = (
        parse(body.path, body.content_type, body.data, limits=each) for each in (WHOLE, LIMITS)
    )
    assert prompt_fields(small, 300) == prompt_fields(large, 300)

    prompt = parse(whole_of.path, whole_of.content_type, whole_of.data)

    assert (prompt.head(14), prompt.model) == (small.head(14), "m")
    assert large.fault is None
    assert prompt.fault is None or kind in {"token ids", "tools and text"}


def test_image_is_the_same_in_every_turn_however_large_the_body_becomes() -> None:
    """Where it is read as it is, and where its digest stands for it."""
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 5_000},
    }
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    more = [{"role": "assistant", "content": "It is, I think, a cat. " * 5_000}]
    small, large = (json.dumps({"messages": each}).encode() for each in (messages, messages + more))
    first, later = (chain_of(parse(CHAT, "", body).turns(1 << 20), 1) for body in (small, large))

    assert len(small) < LIMITS.small_bytes < len(large)
    assert later.hashes[: len(first)] == first.hashes
    assert DIGEST not in parse(CHAT, "", large).first_user_message(99)


@table(
    ("text", "is_kept"),
    [
        (b"some text, " * 4_000, True),
        (rb"\u4e16\u754c" * 4_000, True),
        (b'say \\"' + b"A" * 40_000 + b'\\"', True),
        (rb"iVBOR\/w0K" * 4_000, False),
    ],
)
def test_long_text_without_quotes_is_a_text_unless_it_is_base64(text: bytes, is_kept: bool) -> None:
    body = content(text)
    first = parse(body.path, "", body.data.replace(b'"x"', b'"%b"' % (b"some text " * 9_000)))
    whole = parse(body.path, "", body.data, limits=WHOLE)

    assert (first.first_user_message(99_999) == whole.first_user_message(99_999)) is is_kept
    assert first.model == "m"


def test_a_long_word_that_is_cut_off_begins_alike_wherever_it_is_cut() -> None:
    body = content(b"m" * 2_000_000).data
    parts = [parse(CHAT, "", body[:size], is_partial=True) for size in (900_000, 1_100_000)]

    assert {part.first_user_message(99) for part in parts} == {"m" * 99}


@table(
    ("tail", "model"),
    [
        (b'"model":"m"', "m"),
        (b'"model" :\n "m","tools":[{"model":"x"}],"x":"}"', "m"),
        (b'"model":"x","model":"m"', "m"),
        (b'"tools":[{"model":"x"}]', None),
        (b'"user":"\\"model\\":\\"x\\""', None),
        (b'"model":5,"x":"model"', None),
        (b'"model":"m","tools":[%b{}]' % (b"{}," * 9_000), None),
        (b'"model":"m","tools":"%b"' % (b"many " * 20_000), None),
    ],
)
def test_model_behind_a_long_prompt_is_found_among_the_last_members(
    tail: bytes, model: str | None
) -> None:
    body = b'{"messages":[{"role":"user","content":"%b"}],%b}' % (b"some text " * 250_000, tail)
    prompt = parse(CHAT, "", body)

    assert (prompt.model, prompt.first_user_message(9)) == (model, "some text")
    assert isinstance(prompt.fault, PromptTooComplex) is (model is None)


LONG = b"x, " * 30_000


@table(
    ("body", "model", "first"),
    [
        (b'{"model":"m","prompt":"%b' % LONG, "m", "x, "),
        (b'{"model":"m","prompt":"\\"%b\\' % LONG, "m", '"x,'),
        (rb'{"model":"m","prompt":"%b\u4e' % (rb"\"" * 40_000), "m", '"""'),
        (b'{"model":"m","prompt":["%b' % LONG, "m", "x, "),
        (b'{"model":"m","prompt":[{"role":"user","content":"%b' % LONG, "m", "x, "),
        (b'{"model":"m","prompt":[1,2,3' + b" " * 70_000, "m", "1,2"),
        (b'{"prompt":"abc","model":"%b' % LONG, None, "abc"),
        (b'{"prompt":"abc","x":%b,"user":12' % LONG.replace(b"x, ", b"111")[:300], None, "abc"),
        (b'{"prompt":"abc","model":"m"' + b" " * 70_000, None, "abc"),
    ],
)
def test_large_partial_body_is_read_as_far_as_it_came(
    body: bytes, model: str | None, first: str
) -> None:
    prompt = parse("/v1/completions", "", body, is_partial=True, limits=LARGE)

    assert (model, first) == (prompt.model, prompt.first_user_message(3))
    assert prompt.field("user") is None


@table(
    "body",
    [
        *(
            b"",
            b" " * 9,
            b"[]",
            b'{"a" 1}',
            b"{1:2}",
            b'{"a":1 "b":2}',
            b'{"a":1,}',
            b"{}{}",
            b'{"a":',
        ),
        *(b'{"a":[1 "b"]}', b'{"a":[{"b":}]}', b'{"a":"%b"}' % (b"\0" * 70_000), rb'{"a":"\q"}'),
    ],
)
def test_large_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(PromptError):
        parse(CHAT, "", body, limits=LARGE)


def test_member_of_a_large_body_that_nobody_can_read_costs_no_other() -> None:
    prompt = parse("/v1/completions", "", b'{"model":"m","prompt":"%b\xff"}' % LONG)

    assert (prompt.model, prompt.first_user_message(9)) == ("m", "")


@table(
    ("escapes", "text"),
    [
        (rb"\ud83d", "?"),
        (rb"\uDE00\ud83d", "??"),
        (rb"\ud83d\ude00\ude00", "😀?"),
        (rb"\\ud83d\ud83d", r"\ud83d?"),
        (rb"\ud83d\ud83d\ude00", "?😀"),
    ],
)
@table("size", [9, 3_000_000])
def test_half_a_pair_of_surrogates_is_a_question_mark(escapes: bytes, text: str, size: int) -> None:
    body = b'{"model":"m","prompt":"%b%b"}' % (escapes, b"some text. " * (size // 11))
    prompt = parse("/v1/completions", "", body, limits=LARGE)

    assert (prompt.model, prompt.first_user_message(len(text))) == ("m", text)


def test_large_body_in_utf_16_is_read_unless_it_is_very_large() -> None:
    body = json.dumps({"model": "m", "prompt": "é😀" * 40_000}).encode("utf-16")

    assert parse("/v1/completions", "", body).first_user_message(4) == "é😀é😀"
    with pytest.raises(PromptError):
        parse("/v1/completions", "", json.dumps({"x": "y" * LIMITS.head_bytes}).encode("utf-16"))


@table(
    ("path", "body", "head"),
    [
        ("/v1/completions", b'{"prompt":[1,%b1]}' % (b" " * 700), "1,1"),
        (
            CHAT,
            b'{"messages":[{"role":"somebody-whom-nobody-knows"}]}',
            "\x1esomebody-whom-nobody-knows\x1f",
        ),
    ],
)
def test_numbers_far_apart_and_a_long_role_are_read(path: str, body: bytes, head: str) -> None:
    assert [parse(path, "", body, limits=limits).head(99) for limits in (LARGE, WHOLE)] == [
        head
    ] * 2


def test_the_last_of_two_models_counts_as_in_a_small_body() -> None:
    messages = json.dumps([{"role": "user", "content": "word " * 500_000}])
    body = f'{{"model":"a","cache_salt":"x","messages":{messages},"model":"b","cache_salt":"y"}}'
    prompt = parse(CHAT, "", body.encode())

    assert (len(body) > 2_000_000, prompt.model, prompt.cache_salt) == (True, "b", "y")


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
        parse_body(body)
        after = sys.getrefcount(body.data)
    finally:
        gc.enable()

    assert before == after

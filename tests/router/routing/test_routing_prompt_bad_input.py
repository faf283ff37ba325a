"""What vLLM accepts is read, and what nobody can read raises `PromptError` and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import PromptError
from extproc.router.routing.prompt.parse import Prompt, parse
from tests.tables import table

CHAT = "/v1/chat/completions"
PATHS = [
    *(CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/score", "/v1/audio/translations"),
    *("/x", ""),
]
CONTENT_TYPES = ["application/json", "multipart/form-data; boundary=X", "multipart/form-data", ""]
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse_bytes(body: bytes, *, is_partial: bool = False) -> Prompt:
    return parse(CHAT, "application/json", body, is_partial=is_partial)


def ask_everything(prompt: Prompt, chars: int = 100) -> None:
    texts = [prompt.first_user_message(chars), prompt.head(chars), prompt.conversation(chars)]

    assert all(isinstance(text, str) for text in texts)
    assert all(len(text) <= chars for text in texts[:2])
    assert prompt.is_single in {True, False}
    assert prompt.field("user") is None or isinstance(prompt.field("user"), str)
    # Whatever is read may be logged, sent or hashed.
    for text in [*texts, prompt.model or "", prompt.cache_salt]:
        text.encode()


USER = b'"messages":[{"role":"user","content":"hi"}]'
NINES = b"9" * 4000
ACCEPTED = {
    "unknown fields": b'{"model":"m","x":{"y":[1,{}]},"messages":[{"role":"user","content":"hi","z":[]}]}',
    "string stop": b'{"model":"m","stop":"\\n",%s}' % USER,
    "duplicate keys": b'{"model":"x","model":"m","messages":[],%s}' % USER,
    "NaN": b'{"model":"m","temperature":NaN,%s}' % USER,
    "infinities": b'{"model":"m","a":[Infinity,-Infinity],%s}' % USER.replace(b"}", b',"x":NaN}'),
    "huge numbers": b'{"model":"m","n":%s,"e":1e999,%s}' % (NINES, USER),
    "huge numbers in a message": b'{"model":"m",%s}'
    % USER.replace(b"}", b',"x":-1e999,"n":%s}' % NINES),
    "white space": b' \r\n\t{ "model" : "m" , "messages" : [ { "role" : "user" , "content" : "hi" } ] } \n',
    "escaped keys": b'{"mod\\u0065l":"m","messages":[{"\\u0072ole":"us\\u0065r","content":"\\u0068i"}]}',
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(BODY).encode(),
    "UTF-16": json.dumps(BODY).encode("utf-16"),
    "UTF-32": json.dumps(BODY).encode("utf-32-be"),
    "lone surrogate elsewhere": b'{"model":"m","x\\udc00":"\\ud800",%s}' % USER,
    "deep unknown field": b'{"model":"m",%s,"x":%s}' % (USER, b"[" * 800 + b"]" * 800),
    "null content": b'{"model":"m",%s}'
    % USER.replace(b"[", b'[{"role":"assistant","content":null},'),
}


@table("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_vllm_accepts_is_read(body: bytes) -> None:
    prompt = parse_bytes(body)

    assert ("m", "hi") == (prompt.model, prompt.first_user_message(100))


@table(
    ("model", "content", "read_as"),
    [(b"\\ud800m", b"a\\udfffb\\ud83d\\ude00", ("?m", "a?b😀")), (b"m", b"\xff", ("m", ""))],
)
def test_lone_surrogates_are_read_as_question_marks_and_a_message_that_is_not_utf8_is_left_out(
    model: bytes, content: bytes, read_as: tuple[str, str]
) -> None:
    prompt = parse_bytes(
        b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (model, content)
    )

    assert read_as == (prompt.model, prompt.first_user_message(100))


def test_slow_reader_gives_the_same_prompt() -> None:
    tool = {"name": "f", "default": 0.50, "big": 10**30, "list": [1, -2.5e-3, True, None]}
    body = json.dumps({**BODY, "tools": [tool]}).encode()

    assert parse_bytes(body[:-1] + b',"x":NaN}').head(300) == parse_bytes(body).head(300)


UNREADABLE = {
    "nothing": b"",
    "white space": b"  \n",
    "text": b"hello",
    "half an object": b'{"model": "m", "messages": [',
    "two objects": b"{}{}",
    "trailing comma": b'{"model": "m",}',
    "single quotes": b"{'model': 'm'}",
    "array": b'[{"model": "m"}]',
    "string": b'"model"',
    "number": b"17",
    "null": b"null",
    "brackets": b"[" * 100_000,
    "not UTF-8": b'{"mod\xffel": "m"}',
    "zeros": bytes(1000),
    "a number too long for Python": b'{"x":%s,"y":NaN}' % (b"9" * 5000),
}


@table("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_json_object_raises(body: bytes) -> None:
    with pytest.raises(PromptError):
        parse_bytes(body)


DEEP = {
    "braces": b'{"model":"m","x":' + b'{"a":' * 100_000,
    "brackets": b'{"model":"m","x":' + b"[" * 100_000,
    "balanced brackets": b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "messages": b'{"model":"m","messages":' + b'[{"role":"user","content":' * 10_000,
    **{
        f"messages and tools, {name}": b'{"model":"m","messages":%s,"tools":%s}' % (value, value)
        for name, value in (
            ("arrays", b"[" * 900 + b"]" * 900),
            ("messages", b'[{"role":"user","content":' * 200 + b"1" + b"}]" * 200),
        )
    },
}


@table("is_partial", [False, True])
@table("body", DEEP.values(), ids=DEEP.keys())
def test_deep_nesting_is_left_out_or_refused(body: bytes, is_partial: bool) -> None:
    try:
        prompt = parse_bytes(body, is_partial=is_partial)
    except PromptError:
        return
    ask_everything(prompt)

    assert prompt.model == "m"


def test_error_does_not_repeat_the_body() -> None:
    with pytest.raises(PromptError) as caught:
        parse_bytes(b'{"messages": "secret')

    assert "secret" not in caught.value.message


@table("cut", range(1, len(json.dumps(BODY))))
def test_partial_body_is_read_as_far_as_it_came(cut: int) -> None:
    whole = json.dumps(BODY)
    prompt = parse_bytes(whole[:cut].encode(), is_partial=True)

    assert prompt.model in {None, "m"}
    assert prompt.first_user_message(100) == (
        "hi" if '"hi' in whole[:cut] else "h" if '"h' in whole[:cut] else ""
    )


def test_partial_body_never_gives_half_a_name() -> None:
    assert parse_bytes(b'{"cache_salt": "abc", "model": "llama-3', is_partial=True).model is None
    assert (
        parse_bytes(b'{"cache_salt": "abc", "model": "llama-3"', is_partial=True).cache_salt
        == "abc"
    )
    assert parse_bytes(b'{"cache_salt": "ab', is_partial=True).cache_salt == ""


def test_partial_prompt_may_end_in_the_middle_of_a_text() -> None:
    body = '{"model": "m", "prompt": "Once upon a ti€'.encode()[:-1]
    prompt = parse("/v1/completions", "", body, is_partial=True)

    assert ("m", "Once upon a ti") == (prompt.model, prompt.first_user_message(100))


@table("body", [b"", b"[1", b"nonsense", b'{"model": \xff'])
def test_partial_body_that_is_no_object_raises(body: bytes) -> None:
    with pytest.raises(PromptError):
        parse_bytes(body, is_partial=True)


@given(
    st.sampled_from(PATHS), st.sampled_from(CONTENT_TYPES), st.binary(max_size=300), st.booleans()
)
def test_any_bytes_parse_or_fail(
    path: str, content_type: str, body: bytes, is_partial: bool
) -> None:
    try:
        prompt = parse(path, content_type, body, is_partial=is_partial)
    except PromptError:
        return
    ask_everything(prompt)


@given(st.text())
def test_any_text_is_read_as_it_is(text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()

    assert parse_bytes(body).first_user_message(10_000) == text.encode(errors="replace").decode()

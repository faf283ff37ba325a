"""What is read of a request: every API's shapes, in the order in which the model reads them."""

from typing import Any

import orjson
import pytest

from extproc.router.routing.prompt.parse import Prompt, parse
from tests.tables import table

JSON = "application/json"
CHAT = "/v1/chat/completions"
USER = "\x1euser\x1f"
SYSTEM = "\x1esystem\x1f"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
OTHER_PICTURE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,BBBB", "detail": "low"},
}


def parse_json(path: str, body: dict[str, Any]) -> Prompt:
    return parse(path, JSON, orjson.dumps(body))


def chat_prompt(*messages: dict[str, Any], **fields: Any) -> Prompt:
    return parse_json(CHAT, {"model": "m", "messages": list(messages), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


SHAPES: list[tuple[str, dict[str, Any], str, str]] = [
    # path, body, first user message, head
    (CHAT, {"messages": [user("hi")]}, "hi", f"{USER}hi"),
    (
        CHAT,
        {"messages": [{"role": "system", "content": "be"}, user("hi")]},
        "hi",
        f"{SYSTEM}be{USER}hi",
    ),
    (
        CHAT,
        {"messages": [user([{"type": "text", "text": "a"}, {"text": "b"}])]},
        "a\nb",
        f"{USER}a\nb",
    ),
    (CHAT, {"messages": [user(["a", "b"])]}, "a\nb", f"{USER}a\nb"),
    (CHAT, {"messages": [user({"type": "text", "text": "a"})]}, "a", f"{USER}a"),
    (
        CHAT,
        {
            "messages": [
                user("q"),
                {
                    "role": "assistant",
                    "reasoning": "hm",
                    "content": None,
                    "tool_calls": [{"id": "1"}],
                },
            ]
        },
        "q",
        f'{USER}q\x1eassistant\x1fhm\n{{"id":"1"}}',
    ),
    (
        CHAT,
        {"messages": [user("q"), {"role": "tool", "content": "42"}]},
        "q",
        f"{USER}q\x1etool\x1f42",
    ),
    (
        CHAT,
        {"messages": [user("q")], "tools": [{"name": "f"}]},
        "q",
        f'\x1etools\x1f{{"name":"f"}}{USER}q',
    ),
    (
        CHAT,
        {"messages": [user("q")], "documents": [{"text": "d"}]},
        "q",
        f"\x1edocuments\x1fd{USER}q",
    ),
    (CHAT, {"messages": [user("q")], "tools": []}, "q", f"{USER}q"),
    (
        CHAT,
        {"messages": [user([{"image_url": {"detail": "low"}}])]},
        "",
        f'{USER}{{"image_url":{{"detail":"low"}}}}',
    ),
    (
        CHAT,
        {"messages": [user([{"content": [{"content": [{"content": "x"}]}]}])]},
        "",
        f'{USER}{{"content":"x"}}',
    ),
    ("/v1/chat/completions/batch", {"messages": [[user("a")], [user("b")]]}, "a", f"{USER}a"),
    ("/v1/completions", {"prompt": "once upon"}, "once upon", "once upon"),
    ("/v1/completions", {"prompt": ["a", "b"]}, "a", "a"),
    ("/v1/completions", {"prompt": [5, 6, 7]}, "5,6,7", "5,6,7"),
    ("/v1/completions", {"prompt": [[5, 6], [7]]}, "5,6", "5,6"),
    ("/v1/completions", {"prompt": []}, "", ""),
    ("/v1/completions", {"prompt": [[]]}, "", ""),
    ("/v1/completions", {"prompt": None}, "", ""),
    ("/v1/responses", {"input": "hi"}, "hi", f"{USER}hi"),
    (
        "/v1/responses",
        {"instructions": "be", "input": [user([{"type": "input_text", "text": "hi"}])]},
        "hi",
        f"{SYSTEM}be{USER}hi",
    ),
    (
        "/v1/responses",
        {
            "input": [
                user("q"),
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "output": "42", "call_id": "1"},
            ]
        },
        "q",
        USER
        + 'q\x1ereasoning\x1fhm\x1efunction_call\x1f{"name":"f","arguments":{}}\x1efunction_call_output\x1f42',
    ),
    ("/v1/messages", {"system": "be", "messages": [user("hi")]}, "hi", f"{SYSTEM}be{USER}hi"),
    (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "be"}],
            "messages": [user([{"type": "text", "text": "hi"}])],
        },
        "hi",
        f"{SYSTEM}be{USER}hi",
    ),
    (
        "/v1/messages",
        {
            "messages": [
                user([{"type": "tool_result", "content": [{"type": "text", "text": "42"}]}])
            ]
        },
        "",
        f"{USER}42",
    ),
    (
        "/v1/messages",
        {
            "messages": [
                user("q"),
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
            ]
        },
        "q",
        f"{USER}q\x1eassistant\x1fhm",
    ),
    ("/v1/embeddings", {"input": "text"}, "text", "text"),
    ("/v1/embeddings", {"input": [1, 2]}, "1,2", "1,2"),
    ("/v1/embeddings", {"messages": [user("hi")]}, "hi", f"{USER}hi"),
    ("/v1/embeddings", {"input": [user("hi")]}, "hi", f"{USER}hi"),
    ("/v2/embed", {"texts": ["a", "b"]}, "a", "a"),
    ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "a", "a"),
    ("/pooling", {"input": "text"}, "text", "text"),
    ("/classify", {"input": ["a", "b"]}, "a", "a"),
    ("/score", {"text_1": "q", "text_2": ["a", "b"]}, "q", "qa"),
    ("/v1/score", {"queries": ["q"], "documents": "a"}, "q", "qa"),
    ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, "q", "qa"),
    (
        "/v2/rerank",
        {"query": {"content": [{"type": "text", "text": "q"}]}, "documents": []},
        "q",
        "q",
    ),
    ("/generative_scoring", {"query": [1, 2], "items": [[3]]}, "1,2", "1,23"),
    ("/inference/v1/generate", {"token_ids": [1, 2]}, "1,2", "1,2"),
    ("/generate", {"input_ids": [1, 2]}, "1,2", "1,2"),
    ("/generate", {"text": "hello", "sampling_params": {}}, "hello", "hello"),
    ("/generate", {"text": ["hello", "you"]}, "hello", "hello"),
    ("/generate", {"input_ids": [[1, 2], [3]]}, "1,2", "1,2"),
    ("/v1/systemone", {"instructions": "be", "state": {"a": 1}}, "be", 'be{"a":1}'),
    ("/invocations", {"prompt": "p"}, "p", "p"),
    ("/invocations", {"messages": [user("hi")]}, "hi", f"{USER}hi"),
    ("/cohere/v2/chat", {"messages": [user("hi")], "prompt": "p"}, "hi", f"{USER}hi"),
    *(
        (path, {"prompt": "p", "input": "p", "messages": [user("hi")]}, "", "")
        for path in (
            *(
                "/tokenize",
                "/detokenize",
                "/v1/messages/count_tokens",
                "/v1/chat/completions/render",
            ),
            *(
                "/v1/audio/transcriptions",
                "/v1/audio/translations",
                "/v1/models",
                "/unknown/path",
                "/",
            ),
        )
    ),
]


@table(("path", "body", "first", "head"), SHAPES)
def test_every_shape_of_every_api_is_read(
    path: str, body: dict[str, Any], first: str, head: str
) -> None:
    prompt = parse_json(path, body)

    assert (first, head) == (prompt.first_user_message(100), prompt.head(200))


@table("path", [CHAT, "/tokenize", "/v1/audio/transcriptions", "/unknown", "/"])
@table(
    ("body", "model", "salt"),
    [
        ({"model": "m"}, "m", ""),
        *(({"model": odd, "cache_salt": "s"}, None, "s") for odd in (None, 7, ["m"])),
        ({"cache_salt": 1}, None, ""),
    ],
)
def test_any_path_has_model_and_salt(
    path: str, body: dict[str, Any], model: str | None, salt: str
) -> None:
    assert (parse_json(path, body).model, parse_json(path, body).cache_salt) == (model, salt)


@table("chars", [*range(13), 100])
def test_texts_are_cut_at_code_points_and_token_ids_at_characters(chars: int) -> None:
    prompt = chat_prompt({"role": "system", "content": "sö"}, user("a😀世"))

    assert prompt.first_user_message(chars) == "a😀世"[:chars]
    assert prompt.head(chars) == f"{SYSTEM}sö{USER}a😀世"[:chars]
    assert parse_json("/v1/completions", {"prompt": [12, 34]}).head(chars) == "12,34"[:chars]


def test_token_ids_are_read_as_far_as_needed() -> None:
    body = b'{"prompt": [ 1 ,\n 2 , "not read": '

    with pytest.raises(Exception, match="not a JSON object"):
        parse("/v1/completions", JSON, body)
    assert parse("/v1/completions", JSON, b'{"prompt": [ 1 ,\n 2 , "odd"]}').head(9) == "1,2"


def test_medium_counts_by_its_data() -> None:
    url = PICTURE["image_url"]["url"]  # type: ignore[index]
    again = {"image_url": {"detail": "high", "url": url}, "type": "image_url"}

    def head(part: object) -> str:
        return chat_prompt(user([{"type": "text", "text": "look"}, part])).head(100)

    assert head(PICTURE) == head(again)
    assert head(PICTURE) != head(OTHER_PICTURE)
    assert chat_prompt(user([PICTURE])).first_user_message(100) == ""


MEDIA = [
    {"type": "image_url", "image_url": "http://a/1.png"},
    {"type": "input_image", "image_url": "http://a/2.png"},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "video_url", "video_url": {"url": "http://a/3.mp4"}},
    {"type": "audio_url", "audio_url": {"url": "http://a/4.wav"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "image_embeds", "image_embeds": "AAAA"},
    {"type": "image_embeds", "image_embeds": {"data": "BBBB"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "CCCC"}},
    {"type": "image", "source": {"type": "url", "url": "http://a/5.png"}},
    {"type": "file", "file": {"file_data": "DDDD", "filename": "a.pdf"}},
    {"type": "input_file", "file_url": "http://a/6.pdf"},
]


def test_media_of_every_kind_have_keys_of_their_own() -> None:
    heads = {chat_prompt(user([part])).head(100) for part in MEDIA}

    assert len(heads) == len(MEDIA)
    assert all(len(head) < 60 for head in heads)


def test_medium_sent_by_uuid_alone_is_the_one_sent_before() -> None:
    first = {**PICTURE, "uuid": "u1"}
    later = {"type": "image_url", "image_url": None, "uuid": "u1"}

    assert chat_prompt(user([first])).head(100) == chat_prompt(user([later])).head(100)


ODD_MESSAGES = [
    "text",
    7,
    None,
    {},
    [None, 1, True],
    [[1]],
    [user(None)],
    [user(5)],
    [{"role": 3}],
    [{}],
]


@table("messages", [*ODD_MESSAGES, [user([[["x"]]])]])
def test_odd_messages_cost_affinity_and_nothing_else(messages: object) -> None:
    prompt = parse_json(CHAT, {"model": "m", "messages": messages})

    assert prompt.model == "m"
    assert prompt.conversation(100) == prompt.first_user_message(100)


@table("depth", [100, 500])
def test_tool_nested_deeply_is_read_or_left_out(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    tools = parse(CHAT, JSON, b'{"messages":[],"tools":[{"a":%b}]}' % deep).head(9_000)

    assert tools in {"", f'\x1etools\x1f{{"a":{deep.decode()}}}'}


def test_conversation_is_the_system_text_and_the_first_user_message() -> None:
    system = {"role": "system", "content": "You are helpful. " * 100}
    other_system = {"role": "system", "content": "You are helpful. " * 99 + "You are terse."}

    same = [
        chat_prompt(system, user("hi")).conversation(100),
        chat_prompt(system, user("hi"), user("more")).conversation(100),
    ]
    others = [
        chat_prompt(system, user("ho")),
        chat_prompt(other_system, user("hi")),
        chat_prompt(user("hi")),
    ]

    assert same[0] == same[1]
    assert len({same[0], *(other.conversation(100) for other in others)}) == 4


def test_conversation_reads_the_developer_as_system_and_stops_at_the_user() -> None:
    developer, system = ({"role": role, "content": "be"} for role in ("developer", "system"))
    later = {"role": "system", "content": "later"}

    assert chat_prompt(developer, user("hi")).conversation(100) == chat_prompt(
        system, user("hi"), later
    ).conversation(100)
    assert chat_prompt(system).conversation(100) == ""


@table(
    ("field", "text"),
    [
        ("s", "x"),
        ("i", "7"),
        ("f", "1.50"),
        ("big", "9" * 400),
        *((odd, None) for odd in ("b", "n", "o", "no")),
    ],
)
def test_field_is_a_string_or_a_number_as_written(field: str, text: str | None) -> None:
    body = b'{"s": "x", "i" : 7 , "f": 1.50, "big": %s, "b": true, "n": null, "o": {}}' % (
        b"9" * 400
    )

    assert parse(CHAT, JSON, body).field(field) == text


@table("content_type", ["", "text/plain", "application/json; charset=utf-8", "application/xml"])
def test_body_is_read_as_json_whatever_its_content_type(content_type: str) -> None:
    assert parse(CHAT, content_type, b'{"model": "m"}').model == "m"


def test_body_may_be_a_view() -> None:
    body = memoryview(b'..{"model": "m", "messages": [{"role": "user", "content": "hi"}]}..')[2:-2]

    assert parse(CHAT, JSON, body).first_user_message(100) == "hi"


def test_prompt_shows_nothing_that_a_log_must_not_hold() -> None:
    assert repr(chat_prompt(user("secret"), cache_salt="secret")) == "Prompt(model='m')"

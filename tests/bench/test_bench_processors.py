"""Every API: the body of a request, and how its answers are read."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.datasets.conversation import TurnMessage
from extproc.bench.processors.collector import collect_stream, collect_whole
from extproc.bench.processors.openai import (
    AnthropicMessages,
    OpenAIChat,
    OpenAICompletions,
    OpenAIResponses,
)
from extproc.bench.processors.processor import ChatQuery, Processor
from extproc.bench.record import Record, TokenSource
from tests.tables import table

CHAT = (TurnMessage("system", "be brief"), TurnMessage("user", "hi"))
ASK = ChatQuery("m", CHAT, 5)
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
RESPONSE_USAGE = {
    "input_tokens": 9,
    "output_tokens": 2,
    "input_tokens_details": {"cached_tokens": 8},
}
ALL: list[Processor] = [OpenAIChat(), OpenAICompletions(), OpenAIResponses(), AnthropicMessages()]


TOLD = {"model": "m", "max_tokens": 5, "stream": True}
COUNTED = {"stream_options": {"include_usage": True}}


@table(
    ("processor", "path", "body"),
    [
        (OpenAIChat(), "/v1/chat/completions", {**TOLD, **COUNTED, "messages": MESSAGES}),
        (
            OpenAICompletions(forces_length=True),
            "/v1/completions",
            {**TOLD, **COUNTED, "prompt": "be brief\n\nhi", "ignore_eos": True},
        ),
        (
            OpenAIResponses(),
            "/v1/responses",
            {"model": "m", "input": MESSAGES, "max_output_tokens": 5, "stream": True},
        ),
        (
            AnthropicMessages(),
            "/v1/messages",
            {**TOLD, "system": "be brief", "messages": MESSAGES[1:]},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_request_is_what_the_api_expects(
    processor: Processor, path: str, body: dict[str, object]
) -> None:
    assert (processor.path(ASK), processor.body(ASK)) == (path, body)


def sse(*payloads: object, done: bool = True) -> bytes:
    events = b"".join(b"data: " + msgspec.json.encode(payload) + b"\n\n" for payload in payloads)
    return events + (b"data: [DONE]\n\n" if done else b"")


STREAMS: list[tuple[Processor, bytes]] = [
    (
        OpenAIChat(),
        sse(
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"reasoning": "he"}}]},
            {"choices": [{"delta": {"content": "llo"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": USAGE},
        ),
    ),
    (
        OpenAICompletions(),
        sse({"choices": [{"text": "he"}]}, {"choices": [{"text": "llo"}]}, {"usage": USAGE}),
    ),
    (
        OpenAIResponses(),
        sse(
            {"type": "response.created", "response": {}},
            {"type": "response.reasoning_text.delta", "delta": "he"},
            {"type": "response.output_text.delta", "delta": "llo"},
            {"type": "response.completed", "response": {"usage": RESPONSE_USAGE}},
            done=False,
        ),
    ),
    (
        AnthropicMessages(),
        sse(
            {
                "type": "message_start",
                "message": {
                    "usage": {"input_tokens": 1, "cache_read_input_tokens": 8, "output_tokens": 0}
                },
            },
            {"type": "ping"},
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "he"}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "llo"}},
            {"type": "message_delta", "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
            done=False,
        ),
    ),
]


@table(("processor", "stream"), STREAMS, ids=lambda value: type(value).__name__)
def test_stream_gives_text_chunks_and_tokens(processor: Processor, stream: bytes) -> None:
    record = Record(0, 0, 0, 0.0)
    collect_stream(record, [(1.0, stream)], processor)

    assert record.failure is None
    assert (record.text, record.chunk_s, record.first_token_s) == ("hello", [1.0, 1.0], 1.0)
    assert record.token_source is TokenSource.SERVER
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (9, 2, 8)


@table(
    ("processor", "answer"),
    [
        (OpenAIChat(), {"choices": [{"message": {"content": "hello"}}], "usage": USAGE}),
        (OpenAICompletions(), {"choices": [{"text": "hello"}], "usage": USAGE}),
        (
            OpenAIResponses(),
            {
                "object": "response",
                "error": None,
                "output": [
                    {"type": "message", "content": [{"type": "output_text", "text": "hello"}]}
                ],
                "usage": RESPONSE_USAGE,
            },
        ),
        (
            AnthropicMessages(),
            {
                "type": "message",
                "content": [{"type": "text", "text": "hello"}],
                "usage": {"input_tokens": 9, "output_tokens": 2},
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whole_answer_gives_text(processor: Processor, answer: dict[str, Any]) -> None:
    record = Record(0, 0, 0, 0.0)
    collect_whole(record, [(1.0, msgspec.json.encode(answer))], processor)

    assert (record.failure, record.text, record.first_token_s) == (None, "hello", None)


@table(
    ("processor", "payload"),
    [
        (OpenAIChat(), {"error": {"message": "broken", "type": "x"}}),
        (OpenAIChat(), {"object": "error", "message": "broken"}),
        (
            OpenAIResponses(),
            {"type": "response.failed", "response": {"error": {"message": "broken"}}},
        ),
        (OpenAIResponses(), {"type": "error", "message": "broken"}),
        (
            AnthropicMessages(),
            {"type": "error", "error": {"type": "overloaded_error", "message": "broken"}},
        ),
    ],
)
def test_error_in_a_stream_is_the_servers_failure(
    processor: Processor, payload: dict[str, Any]
) -> None:
    record = Record(0, 0, 0, 0.0)
    collect_stream(record, [(1.0, sse(payload))], processor)

    assert (record.failure, record.failure_detail) == ("server error", "broken")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "usage", "type", "error", "text"]), inner
        )
    ),
)


@given(JSON)
def test_any_json_can_be_read(payload: object) -> None:
    for processor in ALL:
        assert isinstance(processor.read(payload).text, str)


def test_recorded_body_is_sent_with_its_own_fields() -> None:
    own = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "tools": [1]}
    body = {"model": "other", "max_completion_tokens": 99, **own}
    processor = OpenAIChat(length_field="max_completion_tokens")
    sent = processor.body(ChatQuery("m", CHAT, 5, is_streaming=False, body=body))

    assert sent == {"model": "m", "max_completion_tokens": 5, "stream": False, **own}


def test_keys_go_where_each_api_wants_them() -> None:
    assert OpenAIChat().headers("k") == {"Authorization": "Bearer k"}
    assert OpenAIChat().headers(None) == {}
    assert AnthropicMessages().headers("k")["x-api-key"] == "k"

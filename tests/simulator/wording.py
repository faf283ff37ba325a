"""Requests whose answers the simulator must word as vLLM 0.32.0 does, and what may differ in them."""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hello there"}]
WITH_USAGE = {"include_usage": True}

Case = tuple[str, dict[str, Any]]

# Long enough that a real server does not put all tokens into one event.
STREAMS: list[Case] = [
    (CHAT, {"messages": HELLO, "max_tokens": 9}),
    (CHAT, {"messages": HELLO, "max_tokens": 9, "stream_options": WITH_USAGE}),
    (
        CHAT,
        {
            "messages": HELLO,
            "max_tokens": 2,
            "stream_options": WITH_USAGE | {"continuous_usage_stats": True},
        },
    ),
    (COMPLETIONS, {"prompt": "hello there", "max_tokens": 9}),
    (COMPLETIONS, {"prompt": "hello", "max_tokens": 9, "stream_options": WITH_USAGE}),
    (RESPONSES, {"input": "hello there", "max_output_tokens": 9}),
    (MESSAGES, {"model": "tiny", "system": "be brief", "messages": HELLO, "max_tokens": 9}),
]
WHOLE: list[Case] = [
    (CHAT, {"messages": HELLO, "max_tokens": 3}),
    (CHAT, {"messages": HELLO, "max_tokens": 2, "n": 2}),
    (COMPLETIONS, {"prompt": ["hello there", "and you"], "max_tokens": 2, "n": 2}),
    (COMPLETIONS, {"prompt": [5] * 4090, "max_tokens": 10}),
    (COMPLETIONS, {"prompt": "hello"}),
    (RESPONSES, {"input": "hello there", "max_output_tokens": 3}),
    (MESSAGES, {"model": "tiny", "messages": HELLO, "max_tokens": 3}),
    ("/v1/messages/count_tokens", {"model": "tiny", "system": "be brief", "messages": HELLO}),
]
ERRORS: list[tuple[str, dict[str, Any] | bytes]] = [
    (CHAT, {"model": "nope", "messages": HELLO}),
    (CHAT, {"model": "tiny"}),
    (CHAT, {"messages": "x"}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": HELLO, "max_tokens": 0}),
    (CHAT, {"messages": HELLO, "max_tokens": -1}),
    (CHAT, {"messages": HELLO, "max_tokens": 5000}),
    (CHAT, {"messages": HELLO, "max_tokens": "x"}),
    (CHAT, {"messages": HELLO, "n": 0}),
    (CHAT, {"messages": HELLO, "temperature": 3}),
    (CHAT, {"messages": HELLO, "stream_options": WITH_USAGE}),
    (CHAT, {"messages": [{"role": "user", "content": "hello " * 5000}]}),
    (CHAT, b""),
    (CHAT, b"{bad"),
    (CHAT, b"[]"),
    (CHAT, b"[" * 100_000),
    (CHAT, b"null"),
    (CHAT, b"5"),
    (CHAT, b"\xff\xfe"),
    (CHAT, b"\xff{"),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    (CHAT, {"messages": HELLO, "n": 20_000}),
    (CHAT, {"messages": HELLO, "cache_salt": ""}),
    (CHAT, {"messages": HELLO, "max_tokens": 2.5}),
    (CHAT, {"messages": HELLO, "min_tokens": -1}),
    (CHAT, {"messages": HELLO, "max_tokens": 4, "min_tokens": 9}),
    (COMPLETIONS, {}),
    (COMPLETIONS, {"prompt": [""]}),
    (COMPLETIONS, {"prompt": [[1], []]}),
    (COMPLETIONS, {"prompt": [2**40]}),
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": []}),
    (COMPLETIONS, {"prompt": [5] * 5000, "max_tokens": 1}),
    (COMPLETIONS, {"prompt": [5] * 4096, "max_tokens": 1}),
    (RESPONSES, {"input": []}),
    (MESSAGES, {"model": "tiny", "messages": HELLO}),
    (MESSAGES, {"model": "tiny", "messages": [], "max_tokens": 1}),
    (MESSAGES, {"model": "tiny", "messages": HELLO, "max_tokens": 0}),
    (MESSAGES, {"model": "nope", "messages": HELLO, "max_tokens": 3}),
    ("/v1/nope", {}),
]


def as_stream(body: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 0, "stream": True, **body}


def mask(text: str) -> str:
    """Hides what differs between any two answers: ids, times, the text, and the build."""
    text = re.sub(r'"(chatcmpl-|cmpl-|resp_|msg_)\w+"', r'"\1id"', text)
    text = re.sub(r'"(created|created_at|sequence_number)":\d+', r'"\1":0', text)
    text = re.sub(r'"vllm-0\.32\.0-\w+"', '"fingerprint"', text)
    return re.sub(r'"(content|text|delta|prompt)":"(?:[^"\\]|\\.)*"', r'"\1":"…"', text)


def mask_tokens(text: str) -> str:
    """Hides what depends on the tokenizer."""
    text = re.sub(r'"(\w*_tokens|count)":\d+', r'"\1":0', text)
    return re.sub(r'"(tokens|token_strs)":\[[^]]*\]', r'"\1":[]', text)


def list_kinds(events: Iterable[str]) -> list[str]:
    """Returns the events as `mask` leaves them, each run of the same ones once.

    A real server puts tokens that come close together into one event.
    """
    return [kind for kind, _ in groupby(map(mask, events))]

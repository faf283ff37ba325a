"""Messages to the one prompt that the model reads: tools and system text first, then turn by turn.

The template is ChatML. Its pieces (head, text, end of each message) are tokenised one by one.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from extproc.simulator.http.apis.fields import Message, Part
from extproc.simulator.http.refusals import Refusal

END = "<|im_end|>\n"


def render(messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[str]:
    """Returns the pieces of the prompt for the assistant's next answer; raises `Refusal` without messages."""
    if not messages:
        raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    pieces: list[str] = []
    if tools:
        pieces += [head("tools"), orjson.dumps(tools).decode(), END]
    for message in messages:
        pieces += [head(message.role), read_content(message.content), *_read_calls(message), END]
    return [*pieces, head("assistant")]


def head(role: str) -> str:
    return f"<|im_start|>{role}\n"


def read_content(content: str | Sequence[Part] | None) -> str:
    """Returns a message's text; parts are joined by newlines, as vLLM does for text-only templates."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.content for part in content)


def _read_calls(message: Message) -> list[str]:
    return [orjson.dumps(call).decode() for call in message.tool_calls or ()]

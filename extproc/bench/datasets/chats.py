"""Published chat datasets from local files: ShareGPT and OpenOrca."""

from collections.abc import Iterable
from types import MappingProxyType

import numpy as np

from extproc.bench.datasets.conversation import ChatTurn, Conversation, TurnMessage
from extproc.bench.datasets.source import read_objects, read_rows, read_text, require_path
from extproc.bench.datasets.text import BYTES, Ruler
from extproc.bench.spec.traffic import Dataset

_ROLES = MappingProxyType(
    {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "system": "system"}
)


def read_sharegpt(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads `[{"conversations": [{"from", "value"}]}]`; what precedes the first question is dropped."""
    del need, rng
    conversations = []
    for row in read_rows(require_path(dataset)):
        messages = [
            TurnMessage(_ROLES.get(read_text(item, "from"), "assistant"), read_text(item, "value"))
            for item in read_objects(row, "conversations")
        ]
        turns = build_turns(messages, ruler)
        if turns:
            conversations.append(Conversation(turns))
    return conversations


def read_openorca(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads rows of `system_prompt`, `question` and `response`: one turn each."""
    del need, rng
    conversations = []
    for row in read_rows(require_path(dataset)):
        system, question = read_text(row, "system_prompt"), read_text(row, "question")
        messages = [TurnMessage("system", system)] if system else []
        messages += [TurnMessage("user", question), TurnMessage("assistant", read_text(row, "response"))]
        if question:
            conversations.append(Conversation(build_turns(messages, ruler)))
    return conversations


def build_turns(messages: Iterable[TurnMessage], ruler: Ruler) -> tuple[ChatTurn, ...]:
    """Cuts a chat at its answers; questions in a row are one turn, a last one unanswered is dropped."""
    turns: list[ChatTurn] = []
    asked: tuple[TurnMessage, ...] = ()
    for message in messages:
        if not message.content:
            continue
        if message.role != "assistant":
            asked += (message,)
        elif any(m.role == "user" for m in asked):
            turns.append(ChatTurn(asked, ruler.count(message.content), message.content))
            asked = ()
    return tuple(turns)

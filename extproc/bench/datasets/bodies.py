"""JSON lines of OpenAI request bodies, sent as they are but for model, streaming and length."""

import numpy as np

from extproc.bench.datasets.conversation import ChatTurn, Conversation, TurnMessage
from extproc.bench.datasets.source import Entry, read_objects, read_rows, read_text, require_path
from extproc.bench.spec.traffic import Dataset

_DEFAULT_OUTPUT_TOKENS = 256


def read_bodies(dataset: Dataset, need: int, rng: np.random.Generator) -> list[Conversation]:
    """Reads chat bodies (`messages`), completion bodies (`prompt`), or either inside a batch row's `body`."""
    del need, rng
    rows = read_rows(require_path(dataset))
    return [_build(body if isinstance(body := row.get("body"), dict) else row) for row in rows]


def _build(body: Entry) -> Conversation:
    messages = tuple(
        TurnMessage(read_text(item, "role"), _read_content(item)) for item in read_objects(body, "messages")
    )
    if not messages:
        messages = (TurnMessage("user", read_text(body, "prompt")),)
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    output_tokens = limit if isinstance(limit, int) else _DEFAULT_OUTPUT_TOKENS
    return Conversation((ChatTurn(messages, output_tokens),), body=body)


def _read_content(message: Entry) -> str:
    parts = [read_text(part, "text") for part in read_objects(message, "content")]
    return read_text(message, "content") or "\n".join(parts)

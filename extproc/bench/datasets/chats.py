"""Datasets in local files: ShareGPT, OpenOrca, KubeAI's prompts, OpenAI request bodies, prepared ones."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType

import msgspec
import numpy as np
from pydantic import Field

from extproc.bench.datasets.conversation import ChatTurn, Conversation, TurnMessage
from extproc.bench.datasets.source import Entry, read_objects, read_rows, read_text, require_path
from extproc.bench.datasets.text import BYTES, Ruler
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset
from extproc.errors import SettingsError

_HEADER = b'{"format":"extproc-dataset","version":1}'
# The script's limits: tokens of a prompt or an answer at least, of a prompt at most.
_LEAST, _MOST_IN = 4, 8192


def write_prepared(path: Path, conversations: Sequence[Conversation]) -> None:
    """Writes conversations as JSON lines, in one piece."""
    path.write_bytes(b"\n".join([_HEADER, *map(msgspec.json.encode, conversations), b""]))


def read_prepared(dataset: Dataset, need: int, rng: np.random.Generator) -> list[Conversation]:
    """Reads what `write_prepared` wrote; raises `SettingsError` with the line at fault."""
    del need, rng
    path = require_path(dataset)
    header, *lines = path.read_bytes().splitlines() or [b""]
    if header != _HEADER:
        raise SettingsError(f"{path}: not a dataset file of this version")
    decoder, conversations = msgspec.json.Decoder(Conversation), []
    for number, line in enumerate(lines, start=2):
        try:
            conversations.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise SettingsError(f"{path}: line {number}: {error}") from None
    return conversations


class KubeaiOptions(SpecSection):
    """`seed` shuffles the prompts as Python's `random` does; `output_len` replaces recorded lengths."""

    seed: int = 0
    output_len: int | None = Field(default=None, gt=0)


def read_kubeai_sharegpt(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads a prompt for each question with all that came before it; every request is one message.

    `max_prompts` are taken in the file's order (the script calls them conversations), then shuffled; the
    run begins again at the first until it has its number.
    """
    del need, rng
    options = KubeaiOptions.model_validate(dataset.options)
    rows = [
        messages
        for row in read_rows(require_path(dataset, KubeaiOptions))
        if len(messages := _list(row)) >= 2
    ]
    prompts = [prompt for messages in rows for prompt in _grow(messages)][: dataset.max_prompts]
    Random(options.seed).shuffle(prompts)  # noqa: S311  # the order must be the script's
    made = []
    for prompt, answer in prompts:
        size = options.output_len or ruler.count(answer)
        if _LEAST <= ruler.count(prompt) <= _MOST_IN and size >= _LEAST:
            made.append(Conversation((ChatTurn((TurnMessage("user", prompt),), size),)))
    return made


def _list(row: Entry) -> list[str]:
    return [read_text(item, "value") for item in read_objects(row, "conversations")]


def _grow(messages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each question with its history as one text, and the answer that followed it, if any did."""
    text = ""
    for i, message in enumerate(messages):
        text += f"{'Assistant' if i % 2 else 'User'}: {message}\n"
        if i % 2 == 0:
            yield text, messages[i + 1] if i + 1 < len(messages) else ""


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

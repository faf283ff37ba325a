"""Datasets in local files: ShareGPT, OpenOrca, KubeAI's prompts, OpenAI request bodies, prepared ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType

import msgspec
import numpy as np
from pydantic import Field

from extproc.bench.datasets.conversation import ChatTurn, Conversation, Ruler, TurnMessage
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset
from extproc.errors import SettingsError

Source = Callable[[Dataset, int, np.random.Generator], list[Conversation]]
"""Yields conversations for a dataset section; generators make enough for that many requests."""

Entry = Mapping[str, object]


def require_path(dataset: Dataset, options: type[SpecSection] = SpecSection) -> Path:
    """Returns the local file of a dataset; nothing is ever downloaded.

    Raises `SettingsError` without one, pydantic's `ValidationError` for options it does not have.
    """
    options.model_validate(dataset.options)
    if dataset.path is None:
        raise SettingsError(f"dataset {dataset.name}: give the path of a local file")
    return dataset.path


def read_rows(path: Path) -> Iterator[Entry]:
    """Yields the objects of a JSON list or of JSON lines; raises `SettingsError` with the place."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if data.lstrip()[:1] == b"[":
        yield from _check_rows(path, _load(path, data, "the file"))
        return
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            yield from _check_rows(path, [_load(path, line, f"line {number}")])


def read_text(row: Entry, field: str) -> str:
    """Returns a field's text; empty if it is missing or no text."""
    value = row.get(field)
    return value if isinstance(value, str) else ""


def read_objects(row: Entry, field: str) -> list[Entry]:
    """Returns the objects in a field's list; empty if there is none."""
    value = row.get(field)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _load(path: Path, data: bytes, where: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: {where} is not JSON: {error}") from None


def _check_rows(path: Path, rows: object) -> Iterable[Entry]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"{path}: rows must be JSON objects")
    return rows


_HEADER = b'{"format":"extproc-dataset","version":1}'
# The script's limits: tokens of a prompt or an answer at least, of a prompt at most.
_LEAST, _MOST_IN = 4, 8192


def write_prepared(path: Path, conversations: Sequence[Conversation]) -> None:
    """Writes conversations as JSON lines, in one piece."""
    path.write_bytes(b"\n".join([_HEADER, *map(msgspec.json.encode, conversations), b""]))


def read_prepared(dataset: Dataset) -> list[Conversation]:
    """Reads what `write_prepared` wrote; raises `SettingsError` with the line at fault."""
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


def read_kubeai_sharegpt(dataset: Dataset, ruler: Ruler) -> list[Conversation]:
    """Reads a prompt for each question with all that came before it; every request is one message.

    `max_prompts` are taken in the file's order (the script calls them conversations), then
    shuffled; the run begins again at the first until it has its number.
    """
    options = KubeaiOptions.model_validate(dataset.options)
    chats = [
        [read_text(item, "value") for item in read_objects(row, "conversations")]
        for row in read_rows(require_path(dataset, KubeaiOptions))
    ]
    prompts = [prompt for chat in chats if len(chat) > 1 for prompt in _grow(chat)]
    prompts = prompts[: dataset.max_prompts]
    Random(options.seed).shuffle(prompts)  # noqa: S311  # the order must be the script's
    made = []
    for prompt, answer in prompts:
        size = options.output_len or ruler.count(answer)
        if _LEAST <= ruler.count(prompt) <= _MOST_IN and size >= _LEAST:
            made.append(Conversation((ChatTurn((TurnMessage("user", prompt),), size),)))
    return made


def _grow(messages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each question with its history as one text, and the answer that followed it, if any did."""
    text = ""
    for i, message in enumerate(messages):
        text += f"{'Assistant' if i % 2 else 'User'}: {message}\n"
        if i % 2 == 0:
            yield text, messages[i + 1] if i + 1 < len(messages) else ""


_DEFAULT_OUTPUT_TOKENS = 256


def read_bodies(dataset: Dataset) -> list[Conversation]:
    """Reads chat bodies (`messages`), completion bodies (`prompt`), or either inside a batch row's `body`."""
    rows = read_rows(require_path(dataset))
    return [_build(body if isinstance(body := row.get("body"), dict) else row) for row in rows]


def _build(body: Entry) -> Conversation:
    messages = tuple(
        TurnMessage(
            read_text(item, "role"),
            read_text(item, "content")
            or "\n".join(read_text(part, "text") for part in read_objects(item, "content")),
        )
        for item in read_objects(body, "messages")
    )
    if not messages:
        messages = (TurnMessage("user", read_text(body, "prompt")),)
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    output_tokens = limit if isinstance(limit, int) else _DEFAULT_OUTPUT_TOKENS
    return Conversation((ChatTurn(messages, output_tokens),), body=body)


_ROLES = MappingProxyType(
    {
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "chatgpt": "assistant",
        "system": "system",
    }
)


def read_sharegpt(dataset: Dataset, ruler: Ruler) -> list[Conversation]:
    """Reads `[{"conversations": [{"from", "value"}]}]`; what precedes the first question is dropped."""
    return _read_chats(
        dataset,
        ruler,
        lambda row: [
            TurnMessage(_ROLES.get(read_text(item, "from"), "assistant"), read_text(item, "value"))
            for item in read_objects(row, "conversations")
        ],
    )


def read_openorca(dataset: Dataset, ruler: Ruler) -> list[Conversation]:
    """Reads rows of `system_prompt`, `question` and `response`: one turn each."""
    roles = {"system_prompt": "system", "question": "user", "response": "assistant"}
    return _read_chats(
        dataset,
        ruler,
        lambda row: [TurnMessage(role, read_text(row, field)) for field, role in roles.items()],
    )


def _read_chats(
    dataset: Dataset, ruler: Ruler, list_messages: Callable[[Entry], list[TurnMessage]]
) -> list[Conversation]:
    chats = (build_turns(list_messages(row), ruler) for row in read_rows(require_path(dataset)))
    return [Conversation(turns) for turns in chats if turns]


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

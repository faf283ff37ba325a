"""Datasets in local files: ShareGPT, OpenOrca, KubeAI's prompts, OpenAI request bodies, prepared ones."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import MappingProxyType

import msgspec
import numpy as np
from pydantic import Field

from extproc.bench.datasets.conversation import ChatTurn, Conversation, Ruler, TurnMessage
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset
from extproc.documents import printable
from extproc.errors import SettingsError

log = logging.getLogger(__name__)

Source = Callable[[Dataset, int, np.random.Generator], list[Conversation]]
"""Yields conversations for a dataset section; generators make enough for that many requests."""

Entry = Mapping[str, object]


_FROM_PARQUET = "write it as JSON lines, as by `duckdb -c \"copy 'FILE.parquet' to 'FILE.jsonl' (format json)\"`"


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
    return (row for _, row in read_places(path))


def read_places(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yields the same with each one's place: `line 7`, or `row 7` of a list."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if data.startswith(b"PAR1"):
        raise SettingsError(f"{path}: Parquet is not read: {_FROM_PARQUET}")
    rows: object = None
    if data.lstrip()[:1] == b"[":
        rows = _load(path, data, "the file")
    elif b"\n" in data.strip():
        # One object over several lines is a row, too.
        with suppress(ValueError, RecursionError):
            rows = [msgspec.json.decode(data)]
    if rows is not None:
        checked = enumerate(_check_rows(path, rows), start=1)
        yield from ((f"row {number}", row) for number, row in checked)
        return
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            for row in _check_rows(path, [_load(path, line, f"line {number}")]):
                yield f"line {number}", row


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


def read_prepared(dataset: Dataset, wanted: str | None = None) -> list[Conversation]:
    """Reads what `write_prepared` wrote; raises `SettingsError` with the line at fault."""
    path = require_path(dataset)
    header, *lines = path.read_bytes().splitlines() or [b""]
    if header != _HEADER:
        raise SettingsError(f"{path}: not a dataset file of this version")
    decoder, conversations = msgspec.json.Decoder(Conversation), []
    for number, line in enumerate(lines, start=2):
        try:
            conversations.append(made := decoder.decode(line))
        except msgspec.DecodeError as error:
            raise SettingsError(f"{path}: line {number}: {error}") from None
        if made.body is not None:
            _check_body(made.body, wanted, f"{path}: line {number}")
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


def read_bodies(dataset: Dataset, wanted: str | None = None) -> list[Conversation]:
    """Reads request bodies, or the `body` of each row of a batch, to be sent as they are.

    `wanted` is the field in which the target's API has the prompt. Raises `SettingsError` with line
    and field for a body that cannot be sent so.
    """
    path, made = require_path(dataset), []
    for where, row in read_places(path):
        body = row.get("body")
        made.append(_build(body if isinstance(body, dict) else row, wanted, f"{path}: {where}"))
    return made


def _check_body(body: Entry, wanted: str | None, where: str) -> None:
    """Refuses a body that another API's server would read as an empty prompt."""
    fields = (wanted,) if wanted else ("messages", "prompt", "input")
    prompt = next((body[name] for name in fields if body.get(name)), None)
    if prompt is None:
        raise SettingsError(
            f"{where}: {' or '.join(fields)}: missing or empty, and the API asks by it"
        )
    if isinstance(prompt, list) and any(isinstance(each, int | list) for each in prompt):
        raise SettingsError(f"{where}: prompt: token ids are not replayed: record the text")


def _build(body: Entry, wanted: str | None = None, where: str = "body") -> Conversation:
    _check_body(body, wanted, where)
    limit: object = _DEFAULT_OUTPUT_TOKENS
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if body.get(name) is not None:
            limit = body[name]
            break
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise SettingsError(f"{where}: {name}: {limit!r} is no whole number from 1 on")
    # For the account only: what is sent is the body.
    system = [
        TurnMessage("system", text)
        for field in ("system", "instructions")
        if (text := _join(body.get(field)))
    ]
    asked = [
        TurnMessage(read_text(item, "role"), _join(item.get("content")))
        for field in ("messages", "input")
        for item in read_objects(body, field)
    ]
    plain = [
        TurnMessage("user", text)
        for field in ("prompt", "input")
        if (text := _join(body.get(field)))
    ]
    return Conversation((ChatTurn((*system, *(asked or plain)), limit),), body=body)


def _join(content: object) -> str:
    """The text of a content, or of its parts; of a list of prompts all of them."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(
        part if isinstance(part, str) else read_text(part, "text")
        for part in parts
        if isinstance(part, str | dict)
    )


_ROLES = MappingProxyType(
    {
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "chatgpt": "assistant",
        "assistant": "assistant",
        "bard": "assistant",
        "bing": "assistant",
        "system": "system",
    }
)
Unread = dict[str, int]
"""Rows that became nothing, by reason."""


def read_sharegpt(dataset: Dataset, ruler: Ruler, left_out: Unread) -> list[Conversation]:
    """Reads `[{"conversations": [{"from", "value"}]}]`; what precedes the first question is dropped.

    A row with a role that is none of a user's, a model's or the system's is left out: a tool's
    answer is no question, and a call of it no answer.
    """

    def list_messages(row: Entry) -> list[TurnMessage] | str:
        said = read_objects(row, "conversations")
        if not all({"from", "value"} <= item.keys() for item in said) or not said:
            return "without `conversations` of `from` and `value`"
        unknown = sorted({read_text(item, "from") for item in said if _get_role(item) is None})
        if unknown:
            return f"with the role {printable(unknown[0])}"
        return [TurnMessage(_get_role(item) or "", read_text(item, "value")) for item in said]

    return _read_chats(dataset, ruler, left_out, list_messages)


def _get_role(item: Entry) -> str | None:
    return _ROLES.get(read_text(item, "from").strip().lower())


def read_openorca(dataset: Dataset, ruler: Ruler, left_out: Unread) -> list[Conversation]:
    """Reads rows of `system_prompt`, `question` and `response`: one turn each."""
    roles = {"system_prompt": "system", "question": "user", "response": "assistant"}

    def list_messages(row: Entry) -> list[TurnMessage] | str:
        if not {"question", "response"} <= row.keys():
            return "without `question` and `response`"
        return [TurnMessage(role, read_text(row, field)) for field, role in roles.items()]

    return _read_chats(dataset, ruler, left_out, list_messages)


_MOST_KINDS = 20


def _read_chats(
    dataset: Dataset,
    ruler: Ruler,
    left_out: Unread,
    list_messages: Callable[[Entry], list[TurnMessage] | str],
) -> list[Conversation]:
    """Cuts each row's messages at its answers; counts the rows of which nothing is left, and why."""
    path, chats = require_path(dataset), []
    left_out.clear()
    for row in read_rows(path):
        found = list_messages(row)
        turns = () if isinstance(found, str) else build_turns(found, ruler)
        if turns:
            chats.append(Conversation(turns))
            continue
        why = found if isinstance(found, str) else "without an answered question"
        why = why if why in left_out or len(left_out) < _MOST_KINDS else "for other reasons"
        left_out[why] = left_out.get(why, 0) + 1
    counts = ", ".join(f"{count} {why}" for why, count in left_out.items())
    if not chats and counts:
        raise SettingsError(f"{path}: no row can be asked: {counts}")
    if counts:
        log.warning("%s: rows left out: %s", path, counts)
    return chats


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

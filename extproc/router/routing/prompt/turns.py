"""What a model reads of a request, as turns: who speaks, and what, in the order of the usual templates.

Exact rendering needs the model's own chat template and tokenizer; this is the same text in the same
order with marked boundaries, which is what makes equal prefixes equal.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.json import Decoder, decode
from xxhash import xxh3_64

from extproc.router.routing.prompt.apis import Api, Field
from extproc.router.routing.prompt.json_reader import (
    MAX_ELEMENTS,
    Object,
    compact,
    elements,
)
from extproc.router.routing.prompt.media import Medium, medium_in

# What vLLM leaves out, normalises or adds before it caches must not tell prompts apart here, and what it
# reads must. docs/how-to/agents.md has the table; tests/router/routing/left_out.py has a pair for each
# row, which the simulated vLLM reads, too.

# Control characters that text hardly holds: no text looks like the start of another turn.
TURN_START: Final = "\x1e"
TURN_TEXT: Final = "\x1f"

# The fields of a message that the model reads, in the order of the usual templates; the items of
# the Responses API keep theirs beside them.
_SPOKEN: Final = (
    *("reasoning", "reasoning_content", "summary", "content", "refusal"),
    *("tool_calls", "function_call", "name", "arguments", "output"),
)
_TEXTS: Final = ("text", "refusal", "thinking")
# Members of a part that the model does not read: what marks it, what numbers it.
_MARKER: Final = "cache_control"
_NUMBERS: Final = frozenset({"id", "tool_use_id", "call_id", "tool_call_id"})
# Parts of which the model reads a text or nothing.
_TEXT_KINDS: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking"}
)
_RESULT: Final = "tool_result"
# All that vLLM reads within a result of the Messages API.
_RESULT_KINDS: Final = frozenset({"text", "image", "tool_reference"})
# A function's members, as vLLM orders them; it keeps others behind these.
_FUNCTION: Final = ("name", "description", "parameters")

# A tool's result holds parts of its own (Anthropic); nothing that vLLM takes goes deeper.
_LEVELS: Final = 2


# Bytes of one token, on average. What is counted in tokens, not in bytes, weighs as much.
TOKEN_BYTES: Final = 4
# An id is cut behind this many digits, and a comma.
_ID_CHARS: Final = 11
_IDS: Final = Decoder(list[int])


class TokenIds(str):
    """Token ids as they were written, joined by commas."""

    __slots__ = ()

    def packed(self) -> bytes:
        """Four bytes for each id. What holds anything else is as it was written: no engine takes it."""
        try:
            return array("I", _IDS.decode(f"[{self.rstrip(',')}]")).tobytes()
        except (ValueError, OverflowError):
            return self.encode()


class Turn(Struct, frozen=True):
    """One speaker's part of a prompt; a turn without a role is bare text.

    `said` holds JSON values: texts, parts, or arrays of these.
    """

    role: str
    said: tuple[object, ...]

    @property
    def is_user(self) -> bool:
        return self.role in {"", "user"}

    @property
    def is_system(self) -> bool:
        return self.role in {"system", "developer"}

    def text(self, chars: int) -> str:
        """The first characters of the text, media left out; text parts are joined as vLLM joins them."""
        return _join(filter(None, map(_plain, self._parts())), chars)

    def rendered(self, chars: int) -> str:
        """The first characters of everything said, media by digest."""
        first = self.said[0] if len(self.said) == 1 else None
        if isinstance(first, str):
            return first[:chars]
        return _join(self._pieces(), chars)

    def weighed(self) -> Iterator[tuple[str, str | bytes]]:
        """The role and what is said up to each medium, then without a role what is said behind it.

        Token ids have four bytes each.
        """
        role, texts = self.role, list[str]()
        for piece in self._pieces():
            if isinstance(piece, TokenIds):
                yield role, piece.packed()
                return
            texts.append(piece)
            if isinstance(piece, Medium):
                # With its tokens in the text equal hashes have equal lengths, whatever a client says.
                texts[-1] += f":{piece.tokens}"
                yield role, Medium("\n".join(texts), piece.tokens)
                role, texts = "", [""]
        if texts != [""]:
            yield role, "\n".join(texts)

    def feed(self, hasher: xxh3_64) -> None:
        """Gives everything said to `hasher`: the bytes of what `rendered` returns without a limit."""
        for index, piece in enumerate(self._pieces()):
            hasher.update(b"\n" * bool(index) + piece.encode())

    def _pieces(self) -> Iterator[str]:
        return (piece for part in self._parts() for piece in _pieces(part, _LEVELS))

    def _parts(self) -> Iterator[object]:
        for value in self.said:
            yield from elements(value)


def turns_of(api: Api, fields: Object, chars: int) -> Iterator[Turn]:
    """Yields the turns of a request in the order in which the model reads them.

    `chars` bounds how much of an array of token ids is read.
    """
    for field in api:
        if field.has_turns and (numbers := fields.numbers(field.name, chars)):
            yield Turn(field.role, (TokenIds(numbers),))
            continue
        value = fields.value(field.name)
        if field.has_turns:
            yield from _turns(field, value)
        elif field.for_choice and fields.string("tool_choice") == "none":
            continue
        elif value := _read_by(field, value):
            yield Turn(field.role, (value,))


def read_turns(api: Api, fields: Object, chars: int) -> Iterator[tuple[str, str]]:
    """Yields the role and the text of each turn, media by digest: as many as the first characters need."""
    left = chars
    for turn in _read(api, fields, chars):
        role, text = turn if isinstance(turn, tuple) else (turn.role, turn.rendered(chars))
        if left <= 0:
            return
        yield role[:chars], text[:left]
        left -= len(role) + len(text)


def weigh_turns(api: Api, fields: Object, chars: int) -> Iterator[tuple[str, str | bytes]]:
    """As `read_turns`, but a text ends behind each medium, which counts as its tokens, and ids are packed.

    Without a role, a turn goes on.
    """
    left = chars
    for turn in _read(api, fields, chars // TOKEN_BYTES * _ID_CHARS):
        for role, text in (turn,) if isinstance(turn, tuple) else turn.weighed():
            if left <= 0:
                return
            yield role[:chars], text if len(text) <= left else text[:left]
            left -= len(role) + len(text)
            if isinstance(text, Medium):
                left -= TOKEN_BYTES * text.tokens


def _read(api: Api, fields: Object, chars: int) -> Iterator[tuple[str, str] | Turn]:
    """Yields each turn. Most messages are a role and a text, and nothing else: these need no `Turn`."""
    for field in api:
        value: Any = fields.value(field.name) if field.name == "messages" else None
        if not (isinstance(value, list) and value and isinstance(value[0], dict)):
            yield from turns_of((field,), fields, chars)
            continue
        for item in value[:MAX_ELEMENTS]:
            if type(item) is dict and len(item) == 2:
                role, text = item.get("role"), item.get("content")
                if type(role) is str and type(text) is str and not _is_cut(field, role):
                    yield role, text
                    continue
            yield from _turns(field, [item])
            if not isinstance(item, dict):
                break  # a batch: its first conversation is the prompt


def _turns(field: Field, value: object) -> Iterator[Turn]:
    """The turns of messages; of a batch of prompts or conversations those of the first one."""
    for element in elements(value):
        if isinstance(element, str):
            yield Turn(field.role, (element,))
            return
        messages = elements(element) if isinstance(element, list) else [element]
        for message in messages:
            if isinstance(message, dict) and (turn := _message(message, field)):
                yield turn
        if isinstance(element, list):
            return


def _message(message: Mapping[str, object], field: Field) -> Turn | None:
    """The turn that a message makes; `None` for a system's in which vLLM reads nothing."""
    # An item of the Responses API without a role (a function call, reasoning) is named by its type.
    role = message.get("role") or message.get("type")
    role = role if isinstance(role, str) else ""
    if _is_cut(field, role):
        text = _system_text(field.leaves_out, [message.get("content")])
        return Turn(role, (text,)) if text else None
    if "arguments" in message and "name" in message:
        return Turn(role, ({"function": message},))
    is_plain = len(message) == 2 and "content" in message
    return Turn(role, (message["content"],) if is_plain else tuple(_spoken(message)))


def _spoken(message: Mapping[str, object]) -> Iterator[object]:
    # Of thoughts that are there twice vLLM reads one.
    twice = {
        "reasoning_content": message.get("reasoning") is not None,
        "summary": message.get("type") == "reasoning" and bool(message.get("content")),
    }
    for name in _SPOKEN:
        if name in message and not twice.get(name):
            yield message[name]


def _is_cut(field: Field, role: str) -> bool:
    return bool(field.leaves_out) and role == "system"


def _read_by(field: Field, value: object) -> object:
    """What vLLM reads of a field that makes one turn."""
    if field.leaves_out and isinstance(value, list):
        return _system_text(field.leaves_out, value)
    if isinstance(value, dict):
        names = field.reads or value.keys() - field.behind
        return _given({name: each for name, each in value.items() if name in names})
    if not field.reads or not isinstance(value, list):
        return value
    return [
        _given({name: part.get(name) for name in field.reads}) if isinstance(part, dict) else part
        for part in elements(value)
    ]


def _system_text(start: str, value: Iterable[object]) -> str:
    """The text of a system's parts but those that begin so, joined as vLLM joins them."""
    parts = (part for content in value for part in elements(content))
    texts = (_plain(part) for part in islice(parts, MAX_ELEMENTS))
    return "".join(text for text in texts if not text.startswith(start))


def _plain(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for name in _TEXTS:
            text = part.get(name)
            if isinstance(text, str):
                return text
    return ""


def _pieces(part: object, levels: int) -> Iterator[str]:
    plain = _plain(part)
    if plain:
        yield plain
    elif not isinstance(part, dict):
        return
    elif medium := medium_in(part):
        yield medium
    elif part.get("content") and levels:
        is_result = part.get("type") == _RESULT
        for inner in elements(part["content"]):
            if not is_result or not isinstance(inner, dict) or inner.get("type") in _RESULT_KINDS:
                yield from _pieces(inner, levels - 1)
    elif part.get("type") not in _TEXT_KINDS:
        yield compact(_unmarked(part))


def _unmarked(part: Mapping[str, object]) -> Mapping[str, object]:
    """What vLLM reads of a part that is no text, in its order."""
    kind, function = part.get("type"), part.get("function")
    if kind == "tool_use":
        return {"name": part.get("name"), "arguments": part.get("input") or {}}
    if kind == _RESULT:
        return {"type": kind}
    if isinstance(function, dict):
        return _function(function, part)
    # Without its marker, and its number unless it is nothing else.
    bare = {name: value for name, value in part.items() if name != _MARKER}
    unnumbered = {name: value for name, value in bare.items() if name not in _NUMBERS}
    return unnumbered if unnumbered.keys() - {"type"} else bare


def _function(function: Mapping[str, object], part: Mapping[str, object]) -> Mapping[str, object]:
    """A call, whose arguments are read as JSON; or a tool, whose other members are kept, its marker too."""
    if "arguments" in function:
        name, arguments = function.get("name"), function["arguments"]
        if isinstance(arguments, str):
            arguments = _read_arguments(arguments)
        return {"name": name, "arguments": arguments or {}}
    first = {name: function.get(name) for name in _FUNCTION}
    rest = {name: value for name, value in part.items() if name not in {"type", "function"}}
    return {"function": _given({**first, **function}), **_given(rest)}


def _given(members: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _read_arguments(written: str) -> object:
    try:
        return decode(written) if written else None
    except (ValueError, RecursionError):
        return written


def _join(pieces: Iterator[str], chars: int) -> str:
    """Joins as many pieces as `chars` characters need."""
    taken: list[str] = []
    length = 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece) + 1
        if length > chars:
            break
    return "\n".join(taken)[:chars]

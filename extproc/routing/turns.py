"""What a model reads of a request, as turns: who speaks, and the text, in the order of vLLM's templates.

Exact rendering needs the model's own chat template and tokenizer; this is the same text in the same
order with marked boundaries, which is what makes equal prefixes equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import Raw
from xxhash import xxh3_64_hexdigest

from extproc.routing.apis import Api, Field
from extproc.routing.json_reader import (
    Object,
    compact,
    elements,
    is_numbers,
    kind,
    members,
    numbers,
    text,
)

# Control characters that text does not hold: no text can look like the start of another turn.
TURN_START: Final = "\x1e"
TURN_TEXT: Final = "\x1f"

# The fields of a message that the model reads, in the order of the usual templates; the items of the
# Responses API keep theirs beside them.
_SPOKEN: Final = (
    *("reasoning", "reasoning_content", "summary", "content", "refusal"),
    *("tool_calls", "function_call", "name", "arguments", "output"),
)
_TEXTS: Final = ("text", "refusal", "thinking")
# First `uuid`: vLLM takes it for the identity of the medium, and lets later turns leave the data out.
_MEDIA: Final = (
    *("uuid", "image_url", "video_url", "audio_url", "input_audio", "source"),
    *("image_embeds", "audio_embeds", "file", "file_data", "file_url", "file_id"),
)
_MEDIA_DATA: Final = ("url", "data", "file_data", "file_url", "file_id")


@dataclass(frozen=True, slots=True)
class Turn:
    """One speaker's part of a prompt; a turn without a role is bare text."""

    role: str
    spoken: tuple[Raw, ...]

    @property
    def is_user(self) -> bool:
        return self.role in {"", "user"}

    @property
    def is_system(self) -> bool:
        return self.role in {"system", "developer"}

    def text(self, chars: int) -> str:
        """The first characters of the text, media left out; text parts are joined as vLLM joins them."""
        parts = (_plain(part, chars) for value in self.spoken for part in _parts(value))
        return _join((part for part in parts if part), chars)

    def rendered(self, chars: int | None = None) -> str:
        """The first characters of everything said, media by digest; all of it with `None`."""
        return _join((part for value in self.spoken for part in _pieces(value, chars)), chars)


def turns_of(api: Api, fields: Object) -> Iterator[Turn]:
    """Yields the turns of a request in the order in which the model reads them."""
    for field in api:
        raw = fields.get(field.name)
        if raw is None or kind(raw) not in {'"', "[", "{"}:
            continue
        if field.has_turns:
            yield from _turns(field, raw)
        else:
            yield Turn(field.role, (raw,))


def _turns(field: Field, raw: Raw) -> Iterator[Turn]:
    if kind(raw) == "{":
        yield _message(members(raw))
    elif kind(raw) == '"' or is_numbers(raw):
        yield Turn(field.role, (raw,))
    else:
        yield from _listed(field, elements(raw))


def _listed(field: Field, listed: list[Raw | Object]) -> Iterator[Turn]:
    """Messages, or a batch of prompts or conversations: a batch is placed by its first one."""
    for element in listed:
        if isinstance(element, dict):
            yield _message(element)
        elif kind(element) == '"':
            yield Turn(field.role, (element,))
            return
        elif kind(element) == "[":
            yield from (_message(message) for message in elements(element) if isinstance(message, dict))
            return


def _message(message: Object) -> Turn:
    spoken = tuple(message[name] for name in _SPOKEN if name in message)
    # An item of the Responses API that nobody says (a function call, reasoning) is named by its type.
    role = message.get("role") or message.get("type")
    return Turn(text(role) if role else "", spoken)


def _parts(value: Raw) -> list[Raw | Object]:
    if kind(value) == "{":
        return [members(value)]
    return elements(value) if kind(value) == "[" and not is_numbers(value) else [value]


def _plain(part: Raw | Object, chars: int | None) -> str:
    if isinstance(part, dict):
        return next(
            (text(part[name], chars) for name in _TEXTS if name in part and kind(part[name]) == '"'), ""
        )
    return numbers(part, chars) if is_numbers(part) else text(part, chars)


def _pieces(value: Raw, chars: int | None, levels: int = 2) -> Iterator[str]:
    for part in _parts(value):
        if plain := _plain(part, chars):
            yield plain
        elif isinstance(part, dict):
            yield from _structured(part, chars, levels)


def _structured(part: Object, chars: int | None, levels: int) -> Iterator[str]:
    if medium := _medium(part):
        yield medium
    elif "content" in part and levels:
        yield from _pieces(part["content"], chars, levels - 1)
    else:
        yield ",".join(f"{name}:{compact(raw)}" for name, raw in part.items())


def _medium(part: Object) -> str:
    """An image, a sound, a video or a file as the digest of what tells it from others."""
    for name in _MEDIA:
        if name in part and kind(part[name]) in {'"', "{"}:
            inner = members(part[name])
            data = next((inner[key] for key in _MEDIA_DATA if key in inner), part[name])
            return f"{TURN_TEXT}{name}:{xxh3_64_hexdigest(memoryview(data))}"
    return ""


def _join(pieces: Iterator[str], chars: int | None) -> str:
    taken: list[str] = []
    left = chars
    for piece in pieces:
        taken.append(piece)
        if left is not None:
            left -= len(piece) + 1
            if left < 0:
                break
    return "\n".join(taken)[:chars]

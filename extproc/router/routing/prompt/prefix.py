"""Prefixes and routing keys: which part of a request decides where it goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from xxhash import xxh3_64_intdigest

from extproc.router.routing.prompt.parse import Prompt


class KeyKind(StrEnum):
    FIRST_USER_MESSAGE = "first_user_message"
    PROMPT_HEAD = "prompt_head"
    CONVERSATION = "conversation"
    HEADER = "header"
    FIELD = "field"


_NAMED: Final = frozenset({KeyKind.HEADER, KeyKind.FIELD})


@dataclass(frozen=True, slots=True)
class Key:
    """A place where a prefix may be found; `name` is the header's, in lower case, or the field's."""

    kind: KeyKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


def parse_key(text: str) -> Key:
    """Reads `first_user_message`, `prompt_head`, `conversation`, `header:<name>` or `field:<name>`.

    Raises `ValueError`, which names the choices.
    """
    word, colon, name = (part.strip() for part in text.partition(":"))
    choices = ", ".join(f"{kind}:<name>" if kind in _NAMED else kind for kind in KeyKind)
    if word not in set(KeyKind):
        raise ValueError(f"{text!r} is not a key: choose from {choices}")
    kind = KeyKind(word)
    if kind in _NAMED and not name:
        raise ValueError(f"{text!r} needs a name: {kind}:<name>")
    if kind not in _NAMED and colon:
        raise ValueError(f"{text!r} takes no name: write {kind}")
    return Key(kind, name.lower() if kind is KeyKind.HEADER else name)


def prefix_of(
    prompt: Prompt | None, keys: Sequence[Key], chars: int, headers: Mapping[str, str]
) -> str | None:
    """Returns the first of `keys` that the request has, `None` if it has none of them.

    Prompt texts are cut to `chars` code points, headers and fields count whole. `headers` go by
    lower-case name. `prompt` is `None` where there is no readable body.
    """
    for key in keys:
        if prefix := _find(prompt, key, chars, headers):
            return prefix
    return None


def routing_key(prefix: str, *, model: str, adapter: str = "", cache_salt: str = "") -> int:
    """Hashes what decides placement to 64 bits (xxh3).

    Model, adapter and salt are in it because vLLM shares no block between different ones.
    """
    # Different fields make different bytes: all but the last are led by their lengths.
    lengths = f"{len(model)},{len(adapter)},{len(cache_salt)}:"
    # Headers may hold what UTF-8 cannot spell.
    return xxh3_64_intdigest(
        f"{lengths}{model}{adapter}{cache_salt}{prefix}".encode(errors="surrogatepass")
    )


def _find(prompt: Prompt | None, key: Key, chars: int, headers: Mapping[str, str]) -> str | None:
    if key.kind is KeyKind.HEADER:
        return headers.get(key.name)
    if prompt is None:
        return None
    match key.kind:
        case KeyKind.FIRST_USER_MESSAGE:
            return prompt.first_user_message(chars)
        case KeyKind.PROMPT_HEAD:
            return prompt.head(chars)
        case KeyKind.CONVERSATION:
            return prompt.conversation(chars)
    return prompt.field(key.name)

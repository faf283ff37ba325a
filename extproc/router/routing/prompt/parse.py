"""A request's prompt: the model it names, and the text that may be in a KV cache already.

Any bytes become a `Prompt` or raise `PromptError`; a `Prompt` itself never raises. Bodies are read
as far as needed and never changed.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from msgspec import Raw, Struct
from msgspec.structs import replace
from xxhash import xxh3_64

from extproc.errors import PromptError
from extproc.router.routing.prompt.apis import Api, api_of, reads_body
from extproc.router.routing.prompt.json_reader import LIMITS, Object, ReadLimits, open_object
from extproc.router.routing.prompt.multipart import is_form, open_form
from extproc.router.routing.prompt.turns import (
    TURN_START,
    TURN_TEXT,
    Turn,
    read_turns,
    turns_of,
    weigh_turns,
)

__all__ = ["Prompt", "parse", "reads_body"]


_NAME: Final = attrgetter("name")

# Fields that hold a prompt, its token ids, or a list of such prompts.
_PROMPTS: Final = frozenset({"prompt", "token_ids", "input_ids", "text"})
_START_BYTES: Final = 64


class Prompt(Struct, frozen=True):
    """What a request says to a model; texts are read lazily, as far as they are used.

    `model` is `None` where the request names none. `cache_salt` is empty where there is none: vLLM
    shares no block between different salts. Lengths are in Unicode code points.
    """

    model: str | None
    cache_salt: str
    _api: Api
    _fields: Object

    def __repr__(self) -> str:
        return f"Prompt(model={self.model!r})"

    def salted(self, tenant: str) -> "Prompt":
        """The same prompt of one tenant: what it shares with other tenants' prompts is found no more."""
        return replace(self, cache_salt=f"{len(tenant)}:{tenant}{self.cache_salt}")

    def unnamed(self) -> "Prompt":
        """The same prompt for the model that is meant where none is named."""
        return replace(self, model=None)

    @property
    def fault(self) -> PromptError | None:
        """Why some of the body was not read, if that took too long; of the parts read until now."""
        return self._fields.fault

    def first_user_message(self, chars: int) -> str:
        """The first characters of the first message by `user`; KubeAI's rule, 100 there.

        Without roles it is the prompt itself, or the first one of a batch. Text only. Token ids
        count as their numbers (KubeAI ignores them).
        """
        turns = turns_of(self._api, self._fields, chars)
        return next((turn.text(chars) for turn in turns if turn.is_user), "")

    def head(self, chars: int) -> str:
        """The first characters of the whole prompt as the model reads it.

        Tools, system text, then the messages in order; each turn behind its role; images, sounds
        and files by digest; tool calls and results, reasoning.
        """
        turns = read_turns(self._api, self._fields, chars)
        return "".join(
            [f"{TURN_START}{role}{TURN_TEXT}{text}" if role else text for role, text in turns]
        )[:chars]

    def turns(self, chars: int) -> Iterator[tuple[str, str | bytes]]:
        """The turns as a chain counts them, as many as the first bytes of the whole prompt need; see `weigh_turns`."""
        return weigh_turns(self._api, self._fields, chars)

    def begin(self, size: int) -> "Prompt":
        """The same prompt, of each part as much as its first bytes are."""
        names = ["tool_choice", *map(_NAME, self._api)]
        return replace(self, _fields=self._fields.begin(names, size))

    def written(self, chars: int) -> list[bytes]:
        """A chat's fields as they were written, the messages last; one empty field if they are longer."""
        is_chat = bool(self._api) and self._api[-1].name == "messages"
        texts = self._fields.written(map(_NAME, self._api)) if is_chat else [b""]
        return texts if sum(map(len, texts)) <= chars else [b""]

    def later_turns(self, messages: bytes, chars: int) -> Iterator[tuple[str, str | bytes]]:
        """As `turns`, of messages that came after the others of a chat."""
        return weigh_turns(self._api[-1:], Object({"messages": Raw(messages)}), chars)

    def leaves_out_of(self, messages: bytes) -> bool:
        """Whether of these messages of a chat something may be left out."""
        start = self._api[-1].leaves_out
        return bool(start) and start.encode() in messages

    def conversation(self, chars: int) -> str:
        """The system text and the first characters of the first message by `user`: the same in every turn.

        The system text counts whole, as a digest, so that a long one does not hide who speaks.
        """
        system: list[Turn] = []
        for turn in turns_of(self._api, self._fields, chars):
            if turn.is_user:
                return _digest(system) + turn.rendered(chars)
            if turn.is_system:
                system.append(turn)
        return ""

    @property
    def is_single(self) -> bool:
        """Whether it asks for one answer to one prompt: not to each of a batch, and not for several.

        For an engine each of them is a request of its own.
        """
        names = [name for name in map(_NAME, self._api) if name in _PROMPTS]
        starts = self._fields.begin(names, _START_BYTES)
        # Not of token ids: reading them all takes long, and their first one tells.
        lists = [
            self._fields.value(name)
            for name in names
            if isinstance(start := starts.value(name), list)
            and not (start and isinstance(start[0], int))
        ]
        is_batch = any(isinstance(each, list) and len(each) > 1 for each in lists)
        return not is_batch and self.field("n") in {None, "1"}

    def field(self, name: str) -> str | None:
        """A string or number at the top level of the body, as text."""
        return self._fields.scalar(name)


def parse(
    path: str,
    content_type: str,
    body: bytes | bytearray | memoryview,
    *,
    is_partial: bool = False,
    limits: ReadLimits = LIMITS,
) -> Prompt:
    """Reads the request that `path` names out of `body`.

    `is_partial` says that the proxy cut the body off: what came is read. Raises `PromptError` if it
    is neither a JSON object nor, by its content type, a form.
    """
    api = api_of(path)
    if is_form(content_type):
        fields = open_form(content_type, body)
    else:
        fields = open_object(body, is_partial=is_partial, limits=limits)
    return Prompt(fields.string("model"), fields.string("cache_salt") or "", api, fields)


def _digest(turns: list[Turn]) -> str:
    if not turns:
        return ""
    hasher = xxh3_64()
    for index, turn in enumerate(turns):
        hasher.update(TURN_START.encode() * bool(index))
        turn.feed(hasher)
    return f"{TURN_START}system:{hasher.hexdigest()}{TURN_TEXT}"

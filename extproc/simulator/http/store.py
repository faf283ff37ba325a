"""Responses that may be fetched again, or gone on with. What is kept is bounded; the oldest go first."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.simulator.http.refusals import Refusal

MOST_RESPONSES = 1000
MOST_CHARACTERS = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was sent, and the conversation that it ended: messages, its own answer among them."""

    body: Mapping[str, Any]
    told: Sequence[Any]
    characters: int


class ResponseStore:
    """The responses of one endpoint, by id: no other endpoint knows them."""

    def __init__(self, most: int = MOST_RESPONSES, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._most_characters = most_characters
        self._characters = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, name: str, stored: StoredResponse) -> None:
        self._stored[name] = stored
        self._characters += stored.characters
        while len(self._stored) > self._most or self._characters > self._most_characters:
            _, oldest = self._stored.popitem(last=False)
            self._characters -= oldest.characters

    def find(self, name: str) -> StoredResponse:
        """Returns a response; raises `Refusal` for one that was never here, or is no more."""
        if name not in self._stored:
            raise Refusal(
                f"Response with id '{name}' not found.",
                status=404,
                kind="invalid_request_error",
                param="response_id",
            )
        return self._stored[name]

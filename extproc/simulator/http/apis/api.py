"""The seam between a serving API's JSON and the engine."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from extproc.simulator.http.api_request import (
    AnswerHead,
    ApiRequest,
    FinishedAnswer,
    NewText,
    TokenUsage,
)
from extproc.simulator.http.refusals import VllmRefusal
from extproc.simulator.http.tokens import Tokenizer

FINGERPRINT = "vllm-0.32.0-simulated"
# One encoder for all events of all streams: making one for each event costs half as much again.
encode_json = msgspec.json.Encoder().encode


class Frames(Protocol):
    """How one API words a stream, as whole server-sent events.

    `index` counts the request's answers. An answer that calls tools has pieces where there is news
    of a call.
    """

    def opening(self) -> bytes:
        """Returns what goes out with the first token, before it."""
        ...

    def piece(self, index: int, new: NewText, /) -> bytes: ...

    def last_piece(self, index: int, new: NewText, reason: str, /) -> bytes: ...

    def closing(self, usage: TokenUsage) -> bytes: ...


class Api(Protocol):
    """One serving API: reads its requests and words its answers."""

    id_prefix: str

    def read(self, body: object, tokenizer: Tokenizer) -> ApiRequest:
        """Parses the body; raises `VllmRefusal` in vLLM's words."""
        ...

    def describe(self, refusal: VllmRefusal) -> dict[str, Any]:
        """Returns the body of an error."""
        return refusal.describe()

    def frames(self, head: AnswerHead, request: ApiRequest) -> Frames: ...

    def whole(
        self,
        head: AnswerHead,
        request: ApiRequest,
        choices: Sequence[FinishedAnswer],
        usage: TokenUsage,
        /,
    ) -> dict[str, Any]: ...

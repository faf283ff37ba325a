"""Triton's generate extension. It counts no tokens: give `target.tokenizer`."""

from dataclasses import dataclass, field

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.load.registry import Registry
from extproc.bench.processors.processor import AnswerPiece, ChatQuery, HttpApi, get_error, get_text


@dataclass(frozen=True, slots=True)
class Triton(HttpApi):
    has_terminator: bool = field(default=False, init=False)  # its streams end without a last event

    def path(self, query: ChatQuery) -> str:
        return f"/v2/models/{query.model}/generate{'_stream' if query.is_streaming else ''}"

    def body(self, query: ChatQuery) -> dict[str, object]:
        prompt, length = join_prompt(query.messages), query.max_tokens
        return {"text_input": prompt, "max_tokens": length, "stream": query.is_streaming}

    def read(self, payload: object) -> AnswerPiece:
        return AnswerPiece(get_text(payload, "text_output"), error=get_error(payload))


def register(registry: Registry) -> None:
    registry.add_processor("triton", Triton())

"""Hugging Face's Text Generation Inference: a token an event; the last event has the counts."""

from dataclasses import dataclass

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.load.registry import Registry
from extproc.bench.processors.processor import (
    AnswerPiece,
    ChatQuery,
    HttpApi,
    Usage,
    get_count,
    get_error,
    get_object,
    get_text,
)


@dataclass(frozen=True, slots=True)
class Tgi(HttpApi):
    def path(self, query: ChatQuery) -> str:
        return "/generate_stream" if query.is_streaming else "/generate"

    def body(self, query: ChatQuery) -> dict[str, object]:
        parameters = {"max_new_tokens": query.max_tokens, "details": True}
        return {"inputs": join_prompt(query.messages), "parameters": parameters}

    def read(self, payload: object) -> AnswerPiece:
        token, details = get_object(payload, "token"), get_object(payload, "details")
        usage = Usage(get_count(details, "input_length"), get_count(details, "generated_tokens"))
        text = get_text(token, "text") if token else get_text(payload, "generated_text")
        return AnswerPiece(text, usage=usage, error=get_error(payload), is_last=bool(details))


def register(registry: Registry) -> None:
    registry.add_processor("tgi", Tgi())

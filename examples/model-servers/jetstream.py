"""JetStream's HTTP server. Its stream is one indented JSON after another, and no server-sent events."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.load.registry import Registry
from extproc.bench.processors.processor import (
    AnswerPiece,
    ChatQuery,
    HttpApi,
    Read,
    get_error,
    get_list,
    get_object,
    get_text,
)


@dataclass(frozen=True, slots=True)
class JetStream(HttpApi):
    has_terminator: bool = field(default=False, init=False)

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/generate"

    def body(self, query: ChatQuery) -> dict[str, object]:
        return {
            "text_content": {"text": join_prompt(query.messages)},
            "max_tokens": query.max_tokens,
        }

    def cut(self, reads: Iterable[Read]) -> Iterator[Read]:
        rest = b""
        for at_s, data in reads:
            # A brace at the beginning of a line ends a message; in texts a line's end is written `\n`.
            *messages, rest = (rest + data).replace(b"\n}", b"\n}\0").split(b"\0")
            yield from ((at_s, message) for message in messages)

    def read(self, payload: object) -> AnswerPiece:
        samples = get_list(get_object(payload, "streamContent"), "samples")
        text = "".join(get_text(sample, "text") for sample in samples)
        return AnswerPiece(text, error=get_error(payload))


def register(registry: Registry) -> None:
    registry.add_processor("jetstream", JetStream())

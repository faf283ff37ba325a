"""Servers with a generate API of their own: SGLang, TGI, Triton, JetStream over HTTP."""

from dataclasses import dataclass, field

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.processors.fields import get_count, get_error, get_list, get_object, get_text
from extproc.bench.processors.processor import HttpApi, Piece, Query, Usage


@dataclass(frozen=True, slots=True)
class SGLang(HttpApi):
    """`/generate`: events hold the whole text so far, and `meta_info` with counts."""

    is_cumulative: bool = field(default=True, init=False)

    def path(self, ask: Query) -> str:
        del ask
        return "/generate"

    def body(self, ask: Query) -> dict[str, object]:
        sampling = {"max_new_tokens": ask.max_tokens, "ignore_eos": True}
        return {"text": join_prompt(ask.messages), "sampling_params": sampling, "stream": ask.is_streaming}

    def read(self, payload: object) -> Piece:
        meta = get_object(payload, "meta_info")
        usage = Usage(
            input_tokens=get_count(meta, "prompt_tokens"),
            output_tokens=get_count(meta, "completion_tokens"),
            cached_tokens=get_count(meta, "cached_tokens"),
        )
        return Piece(text=get_text(payload, "text"), usage=usage, error=get_error(payload))


@dataclass(frozen=True, slots=True)
class Tgi(HttpApi):
    """Text Generation Inference: `/generate_stream`; the last event holds `generated_text`."""

    def path(self, ask: Query) -> str:
        return "/generate_stream" if ask.is_streaming else "/generate"

    def body(self, ask: Query) -> dict[str, object]:
        parameters = {"max_new_tokens": ask.max_tokens, "details": True}
        return {"inputs": join_prompt(ask.messages), "parameters": parameters}

    def read(self, payload: object) -> Piece:
        token, details = get_object(payload, "token"), get_object(payload, "details")
        whole = get_text(payload, "generated_text")
        is_special = token.get("special") is True
        usage = Usage(
            input_tokens=get_count(details, "input_length"),
            output_tokens=get_count(details, "generated_tokens"),
        )
        return Piece(
            text="" if is_special else get_text(token, "text") if token else whole,
            usage=usage,
            error=get_error(payload),
            is_last=bool(details) or bool(whole),
        )


@dataclass(frozen=True, slots=True)
class Triton(HttpApi):
    """Triton's HTTP generate extension; a stream ends with the connection's body."""

    has_terminator: bool = field(default=False, init=False)

    def path(self, ask: Query) -> str:
        verb = "generate_stream" if ask.is_streaming else "generate"
        return f"/v2/models/{ask.model}/{verb}"

    def body(self, ask: Query) -> dict[str, object]:
        return {
            "text_input": join_prompt(ask.messages),
            "max_tokens": ask.max_tokens,
            "stream": ask.is_streaming,
        }

    def read(self, payload: object) -> Piece:
        return Piece(text=get_text(payload, "text_output"), error=get_error(payload))


@dataclass(frozen=True, slots=True)
class JetStreamHttp(HttpApi):
    """JetStream's HTTP server: protobuf messages as JSON, one after another."""

    has_terminator: bool = field(default=False, init=False)
    framing: str = field(default="json", init=False)

    def path(self, ask: Query) -> str:
        del ask
        return "/v1/generate"

    def body(self, ask: Query) -> dict[str, object]:
        return {"text_content": {"text": join_prompt(ask.messages)}, "max_tokens": ask.max_tokens}

    def read(self, payload: object) -> Piece:
        samples = get_list(get_object(payload, "streamContent"), "samples")
        text = "".join(get_text(sample, "text") for sample in samples)
        return Piece(text=text, error=get_error(payload))

"""`/v1/chat/completions`. The wording is that of vLLM 0.32.0, field by field."""

from collections.abc import Sequence
from typing import Any

from extproc.simulator.http.api_request import (
    AnswerHead,
    ApiRequest,
    FinishedAnswer,
    NewText,
    TokenUsage,
)
from extproc.simulator.http.apis.api import FINGERPRINT, Api, Frames, encode_json
from extproc.simulator.http.apis.fields import ChatMessage, SamplingFields, render
from extproc.simulator.http.refusals import VllmRefusal
from extproc.simulator.http.tokens import Tokenizer

EMPTY_TOOLS = (
    "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. "
    "(parameter=tools)"
)


class ChatRequest(SamplingFields):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None


class Chat(Api):
    id_prefix = "chatcmpl-"

    def read(self, body: object, tokenizer: Tokenizer) -> ApiRequest:
        request = ChatRequest.read(body)
        request.check()
        if request.tools == []:
            raise VllmRefusal(EMPTY_TOOLS, param="tools")
        is_new_name = request.max_completion_tokens is not None
        return request.build(
            [tokenizer.encode(render(request.messages, request.tools))],
            max_tokens=request.max_completion_tokens if is_new_name else request.max_tokens,
            max_tokens_name="max_completion_tokens" if is_new_name else "max_tokens",
        )

    def frames(self, head: AnswerHead, request: ApiRequest) -> Frames:
        return ChatFrames(head, request)

    def whole(
        self,
        head: AnswerHead,
        _request: ApiRequest,
        choices: Sequence[FinishedAnswer],
        usage: TokenUsage,
    ) -> dict[str, Any]:
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [_describe(index, choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": describe_usage(usage) | {"completion_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class ChatFrames:
    """Chunks of one stream; all but the text is encoded once."""

    kind = "chat.completion.chunk"

    def __init__(self, head: AnswerHead, request: ApiRequest) -> None:
        opening = {"id": head.id, "object": self.kind, "created": head.created, "model": head.model}
        self._head = b"data: " + encode_json(opening)[:-1]
        self._answers = request.n
        self._prompt_tokens = request.prompt_tokens
        self._wants_usage = request.wants_usage
        self._wants_continuous_usage = request.wants_continuous_usage

    def opening(self) -> bytes:
        usage = b""
        if self._wants_continuous_usage:
            usage = running_usage(TokenUsage(self._prompt_tokens, 0, 0))
        return b"".join(
            self._head + b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]%b,"prompt_token_ids":null,"prompt_text":null}\n\n'
            % (index, usage)
            for index in range(self._answers)
        )

    def piece(self, index: int, new: NewText) -> bytes:
        return (
            self._head + b',"choices":[{"index":%d,"delta":{"content":"%b"},"logprobs":null,'
            b'"finish_reason":null,"token_ids":null}]%b}\n\n' % (index, new.text, self._end(new))
        )

    def last_piece(self, index: int, new: NewText, reason: str) -> bytes:
        end = self._end(new)
        if not self._wants_usage:
            end += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        delta = b'{"content":"%b"}' % new.text if new.text else b"{}"
        return (
            self._head + b',"choices":[{"index":%d,"delta":%b,"logprobs":null,'
            b'"finish_reason":"%b","stop_reason":null,"token_ids":null}]%b}\n\n'
            % (index, delta, reason.encode(), end)
        )

    def _end(self, new: NewText) -> bytes:
        return running_usage(new.usage) if self._wants_continuous_usage else b""

    def closing(self, usage: TokenUsage) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._wants_usage:
            return done
        counts = encode_json(describe_usage(usage, is_stream=True))
        fingerprint = FINGERPRINT.encode()
        last = b',"choices":[],"usage":%b,"system_fingerprint":"%b"}\n\n' % (counts, fingerprint)
        return self._head + last + done


def describe_usage(usage: TokenUsage, *, is_stream: bool = False) -> dict[str, Any]:
    details: dict[str, int | None] | None = None
    if usage.cached_tokens is not None:
        details = {
            "cached_tokens": usage.cached_tokens,
            "created_cache_tokens": usage.created_tokens,
        }
        details |= {} if is_stream else {"multimodal_tokens": None}
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    return counts if is_stream and details is None else counts | {"prompt_tokens_details": details}


def running_usage(usage: TokenUsage) -> bytes:
    """Returns the `usage` member of a chunk under `continuous_usage_stats`, with its comma."""
    return (
        b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
        b'"completion_tokens_details":null}'
        % (usage.prompt_tokens, usage.total_tokens, usage.completion_tokens)
    )


def _describe(index: int, choice: FinishedAnswer) -> dict[str, Any]:
    absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    message = {"role": "assistant", "content": choice.text, **absent}
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }

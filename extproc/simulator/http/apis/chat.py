"""`/v1/chat/completions`. The wording is that of vLLM 0.32.0, field by field."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from extproc.simulator.http.apis.api import FINGERPRINT, Frames
from extproc.simulator.http.apis.fields import Message, Sampling
from extproc.simulator.http.apis.forms_asked import (
    ResponseFormat,
    StructuredOutputs,
    read_chat_tools,
    read_format,
)
from extproc.simulator.http.forms import Call, CallDelta, Form
from extproc.simulator.http.order import AnswerHead, Due, FinishedAnswer, Order, Usage
from extproc.simulator.http.prompts import render
from extproc.simulator.http.refusals import Refusal
from extproc.simulator.http.scores import check_sign, describe_content, describe_prompt_scores, refuse_param
from extproc.simulator.http.tokens import Tokenizer


class ChatRequest(Sampling):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None

    def form(self) -> Form | None:
        """Returns what the answer must be; raises `Refusal`. Calls of tools come before other forms."""
        text = read_format(self.response_format, self.structured_outputs)
        calls = read_chat_tools(self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls)
        return calls or text

    def check_scores(self) -> None:
        check_sign(self.prompt_logprobs, "prompt_logprobs")
        check_sign(self.top_logprobs, "top_logprobs")
        if self.prompt_logprobs and self.stream:
            raise refuse_param("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise refuse_param("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")


class Chat:
    id_prefix = "chatcmpl-"

    def read(self, body: object, tokenizer: Tokenizer) -> Order:
        request = ChatRequest.read(body)
        request.check()
        request.check_scores()
        is_new_name = request.max_completion_tokens is not None
        return Order(
            prompts=[tokenizer.encode(render(request.messages, request.tools))],
            model=request.model,
            max_tokens=request.max_completion_tokens if is_new_name else request.max_tokens,
            max_tokens_name="max_completion_tokens" if is_new_name else "max_tokens",
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            n=request.n,
            seed=request.seed or 0,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
            wants_usage=request.wants_usage,
            wants_continuous_usage=request.wants_continuous_usage,
            form=request.form(),
            scores=(request.top_logprobs or 0) if request.logprobs else None,
            prompt_scores=request.prompt_logprobs,
        )

    def describe(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.describe()

    def frames(self, head: AnswerHead, order: Order) -> Frames:
        return ChatFrames(head, order)

    def whole(
        self, head: AnswerHead, order: Order, choices: Sequence[FinishedAnswer], usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [_describe(index, choice, order.scores or 0) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": describe_usage(usage) | {"completion_tokens_details": None},
            "prompt_logprobs": _describe_prompt(choices[0]),
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class ChatFrames:
    """Chunks of one stream; all but the text is encoded once."""

    def __init__(self, head: AnswerHead, order: Order) -> None:
        opening = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._head = b"data: " + orjson.dumps(opening)[:-1]
        self._answers = order.n
        self._scores = order.scores or 0
        self._prompt_tokens = order.prompt_tokens
        self._wants_usage = order.wants_usage
        self._wants_continuous_usage = order.wants_continuous_usage

    def opening(self) -> bytes:
        usage = b""
        if self._wants_continuous_usage:
            usage = running_usage(Usage(self._prompt_tokens, 0, 0))
        return b"".join(
            self._head + b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]%b,"prompt_token_ids":null,"prompt_text":null}\n\n'
            % (index, usage)
            for index in range(self._answers)
        )

    def piece(self, index: int, due: Due) -> bytes:
        return b"".join(
            self._head + b',"choices":[{"index":%d,"delta":%b,"logprobs":%b,'
            b'"finish_reason":null,"token_ids":null}]%b}\n\n'
            % (index, delta, self._describe_scores(due), self._end(due))
            for delta in self._deltas(due)
        )

    def last_piece(self, index: int, due: Due, reason: str) -> bytes:
        end = self._end(due)
        if not self._wants_usage:
            end += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        news = self.piece(index, due) if due.deltas else b""
        delta = b'{"content":"%b"}' % due.text if due.text else b"{}"
        scores = b"null" if due.deltas else self._describe_scores(due)
        return news + (
            self._head + b',"choices":[{"index":%d,"delta":%b,"logprobs":%b,'
            b'"finish_reason":"%b","stop_reason":null,"token_ids":null}]%b}\n\n'
            % (index, delta, scores, reason.encode(), end)
        )

    def _end(self, due: Due) -> bytes:
        return running_usage(due.usage) if self._wants_continuous_usage else b""

    def _describe_scores(self, due: Due) -> bytes:
        if due.scores is None:
            return b"null"
        return orjson.dumps(describe_content(due.scores, self._scores))

    @staticmethod
    def _deltas(due: Due) -> Iterator[bytes]:
        for delta in due.deltas:
            yield orjson.dumps({"content": None, "tool_calls": [_describe_delta(delta)]})
        if not due.deltas:
            yield b'{"content":"%b"}' % due.text

    def closing(self, usage: Usage) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._wants_usage:
            return done
        counts = orjson.dumps(describe_usage(usage, is_stream=True))
        fingerprint = FINGERPRINT.encode()
        last = b',"choices":[],"usage":%b,"system_fingerprint":"%b"}\n\n' % (counts, fingerprint)
        return self._head + last + done


def describe_usage(usage: Usage, *, is_stream: bool = False) -> dict[str, Any]:
    details: dict[str, int | None] | None = None
    if usage.cached_tokens is not None:
        details = {"cached_tokens": usage.cached_tokens, "created_cache_tokens": usage.created_tokens}
        details |= {} if is_stream else {"multimodal_tokens": None}
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    return counts if is_stream and details is None else counts | {"prompt_tokens_details": details}


def running_usage(usage: Usage) -> bytes:
    """Returns the `usage` member of a chunk under `continuous_usage_stats`, with its comma."""
    return (
        b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
        b'"completion_tokens_details":null}'
        % (usage.prompt_tokens, usage.total_tokens, usage.completion_tokens)
    )


def _describe(index: int, choice: FinishedAnswer, count: int) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if choice.calls:
        message["tool_calls"] = [describe_call(call) for call in choice.calls]
    return {
        "index": index,
        "message": message | {"reasoning": None},
        "logprobs": None if choice.scores is None else describe_content(choice.scores, count),
        "finish_reason": choice.reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def describe_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _describe_delta(delta: CallDelta) -> dict[str, Any]:
    if delta.name:
        head = {"id": delta.id, "type": "function", "index": delta.call}
        return head | {"function": {"name": delta.name}}
    return {"index": delta.call, "function": {"arguments": delta.arguments}}


def _describe_prompt(choice: FinishedAnswer) -> list[Any] | None:
    return None if choice.prompt_scores is None else describe_prompt_scores(choice.prompt_scores)

"""`/v1/completions`. The wording is that of vLLM 0.32.0, field by field."""

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
from extproc.simulator.http.apis.chat import ChatFrames
from extproc.simulator.http.apis.fields import SamplingFields, Token
from extproc.simulator.http.refusals import VllmRefusal
from extproc.simulator.http.tokens import Tokenizer


class CompletionRequest(SamplingFields):
    prompt: list[Token] | list[list[Token]] | str | list[str] | None = None
    # OpenAI's legacy default, which vLLM keeps for this API alone.
    max_tokens: int | None = 16


class Completions(Api):
    id_prefix = "cmpl-"

    def read(self, body: object, tokenizer: Tokenizer) -> ApiRequest:
        request = CompletionRequest.read(body)
        request.check()
        prompts = read_prompts(request.prompt, tokenizer)
        return request.build(prompts, is_text=_is_text(request.prompt), echoes=bool(request.echo))

    def frames(self, head: AnswerHead, request: ApiRequest) -> Frames:
        return CompletionFrames(head, request)

    def whole(
        self,
        head: AnswerHead,
        _request: ApiRequest,
        choices: Sequence[FinishedAnswer],
        usage: TokenUsage,
    ) -> dict[str, Any]:
        details: dict[str, int | None] | None = None
        if usage.cached_tokens is not None:
            details = {
                "cached_tokens": usage.cached_tokens,
                "created_cache_tokens": None,
                "multimodal_tokens": None,
            }
        return {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": [_describe(index, choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.total_tokens,
                "completion_tokens": usage.completion_tokens,
                "prompt_tokens_details": details,
                "completion_tokens_details": None,
            },
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class CompletionFrames(ChatFrames):
    """Chunks of one stream; all but the text is encoded once."""

    kind = "text_completion"

    def opening(self) -> bytes:
        return b""

    def piece(self, index: int, new: NewText) -> bytes:
        return self._frame(index, new, b"null", self._end(new))

    def last_piece(self, index: int, new: NewText, reason: str) -> bytes:
        end = self._end(new)
        if not self._wants_usage:
            end += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        return self._frame(index, new, b'"%b"' % reason.encode(), end)

    def closing(self, usage: TokenUsage) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._wants_usage:
            return done
        counts: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.total_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        if usage.cached_tokens is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
        last = {"choices": [], "usage": counts, "system_fingerprint": FINGERPRINT}
        return self._head + b"," + encode_json(last)[1:] + b"\n\n" + done

    def _frame(self, index: int, new: NewText, reason: bytes, end: bytes) -> bytes:
        echoed = b"null" if new.echoed is None else encode_json(list(new.echoed))
        return (
            self._head
            + b',"choices":[{"index":%d,"text":"%b%b","logprobs":null,"finish_reason":%b,'
            b'"stop_reason":null,"prompt_token_ids":%b,"token_ids":null}]%b}\n\n'
            % (index, new.echo, new.text, reason, echoed, end)
        )


def read_prompts(prompt: Any, tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the tokens of each prompt: a text, tokens, or a list of either; raises `VllmRefusal`."""
    if not prompt and not isinstance(prompt, list):
        raise VllmRefusal(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if not prompt:
        raise VllmRefusal("You must pass at least one prompt")
    if isinstance(prompt, str):
        return [tokenizer.encode([prompt])]
    if isinstance(prompt[0], int):
        return [prompt]
    return [tokenizer.encode([item]) if isinstance(item, str) else item for item in prompt]


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], str)


def _describe(index: int, choice: FinishedAnswer) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.echo + choice.text,
        "logprobs": None,
        "finish_reason": choice.reason,
        **dict.fromkeys(
            ("stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts")
        ),
    }

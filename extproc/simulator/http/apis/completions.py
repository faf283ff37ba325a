"""`/v1/completions`. The wording is that of vLLM 0.32.0, field by field."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import orjson

from extproc.simulator.http.answers import escape
from extproc.simulator.http.apis.api import FINGERPRINT, Frames
from extproc.simulator.http.apis.chat import running_usage
from extproc.simulator.http.apis.fields import Sampling, Token
from extproc.simulator.http.apis.forms_asked import ResponseFormat, StructuredOutputs, read_format
from extproc.simulator.http.order import AnswerHead, Due, FinishedAnswer, Order, Usage
from extproc.simulator.http.refusals import Refusal
from extproc.simulator.http.scores import Score, check_sign, describe_prompt_scores, refuse_param
from extproc.simulator.http.tokens import Tokenizer


class CompletionRequest(Sampling):
    prompt: list[Token] | list[list[Token]] | str | list[str] | None = None
    # OpenAI's legacy default, which vLLM keeps for this API alone.
    max_tokens: int | None = 16
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def check_scores(self) -> None:
        check_sign(self.prompt_logprobs, "prompt_logprobs")
        check_sign(self.logprobs, "logprobs")
        if self.prompt_logprobs and self.stream:
            raise refuse_param("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")


class Completions:
    id_prefix = "cmpl-"

    def read(self, body: object, tokenizer: Tokenizer) -> Order:
        request = CompletionRequest.read(body)
        request.check()
        request.check_scores()
        echoed = request.logprobs if request.echo else None
        return Order(
            prompts=read_prompts(request.prompt, tokenizer),
            is_text=_is_text(request.prompt),
            model=request.model,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            n=request.n,
            seed=request.seed or 0,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
            wants_usage=request.wants_usage,
            wants_continuous_usage=request.wants_continuous_usage,
            echoes=bool(request.echo),
            form=read_format(request.response_format, request.structured_outputs),
            scores=request.logprobs,
            prompt_scores=echoed if request.prompt_logprobs is None else request.prompt_logprobs,
        )

    def describe(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.describe()

    def frames(self, head: AnswerHead, order: Order) -> Frames:
        return CompletionFrames(head, order)

    def whole(
        self, head: AnswerHead, _order: Order, choices: Sequence[FinishedAnswer], usage: Usage
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


class CompletionFrames:
    """Chunks of one stream; all but the text is encoded once."""

    def __init__(self, head: AnswerHead, order: Order) -> None:
        opening = {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model}
        self._head = b"data: " + orjson.dumps(opening)[:-1]
        self._offsets: dict[int, int] = {}
        self._wants_usage = order.wants_usage
        self._wants_continuous_usage = order.wants_continuous_usage

    def opening(self) -> bytes:
        return b""

    def piece(self, index: int, due: Due) -> bytes:
        return self._frame(index, due, b"null", self._end(due))

    def last_piece(self, index: int, due: Due, reason: str) -> bytes:
        end = self._end(due)
        if not self._wants_usage:
            end += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        return self._frame(index, due, b'"%b"' % reason.encode(), end)

    def _end(self, due: Due) -> bytes:
        return running_usage(due.usage) if self._wants_continuous_usage else b""

    def closing(self, usage: Usage) -> bytes:
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
        return self._head + b"," + orjson.dumps(last)[1:] + b"\n\n" + done

    def _frame(self, index: int, due: Due, reason: bytes, end: bytes) -> bytes:
        echoed = b"null" if due.echoed is None else orjson.dumps(list(due.echoed))
        return (
            self._head + b',"choices":[{"index":%d,"text":"%b%b","logprobs":%b,"finish_reason":%b,'
            b'"stop_reason":null,"prompt_token_ids":%b,"token_ids":null}]%b}\n\n'
            % (index, due.echo, due.text, self._describe_scores(index, due), reason, echoed, end)
        )

    def _describe_scores(self, index: int, due: Due) -> bytes:
        if due.scores is None:
            return b"null"
        echoed = due.prompt_scores if due.echo else None
        described = _describe_scores(due.scores, echoed, due.echo, self._offsets.get(index, 0))
        self._offsets[index] = described["text_offset"][-1] + len(described["tokens"][-1])
        return orjson.dumps(described)


def read_prompts(prompt: Any, tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the tokens of each prompt: a text, tokens, or a list of either; raises `Refusal`."""
    if not prompt and not isinstance(prompt, list):
        raise Refusal(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if not prompt:
        raise Refusal("You must pass at least one prompt")
    if isinstance(prompt, str):
        return [tokenizer.encode([prompt])]
    if isinstance(prompt[0], int):
        return [prompt]
    return [tokenizer.encode([item]) if isinstance(item, str) else item for item in prompt]


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], str)


def _describe(index: int, choice: FinishedAnswer) -> dict[str, Any]:
    prompt_scores = choice.prompt_scores
    scores = None
    if choice.scores is not None:
        echoed = prompt_scores if choice.echo else None
        scores = _describe_scores(choice.scores, echoed, escape(choice.echo), 0)
    return {
        "index": index,
        "text": choice.echo + choice.text,
        "logprobs": scores,
        "finish_reason": choice.reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None if prompt_scores is None else describe_prompt_scores(prompt_scores),
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _describe_scores(
    scores: Sequence[Score], echoed: Sequence[Score] | None, echo: bytes, offset: int
) -> dict[str, Any]:
    """Returns text completions' `logprobs`; `offset` is how much text has come before."""
    tokens = [one.chosen.text for one in scores]
    values: list[float | None] = [one.chosen.logprob for one in scores]
    tops: list[dict[str, float] | None] = [_describe_top(one) for one in scores]
    if echoed is not None:
        # Nothing precedes the first token of a prompt, so nothing says how likely it was.
        told: str = orjson.loads(b'"%b"' % echo)
        rest = [one.chosen.text for one in echoed]
        tokens = [told.removesuffix("".join(rest)), *rest, *tokens]
        values = [None, *(one.chosen.logprob for one in echoed), *values]
        tops = [None, *map(_describe_top, echoed), *tops]
    offsets = list(accumulate(map(len, tokens[:-1]), initial=offset))
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}


def _describe_top(score: Score) -> dict[str, float]:
    return {one.text: one.logprob for one in score.top or [score.chosen]}

"""What `/v1/responses` answers, field by field as vLLM 0.32.0 writes it."""

from collections.abc import Sequence
from typing import Any

from extproc.simulator.http.forms import Call
from extproc.simulator.http.order import AnswerHead, FinishedAnswer, Order, Usage
from extproc.simulator.http.scores import Score


def name_item(head: AnswerHead) -> str:
    return head.id.replace("resp_", "msg_", 1)


def describe_response(
    head: AnswerHead, order: Order, choice: FinishedAnswer | None, usage: Usage | None
) -> dict[str, Any]:
    """Returns the response object; without a choice, that of a response in progress."""
    is_cut = choice is not None and choice.reason == "length"
    status = "in_progress" if choice is None else "incomplete" if is_cut else "completed"
    return {
        "id": head.id,
        "created_at": head.created,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "metadata": None,
        "model": head.model,
        "object": "response",
        "output": [] if choice is None else _list_items(head, choice, order.scores or 0),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": order.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": status,
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None if usage is None else _describe_usage(usage),
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    } | dict(order.repeated)


def _list_items(head: AnswerHead, choice: FinishedAnswer, count: int) -> list[dict[str, Any]]:
    if choice.calls:
        return [describe_call_item(call, is_whole=True) for call in choice.calls]
    part: dict[str, Any] = {
        "annotations": [],
        "text": choice.text,
        "type": "output_text",
        "logprobs": None if choice.scores is None else list_scores(choice.scores, count),
    }
    message = {
        "id": name_item(head),
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }
    return [message]


def list_scores(scores: Sequence[Score], count: int) -> list[dict[str, Any]]:
    """Returns the `logprobs` of an output text, with the members of each in this API's order."""

    def put(one: dict[str, Any]) -> dict[str, Any]:
        return {"token": one["token"], "bytes": one["bytes"], "logprob": one["logprob"]}

    described = [one.describe(count) for one in scores]
    return [put(one) | {"top_logprobs": [put(other) for other in one["top_logprobs"]]} for one in described]


def name_call_item(call: Call) -> str:
    return call.id.replace("chatcmpl-tool-", "fc_", 1)


def describe_call_item(call: Call, *, is_whole: bool) -> dict[str, Any]:
    return {
        "arguments": call.arguments,
        "call_id": call.id,
        "name": call.name,
        "type": "function_call",
        "id": name_call_item(call),
        "async": None,
        "caller": None,
        "namespace": None,
        "status": "completed" if is_whole else "in_progress",
    }


def _describe_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.created_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.total_tokens,
    }

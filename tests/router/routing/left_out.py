"""Requests that vLLM caches alike, and others that it does not; those of the Messages API first.

Read in vLLM 0.26, `entrypoints/anthropic/serving.py`.
"""

from typing import Any

LINE = "x-anthropic-billing-header: cc_version=2.1; cch={};"
GUIDE = {"type": "text", "text": "You are an agent."}
MARK = {"cache_control": {"type": "ephemeral"}}


def billing_line(number: int) -> dict[str, Any]:
    return {"type": "text", "text": LINE.format(number)}


def user_parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def assistant_parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*parts]}


ASK = user_parts({"type": "text", "text": "Go."})
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": ""}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"id": 1}}
DONE = {"type": "text", "text": "Done."}
REFERENCE = {"type": "tool_reference", "tool_name": "a"}
TOOL = {"name": "read", "input_schema": {"type": "object"}}
ALIKE = {
    "a line of a coding agent that is another in each request": (
        {"system": [billing_line(1), GUIDE], "messages": [ASK]},
        {"system": [billing_line(2), GUIDE], "messages": [ASK]},
    ),
    "that line is not there at all": (
        {"system": [billing_line(1), GUIDE], "messages": [ASK]},
        {"system": [GUIDE], "messages": [ASK]},
    ),
    "the line in a message of the system": (
        {"messages": [{"role": "system", "content": [billing_line(1), GUIDE]}, ASK]},
        {"messages": [{"role": "system", "content": [billing_line(2), GUIDE]}, ASK]},
    ),
    "a marker that moves from tool to tool": (
        {"tools": [TOOL | MARK, TOOL], "messages": [ASK]},
        {"tools": [TOOL, TOOL | MARK], "messages": [ASK]},
    ),
    "a marker on a result without text": (
        {"messages": [user_parts(RESULT | MARK)]},
        {"messages": [user_parts(RESULT)]},
    ),
    "a marker within a result": (
        {"messages": [user_parts(RESULT | {"content": [{"type": "search_result", **MARK}]})]},
        {"messages": [user_parts(RESULT | {"content": [{"type": "search_result"}]})]},
    ),
    "the number of a call, which is drawn anew where a history is replayed": (
        {"messages": [user_parts(USE), user_parts(RESULT)]},
        {"messages": [user_parts(USE | {"id": "t9"}), user_parts(RESULT | {"tool_use_id": "t9"})]},
    ),
    "the line as a system message's whole text": (
        {"messages": [{"role": "system", "content": LINE.format(1)}, ASK]},
        {"messages": [ASK]},
    ),
    "a system text in one part or in two: they are joined without a newline": (
        {"system": [GUIDE, {"type": "text", "text": " Be brief."}], "messages": [ASK]},
        {"system": "You are an agent. Be brief.", "messages": [ASK]},
    ),
    "an empty part": (
        {"messages": [user_parts({"type": "text", "text": ""}, *ASK["content"])]},
        {"messages": [ASK]},
    ),
    "thoughts that are not shown": (
        {
            "messages": [
                assistant_parts({"type": "thinking", "thinking": "", "signature": "a"}, DONE)
            ]
        },
        {"messages": [assistant_parts(DONE)]},
    ),
    "members of a tool that vLLM does not know, and their order": (
        {"tools": [{"type": "custom", **TOOL, "input_examples": []}], "messages": [ASK]},
        {"tools": [dict(reversed(TOOL.items()))], "messages": [ASK]},
    ),
    "members of a call that vLLM does not know, and no input": (
        {"messages": [assistant_parts(USE | {"caller": {"type": "direct"}, "input": {}})]},
        {"messages": [assistant_parts(USE | {"input": None})]},
    ),
    "whether an empty result is an error": (
        {"messages": [user_parts(RESULT | {"is_error": True})]},
        {"messages": [user_parts(RESULT)]},
    ),
    "a result as text or as a part": (
        {"messages": [user_parts(RESULT | {"content": "42"})]},
        {"messages": [user_parts(RESULT | {"content": [{"type": "text", "text": "42"}]})]},
    ),
    "a part of a result that is neither text nor image": (
        {
            "messages": [
                user_parts(RESULT | {"content": [{"type": "document", "title": "a"}, DONE]})
            ]
        },
        {"messages": [user_parts(RESULT | {"content": [DONE]})]},
    ),
    "thoughts that are sealed": (
        {"messages": [user_parts({"type": "redacted_thinking", "data": "AAAA"}, *ASK["content"])]},
        {"messages": [ASK]},
    ),
}
APART = {
    "what stands behind the line": (
        {"system": [billing_line(1), GUIDE], "messages": [ASK]},
        {"system": [billing_line(1), GUIDE | {"text": "You are a poet."}], "messages": [ASK]},
    ),
    "a tool's other name": (
        {"tools": [TOOL], "messages": [ASK]},
        {"tools": [TOOL | {"name": "write"}], "messages": [ASK]},
    ),
    "a user's own words that begin so": (
        {"messages": [user_parts(billing_line(1), *ASK["content"])]},
        {"messages": [user_parts(billing_line(2), *ASK["content"])]},
    ),
    "a system text that is no list: vLLM keeps it": (
        {"system": LINE.format(1), "messages": [ASK]},
        {"system": LINE.format(2), "messages": [ASK]},
    ),
    "what a tool is called with": (
        {"messages": [user_parts(USE)]},
        {"messages": [user_parts(USE | {"input": {"id": 2}})]},
    ),
    "a tool that a result refers to": (
        {"messages": [user_parts(RESULT | {"content": [REFERENCE]})]},
        {"messages": [user_parts(RESULT | {"content": [REFERENCE | {"tool_name": "b"}]})]},
    ),
    "an item that is nothing but its number": (
        {"messages": [user_parts({"type": "item_reference", "id": "a"})]},
        {"messages": [user_parts({"type": "item_reference", "id": "b"})]},
    ),
}


def _chat(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Go."}, message], **more}


def _calls(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "read", "arguments": arguments}
    call = {"type": "function", "function": function, **more}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _item(**more: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "Go."}, more]}


_ANSWER = {"role": "assistant", "content": "Done."}
_FUNCTION = {"name": "read", "parameters": {"type": "object"}}
_THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
_CALL = {"type": "function_call", "name": "read", "arguments": "{}"}
_LISTED = {"type": "function", "name": "read", "parameters": {"type": "object"}}
# By path: of chats and the Responses API (`entrypoints/chat_utils.py`, `entrypoints/openai/responses/`).
ALIKE_ELSEWHERE = {
    "arguments with white space": (
        "chat/completions",
        _chat(_calls('{"a": [1]}', id="c1", index=0)),
        _chat(_calls('{"a":[1]}', id="c2")),
    ),
    "no arguments": ("chat/completions", _chat(_calls("")), _chat(_calls("null"))),
    "no calls and no text": (
        "chat/completions",
        _chat(_ANSWER | {"tool_calls": [], "refusal": None}),
        _chat(_ANSWER),
    ),
    "thoughts by their old name": (
        "chat/completions",
        _chat(_ANSWER | {"reasoning": "Hm.", "reasoning_content": "Hm."}),
        _chat(_ANSWER | {"reasoning": "Hm."}),
    ),
    "the order of a tool's members": (
        "chat/completions",
        _chat(_ANSWER, tools=[{"type": "function", "function": {"description": None} | _FUNCTION}]),
        _chat(_ANSWER, tools=[{"function": dict(reversed(_FUNCTION.items())), "type": "function"}]),
    ),
    "arguments of a call that is an item": (
        "responses",
        _item(**_CALL, id="f1", call_id="c1", status="completed"),
        _item(**_CALL | {"arguments": "{ }"}),
    ),
    "a summary beside the thoughts": (
        "responses",
        _item(**_THOUGHT, summary=[{"type": "summary_text", "text": "Hm?"}]),
        _item(**_THOUGHT, id="r1", summary=[]),
    ),
    "tools that may not be called": (
        "responses",
        _item(**_CALL) | {"tools": [_LISTED], "tool_choice": "none"},
        _item(**_CALL),
    ),
}
APART_ELSEWHERE = {
    "arguments": ("chat/completions", _chat(_calls('{"a":1}')), _chat(_calls('{"a":2}'))),
    "arguments that are no JSON": ("chat/completions", _chat(_calls("a")), _chat(_calls("b"))),
    "the order of arguments": (
        "chat/completions",
        _chat(_calls('{"a":1,"b":2}')),
        _chat(_calls('{"b":2,"a":1}')),
    ),
    "a tool's own members: a template writes them, a marker too": (
        "chat/completions",
        _chat(_ANSWER, tools=[{"type": "function", "function": _FUNCTION}]),
        _chat(_ANSWER, tools=[{"type": "function", "function": _FUNCTION, **MARK}]),
    ),
    "tools that may be called": (
        "responses",
        _item(**_CALL) | {"tools": [_LISTED], "tool_choice": "auto"},
        _item(**_CALL),
    ),
}


def _high(path: str, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    said = {"input": "Go."} if path == "responses" else {"messages": [ASK]}
    return path, said | more, said


def _arguments(**more: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": more}


# What the templates of some models write into the head.
APART_BY_TEMPLATE = {
    "how hard to think": _high("chat/completions", reasoning_effort="high"),
    "the same, of responses": _high("responses", reasoning={"effort": "high", "summary": "auto"}),
    "the same, of messages": _high("messages", output_config={"effort": "high"}),
    "a date": _high("chat/completions", **_arguments(date_string="1 May")),
    "a date, of messages": _high("messages", **_arguments(date_string="1 May")),
}
ALIKE_BY_TEMPLATE = {
    "whether to think": _high("chat/completions", **_arguments(enable_thinking=False)),
    "no arguments": _high("messages", **_arguments()),
    "a summary": _high("responses", reasoning={"summary": "auto", "effort": None}),
    "a format": _high("messages", output_config={"format": {"type": "json_schema"}}),
}

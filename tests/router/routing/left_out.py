"""Requests of the Messages API that vLLM caches alike, and others that it does not.

Read in vLLM 0.26 to 0.32, `entrypoints/anthropic/serving.py`.
"""

from typing import Any

LINE = "x-anthropic-billing-header: cc_version=2.1; cch={};"
GUIDE = {"type": "text", "text": "You are an agent."}
MARK = {"cache_control": {"type": "ephemeral"}}


def billing_line(number: int) -> dict[str, Any]:
    return {"type": "text", "text": LINE.format(number)}


def user_parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


ASK = user_parts({"type": "text", "text": "Go."})
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": ""}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"id": 1}}
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
    "an item that is nothing but its number": (
        {"messages": [user_parts({"type": "item_reference", "id": "a"})]},
        {"messages": [user_parts({"type": "item_reference", "id": "b"})]},
    ),
}

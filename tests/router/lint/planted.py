"""Prompts of three APIs with one fault planted in each, and clean ones."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final

import orjson

from extproc.router.lint.heads import PromptHead, read_prompt_head
from extproc.router.routing.prompt.parse import parse

PATHS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
START: Final = "You are a careful helper.\n"
Say = tuple[str, str]


def write_lines(name: str, lines: int = 60) -> str:
    """Lines of twelve words each, the same for the same name."""
    rng = Random(name)
    pick = [
        "river",
        "stone",
        "copper",
        "lantern",
        "meadow",
        "signal",
        "harbour",
        "willow",
        "engine",
        "paper",
    ]
    return "\n".join(
        " ".join(f"{rng.choice(pick)}{rng.choice('aeiou')}" for _ in range(12))
        for _ in range(lines)
    )


RULES: Final = write_lines("rules")


def write_body(
    path: str, system: str, said: Sequence[Say], tools: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """A request of this API; `tools` have `name`, `description` and `parameters`."""
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in said]
    body: dict[str, Any] = {"model": "m"}
    if path.endswith("responses"):
        body |= {"instructions": system, "input": messages}
        written = [{"type": "function", **tool} for tool in tools]
    elif path.endswith("messages"):
        body |= {"system": system, "messages": messages}
        written = [
            {"input_schema" if k == "parameters" else k: v for k, v in t.items()} for t in tools
        ]
    else:
        body["messages"] = [{"role": "system", "content": system}, *messages]
        written = [{"type": "function", "function": tool} for tool in tools]
    return orjson.dumps(body | ({"tools": written} if tools else {}))


def planted_head(path: str, body: bytes) -> PromptHead:
    return read_prompt_head(parse(path, "application/json", body))


def _tools(order: int) -> list[dict[str, Any]]:
    tools = [
        {
            "name": f"tool_{k}",
            "description": write_lines(f"tool {k}", 8),
            "parameters": {"type": "object"},
        }
        for k in range(6)
    ]
    return tools[order % 6 :] + tools[: order % 6]


def _keys(order: int) -> list[dict[str, Any]]:
    names = ["city", "unit", "days"]
    names = names[order % 3 :] + names[: order % 3]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return [{"name": "weather", "description": "Looks.", "parameters": schema}]


_RNG = Random(3)
_IDS = [_RNG.randbytes(16) for _ in range(8)]
IN_SYSTEM: Final[Mapping[str, Callable[[int], str]]] = MappingProxyType(
    {
        "time": lambda n: f"{7 + n}:{13 + 5 * n}:09",
        "date": lambda n: f"Tuesday, {n + 3} March 2026",
        "uuid": lambda n: str(uuid.UUID(bytes=_IDS[n])),
        "hex": lambda n: f"0x{_IDS[n].hex()}",
        "id": lambda n: f"run{_IDS[n].hex().translate(str.maketrans('abcdef', 'ghkXYZ'))}",
        "number": lambda n: str(1_204 + 37 * n),
        "white_space": lambda n: " " * n,
        "inserted": lambda n: f"Remember:\n{write_lines('memory', 3)}" if n % 2 else "",
        "other": lambda n: ("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")[n],
    }
)
IN_TOOLS: Final = MappingProxyType({"order": _tools, "key_order": _keys})
KINDS: Final = (*IN_SYSTEM, *IN_TOOLS, "medium")
_LEAD: Final = "Here is your task. "


def plant_fault(kind: str, path: str, n: int) -> bytes:
    """The `n`th prompt with this fault; the rest is the same, but for the question at its end."""
    said = [("user", write_lines(f"question {n}", 2))]
    if kind in IN_TOOLS:
        return write_body(path, START + RULES, said, IN_TOOLS[kind](n))
    if kind == "medium":
        return _picture(path, n)
    fault = IN_SYSTEM[kind](n)
    lead = START if kind != "inserted" else START + "Be kind.\n"
    gap = "" if kind in {"inserted", "white_space"} and not fault else "\n"
    return write_body(path, f"{lead}{fault}{gap}{RULES}", said)


def place_of(kind: str, path: str) -> tuple[str, int, int]:
    """Where it is to be found: the place, the message, and its byte; the tools' byte is that of our writing."""
    if kind == "medium":
        return "message", 1, len(_LEAD) + 1
    if kind == "order":
        return "tools", 0, 0
    if kind == "key_order":
        turn = planted_head(path, plant_fault(kind, path, 0)).turns[0].text
        return "tools", 0, turn.index(b'{"city"')
    lead = {"inserted": START + "Be kind.\n", "white_space": START.rstrip()}.get(kind, START)
    return "system", 0, len(lead)


def _picture(path: str, n: int) -> bytes:
    url = f"https://example.org/{n}.png"
    picture: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    text = "text"
    if path.endswith("responses"):
        picture, text = {"type": "input_image", "image_url": url}, "input_text"
    elif path.endswith("messages"):
        picture = {"type": "image", "source": {"type": "url", "url": url}}
    parts = [{"type": text, "text": _LEAD}, picture, {"type": text, "text": RULES}]
    body = orjson.loads(write_body(path, "", []))
    body["input" if path.endswith("responses") else "messages"] = [
        {"role": "user", "content": parts}
    ]
    body.pop("instructions", body.pop("system", None))
    return orjson.dumps(body)

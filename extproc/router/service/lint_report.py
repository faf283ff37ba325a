"""`extproc lint`: where prompts part, of the running service or of recorded requests, as text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.request import Request

import msgspec

from extproc.documents import printable
from extproc.errors import ExtprocError, PromptError
from extproc.router.lint.heads import PromptHead, read_prompt_head
from extproc.router.lint.partings import PoolPartings, find_partings
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT
from extproc.router.service.asking import ask_admin

# More say nothing new, and take a second for each thousand.
_MOST_LINES: Final = 2_000
_PATHS: Final = MappingProxyType({"input": "/v1/responses", "prompt": "/v1/completions"})
# Around a line; a file from Windows may begin with a byte order mark.
_SPACE: Final = b"\xef\xbb\xbf \t\r\n"
# Of the text before and behind the place.
_BEFORE, _BEHIND = 40, 60
_MARKS: Final = str.maketrans({TURN_START: "[", TURN_TEXT: "]"})


def fetch_partings(url: str) -> list[PoolPartings]:
    """Gets what was found of each pool with `lint`. Raises `ExtprocError` where nothing answers."""
    try:
        return msgspec.json.decode(ask_admin(Request(f"{url}/lint")), type=list[PoolPartings])  # noqa: S310  # the operator's own
    except msgspec.DecodeError:
        raise ExtprocError(f"{url}/lint: not what a service of this version says") from None


def lint_file(path: Path) -> tuple[PoolPartings, str]:
    """Reads one request's body a line; returns what was found, and a report that shows the text, too.

    A line may be one of OpenAI's batches as well. Raises `ExtprocError` with the line that is no request.
    """
    try:
        with path.open("rb") as file:
            read = dict(islice(_read_lines(path, file), _MOST_LINES))
    except OSError as fault:
        raise ExtprocError(f"{path}: {fault.strerror}") from None
    if not read:
        raise ExtprocError(f"{path}: no request in it")
    numbers, heads = [*read], [*read.values()]
    found = find_partings(heads, least_prompts=2)
    told = PoolPartings(path.name, len(heads), [parting for parting, _ in found])
    lines = list[str]()
    for line, (_, split) in zip(told.lines, found, strict=False):
        lines.append(line)
        for place in (split.left, split.right):
            text, _ = heads[place].written()
            before = text[max(0, split.at - _BEFORE) : split.at].decode(errors="replace")
            behind = text[split.at : split.at + _BEHIND].decode(errors="replace")
            excerpt = f"{before} >>> {behind}".translate(_MARKS)
            lines.append(f"    line {numbers[place]}: {printable(excerpt)}")
    return told, "\n".join(lines or told.lines)


def write_partings(pools: Sequence[PoolPartings]) -> str:
    return "\n".join(f"pool {each.pool}: {line}" for each in pools for line in each.lines)


def write_json(pools: Sequence[PoolPartings]) -> str:
    return json.dumps(msgspec.to_builtins(pools), indent=2)


def _read_lines(path: Path, file: Iterator[bytes]) -> Iterator[tuple[int, PromptHead]]:
    for number, line in enumerate(file, 1):
        if not line.strip(_SPACE):
            continue
        try:
            row = msgspec.json.decode(line.strip(_SPACE))
            body = row.get("body", row)
            api = str(row.get("url") or _api_of(body))
            prompt = parse(api, "application/json", msgspec.json.encode(body))
            yield number, read_prompt_head(prompt)
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError, PromptError):
            raise ExtprocError(f"{path}:{number}: this line is no request's body in JSON") from None


def _api_of(body: Mapping[str, Any]) -> str:
    """The path that takes such a body; raises `ValueError` if no API does."""
    if "messages" not in body:
        return _PATHS[min(body.keys() & _PATHS.keys())]
    tools = body.get("tools") or [{}]
    is_anthropic = "system" in body or "input_schema" in tools[0]
    return "/v1/messages" if is_anthropic else "/v1/chat/completions"

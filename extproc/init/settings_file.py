"""`extproc init`: a configuration with every setting, each with its documentation, ready to be edited."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.tree import Settings

_WIDTH: Final = 110
_HEAD: Final = """\
# The configuration of `extproc serve`. What may be left out is commented out, with its default.
# `extproc check FILE` lists every fault with its line. A running service follows changes of this file.
"""
# What is not commented out: what has to be given, and of the kinds of endpoints the one to begin
# with.
_GIVEN: Final[dict[str, object]] = {
    "server.listen": "0.0.0.0:9002",
    "pools.name": "my-model",
    "pools.endpoints.static": ["127.0.0.1:8001", "127.0.0.1:8002"],
}


def write_configuration() -> str:
    """Returns YAML that `extproc check` takes as it is."""
    return _HEAD + "\n".join(_write(Settings, "", 0, None)) + "\n"


def _write(section: type[BaseModel], place: str, indent: int, off: int | None) -> Iterator[str]:
    """Yields the lines of a section; `off` is the indent from which on it is commented out, if it is."""
    for name, field in section.model_fields.items():
        at, below = f"{place}.{name}".lstrip("."), indent + 2
        is_given = any(f"{given}.".startswith(f"{at}.") for given in _GIVEN)
        here = off if off is not None or is_given else indent
        if not place:
            yield ""
        text = " ".join((field.description or "").split())
        for line in textwrap.wrap(text, _WIDTH - indent - 4):
            yield _line(f"# {line}", indent, off)
        sections = _sections(field)
        yield _line(f"{name}:" if sections else f"{name}: {_value(at, field)}", indent, here)
        if _is_list(field) and sections:
            yield _line("-", below, here)
            below += 2
        for number, each in enumerate(sections):
            if number:
                yield _line("# or:", below, here)
            yield from _write(each, at, below, here)


def _line(text: str, indent: int, off: int | None) -> str:
    """A line of a part that is commented out keeps its indent behind the `#`."""
    if off is None:
        return f"{' ' * indent}{text}"
    return f"{' ' * off}# {' ' * (indent - off)}{text}"


def _value(place: str, field: FieldInfo) -> str:
    if place in _GIVEN:
        return json.dumps(_GIVEN[place])
    if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
        return str(get_args(field.annotation)[0])
    if field.is_required() or field.default is PydanticUndefined:
        return "..."
    return json.dumps(to_jsonable_python(field.default))


def _sections(field: FieldInfo) -> list[type[BaseModel]]:
    if STRATEGIES in field.metadata:
        return [kind.settings for kind in STRATEGIES.kinds.values()]
    return [
        kind
        for kind in _kinds(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is list for kind in (field.annotation, *get_args(field.annotation)))


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)

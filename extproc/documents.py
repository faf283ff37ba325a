"""The one reader of YAML: settings, lists of endpoints, specs of benchmarks, profiles.

Whatever the bytes: a tree, or a `SettingsError` that says of every fault in which file and line it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from extproc.errors import SettingsError

Place = tuple[str | int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document. `where` is its file, or what else an operator knows it by."""

    where: str
    tree: Any
    root: yaml.Node | None

    def validate(self, validate: Callable[[Any], T], inside: Place = ()) -> T:
        """Returns what `validate`, pydantic's, makes of the tree; `inside` is where its part of it stands."""
        try:
            return validate(self.tree)
        except ValidationError as error:
            raise self.refuse(error, inside) from None

    def refuse(self, error: ValidationError, inside: Place = ()) -> SettingsError:
        faults = [f"{self.at(inside + fault['loc'])}: {describe(fault)}" for fault in error.errors()]
        return SettingsError("\n".join(faults))

    def at(self, place: Place) -> str:
        """`file:line` of the deepest node on the way to `place`; steps that no node has are skipped."""
        line, node = 1, self.root
        for step in place:
            below = _below(node, step)
            if below is not None:
                line, node = below
        return f"{self.where}:{line}"


def read_file(path: Path) -> bytes:
    """Reads a file; raises `SettingsError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None


def read_document(path: Path) -> Document:
    """Reads and parses a file; raises `SettingsError` if it cannot be read or is no YAML."""
    return parse_document(read_file(path), str(path))


def parse_document(content: bytes | str, where: str) -> Document:
    """Parses one YAML document, UTF-8. Raises `SettingsError`; nothing else, whatever the bytes are."""
    try:
        text = content if isinstance(content, str) else content.decode()
        root, tree = _load(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{where}:{line}: not UTF-8") from None
    except RecursionError:
        raise SettingsError(f"{where}:1: nested too deeply") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{where}:{line}: not YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        raise SettingsError(f"{where}:{_line(error)}: not YAML: {_reason(error)}") from None
    return Document(where, tree, root)


def describe(fault: ErrorDetails) -> str:
    """A fault of pydantic's in our words: where in the tree, and what."""
    place = ".".join(str(step) for step in fault["loc"]) or "top level"
    match fault["type"]:
        case "extra_forbidden":
            return f"{place}: there is no such setting"
        case "string_pattern_mismatch":
            return f"{place}: {fault['input']!r} does not match {fault['ctx']['pattern']}"
    return f"{place}: {fault['msg'].removeprefix('Value error, ')}"


class _Loader(yaml.SafeLoader):
    """PyYAML's, but what is no date or number although it looks like one (`2026-13-45`) has a line, too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _load(text: str) -> tuple[yaml.Node | None, Any]:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return 1 if mark is None else mark.line + 1


def _reason(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(text for text in (error.context, error.problem) if text)


def _below(node: yaml.Node | None, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        members = ((key.start_mark.line + 1, value) for key, value in node.value if _is_named(key, step))
        return next(members, None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None


def _is_named(key: yaml.Node, step: str | int) -> bool:
    """Some files may spell a name either way: `req-rate`, `req_rate`."""
    return str(key.value).replace("_", "-") == str(step).replace("_", "-")

"""The one reader of YAML: settings, lists of endpoints, specs of benchmarks, profiles.

Whatever the bytes: a tree, or a `SettingsError` that says of every fault in which file and line it
is.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from extproc.errors import SettingsError

Place = tuple[str | int, ...]
PlacedText = tuple[Place, str]
"""Where in a tree a fault is, and its text with this place."""
Fault = tuple[int, str]
"""The line that a fault is in, and its text with file and line."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document. `where` is its file, or another name for operators."""

    where: str
    tree: Any
    root: yaml.Node | None
    repeats: tuple[Fault, ...] = ()
    """Keys that a mapping has twice; the last one counts in `tree`."""

    def validate(
        self, validate: Callable[[Any], T], inside: Place = (), known: Iterable[str] = ()
    ) -> T:
        """Returns what `validate`, pydantic's, makes of the tree; `inside` is where its part of it stands.

        `known` are the places that there are in this part.
        """
        try:
            return validate(self.tree)
        except ValidationError as error:
            raise self.refuse(error, inside, known) from None

    def refuse(
        self, error: ValidationError, inside: Place = (), known: Iterable[str] = ()
    ) -> SettingsError:
        above = "".join(f"{step}." for step in inside)
        places = [above + place for place in known]
        named = ((self.name_place(inside + fault["loc"]), fault) for fault in list_errors(error))
        return refuse_faults(
            self.fault(place, describe({**fault, "loc": place}, places)) for place, fault in named
        )

    def name_place(self, place: Place) -> Place:
        """Leaves out pydantic's names of a union's members: steps that no node has.

        The last step may be a setting that is missing, so of those only such a name is left out.
        """
        steps: list[str | int] = []
        node = self.root
        for step in place[:-1]:
            below = _below(node, step)
            if below is not None:
                node = below[1]
            if below is not None or not isinstance(node, yaml.MappingNode):
                steps.append(step)
        return (*steps, *(step for step in place[-1:] if not _UNION_MEMBER.fullmatch(str(step))))

    def fault(self, place: Place, text: str) -> Fault:
        line = self._line(place)
        return line, f"{self.where}:{line}: {text}"

    def at(self, place: Place) -> str:
        """`file:line` of the deepest node on the way to `place`; steps that no node has are skipped."""
        return f"{self.where}:{self._line(place)}"

    def _line(self, place: Place) -> int:
        line, node = 1, self.root
        for step in place:
            below = _below(node, step)
            if below is not None:
                line, node = below
        return line


def refuse_faults(faults: Iterable[Fault]) -> SettingsError:
    """The error that lists them in the order of lines."""
    return SettingsError("\n".join(text for _, text in sorted(faults, key=itemgetter(0))))


def read_file(path: Path) -> bytes:
    """Reads a file; raises `SettingsError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None


def read_document(path: Path) -> Document:
    """Reads and parses a file; raises `SettingsError` if it cannot be read or is no YAML."""
    return parse_document(read_file(path), str(path))


def parse_document(content: bytes | str, where: str, *, refuses_repeats: bool = True) -> Document:
    """Parses one YAML document, UTF-8. Raises `SettingsError`; nothing else, whatever the bytes are.

    A key that is given twice is a fault; who reports it with others takes the document with
    `repeats`.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        document = _load(text, where)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{where}:{line}: not UTF-8") from None
    except RecursionError:
        raise SettingsError(f"{where}:1: nested too deeply") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{where}:{line}: not YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(text for text in (error.context, error.problem) if text)
        raise SettingsError(f"{where}:{mark.line + 1 if mark else 1}: not YAML: {reason}") from None
    if refuses_repeats and document.repeats:
        raise refuse_faults(document.repeats)
    return document


# What pydantic expects, in an operator's words, by the first part of its name for the fault.
_EXPECTED: Final = {
    "bool": "true or false",
    "dict": "a mapping (name: value)",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "a mapping (name: value)",
    "string": "a text",
    "tuple": "a list",
}


# How pydantic names what a value of several kinds may be, behind its place.
_UNION_MEMBER: Final = re.compile(
    r"[A-Z]\w*Settings|bool|int|float|str|constrained-\w+|literal\[.*\]"
)


def list_errors(error: ValidationError) -> list[ErrorDetails]:
    """Lists pydantic's faults; of what may be a section or one of some words those of the one that was meant.

    Where it may be `false`, the section's say more.
    """
    faults = [fault for fault in error.errors() if fault["loc"][-1:] != ("literal[False]",)]
    words = {fault["loc"][:-1]: fault["input"] for fault in faults if _is_of_words(fault)}
    return [
        fault
        for fault in faults
        if fault["loc"][:-1] not in words
        or _is_of_words(fault) != isinstance(words[fault["loc"][:-1]], Mapping)
    ]


def _is_of_words(fault: ErrorDetails) -> bool:
    return any(str(step).startswith("literal[") for step in fault["loc"][-1:])


# What a text should look like, in an operator's words, by the pattern that says it to programs.
_FORMS: Final = {
    r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$": "is no name: up to 63 letters, digits, "
    "dots, _ and -; a letter or a digit first and last",
    r"^(unix:/\S+|\[?[^\s/\]]*\]?:\d{1,5})$": "is no address: HOST:PORT, :PORT or unix:/PATH",
    r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$": "is no object's name: small letters, digits, dots, -",
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": "is no name to Kubernetes: up to 63 small letters, "
    "digits and -",
    r"^[a-z0-9][a-z0-9_-]*$": "is no header's name: small letters, digits, - and _",
    r"^[A-Za-z0-9._-]+:\d{1,5}$": "is not HOST:PORT",
    r"^/[^\s#]*$": "is no path: it begins with /, without spaces",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "is no variable's name",
    r"^(nats|tls)://[^\s@/]+$": "is no address: nats://HOST:PORT or tls://HOST:PORT",
}


# What pydantic says of limits: "Input should be greater than 0", "List should have at least 1
# item".
_MUST: Final = re.compile(r"^(?:Input|String|List|Dictionary|Tuple) should (be|have)")


def describe(fault: ErrorDetails, known: Iterable[str] = ()) -> str:
    """A fault of pydantic's in our words: where in the tree, and what. `known` are places that there are."""
    place, given = ".".join(str(step) for step in fault["loc"]) or "top level", fault.get("ctx", {})
    expected = _EXPECTED.get(fault["type"].partition("_")[0])
    why = _MUST.sub(r"must \1", fault["msg"].removeprefix("Value error, ")).replace(
        " after validation", ""
    )
    match fault["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            *parents, name = (step for step in fault["loc"] if isinstance(step, str))
            known = [*known]
            inside = "".join(f"{parent}." for parent in parents)
            beside = {
                one.removeprefix(inside).partition(".")[0]
                for one in known
                if one.startswith(inside)
            }
            why = f"there is no such setting{suggest_name(name, beside) or _find_name(name, known)}"
        case "missing":
            why = "is missing"
        case "string_pattern_mismatch":
            form = _FORMS.get(given["pattern"], f"does not match {given['pattern']}")
            why = f"{fault['input']!r} {form}"
        case "union_tag_invalid":
            choices = given["expected_tags"].replace("'", "")
            nearest = suggest_name(given["tag"], choices.split(", "))
            why = f"there is no {given['tag']}{nearest} (choose from {choices})"
        case "union_tag_not_found":
            why = "its name is missing"
        case "literal_error":
            choices = given["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            nearest = suggest_name(str(fault["input"]), choices)
            why = f"{fault['input']!r} is none of {given['expected']}{nearest}"
        case kind if expected and kind.endswith("_type"):
            why = f"expected {expected}"
    return f"{place}: {why}"


def describe_options(
    error: ValidationError, place: Place, part: BaseModel, model: type[BaseModel]
) -> Iterator[PlacedText]:
    """The faults of the options that a part at `place` was given beside its own fields, by `model`'s error.

    They are told in the spelling that they were given in, with those that there are.
    """
    given = {name.replace("-", "_"): name for name in part.model_extra or {}}
    fields = {**model.model_fields, **type(part).model_fields}
    options = [field.alias or name for name, field in fields.items() if name != "name"]
    above = "".join(f"{step}." for step in place if isinstance(step, str))
    for fault in error.errors():
        first, *rest = fault["loc"]
        loc = (*place, given.get(str(first).replace("-", "_"), first), *rest)
        text = describe({**fault, "loc": loc}, [above + option for option in options])
        is_strange = fault["type"] == "extra_forbidden" and not rest and options
        yield loc, f"{text} (choose from {', '.join(options)})" if is_strange else text


def _find_name(name: str, known: Iterable[str]) -> str:
    """Says where else a setting of this name is, if somewhere."""
    for one in sorted(known, key=lambda each: each.count(".")):
        above, _, _ = f".{one}.".partition(f".{name}.")
        if len(above) <= len(one):
            place = f"{above}.{name}".lstrip(".")
            return f"; there is {place}" if "." in place else f"; {place} is at the top level"
    return ""


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Asks for the nearest name, where one is near."""
    nearest = get_close_matches(name, known, n=1, cutoff=0.65)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def list_places(section: type[BaseModel]) -> Iterator[str]:
    """Yields the place of every setting of a section, as a file has it: `traffic-shape.dataset.path`."""
    for name, field in section.model_fields.items():
        below = [place for each in list_sections(field.annotation) for place in list_places(each)]
        yield from (f"{field.alias or name}.{place}" for place in below)
        if not below:
            yield field.alias or name


def list_sections(kind: object) -> Iterator[type[BaseModel]]:
    """Yields the sections in an annotation such as `list[PoolSettings] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from list_sections(part)


class _Loader(yaml.SafeLoader):
    """PyYAML's, but what is no date or number although it looks like one (`2026-13-45`) has a line, too.

    Keys that are given twice are noted.
    """

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where = where
        self.repeats: list[Fault] = []
        self._place: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # `index` is a key's node, or a number; of a key itself and of the root it is nothing.
        self._place.append(str(getattr(index, "value", "" if index is None else index)))
        node = super().compose_node(parent, index)
        self._place.pop()
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, object], int] = {}
        for key, _ in node.value:
            line, name = key.start_mark.line + 1, (key.tag, str(key.value))
            if name in lines:
                place = ".".join([*filter(None, self._place), str(key.value)])
                text = f"{self._where}:{line}: {place} is given twice (line {lines[name]})"
                self.repeats.append((line, text))
            lines.setdefault(name, line)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, str(error), node.start_mark
            ) from None


def _load(text: str, where: str) -> Document:
    loader = _Loader(text, where)
    try:
        root = loader.get_single_node()
        tree = None if root is None else loader.construct_document(root)
        return Document(where, tree, root, tuple(loader.repeats))
    finally:
        loader.dispose()


def _below(node: yaml.Node | None, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        members = (
            (key.start_mark.line + 1, value)
            for key, value in reversed(node.value)
            if _is_named(key, step)
        )
        return next(members, None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None


def _is_named(key: yaml.Node, step: str | int) -> bool:
    """Some files may spell a name either way: `req-rate`, `req_rate`."""
    return str(key.value).replace("_", "-") == str(step).replace("_", "-")


def printable(text: str) -> str:
    r"""Others' text with what moves a cursor, ends a line or is not seen as Python writes it: `\x1b`."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)

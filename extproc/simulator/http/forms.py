"""The form that an answer must have: JSON of a schema, a choice, what a grammar allows, or calls of tools.

A form writes a draft: pieces of text, and what each piece is to a client.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, Protocol

from xxhash import xxh3_64_hexdigest

from extproc.simulator.http.grammars import read_ebnf, read_regex, read_schema, write_text
from extproc.simulator.http.refusals import Refusal

FREE_OBJECT: Mapping[str, Any] = {"type": "object"}


class Role(Enum):
    """What a piece of a draft is: text, or of a call its head, its arguments, or its end; or the answer's."""

    TEXT = 0
    HEAD = 1
    ARGUMENTS = 2
    END = 3
    ENDING = 4


@dataclass(frozen=True, slots=True)
class DraftPiece:
    """`call` is the number of the call that the piece belongs to; `name` that of its function."""

    text: str
    role: Role = Role.TEXT
    call: int = 0
    name: str = ""


class Form(Protocol):
    @property
    def ending(self) -> str:
        """The `finish_reason` of an answer that is complete."""
        ...

    def draft(self, random: Random) -> Sequence[DraftPiece]:
        """Returns a whole answer; raises `Refusal` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class TextForm:
    """Text that `write` draws."""

    write: Callable[[Random], str]
    ending: str = "stop"

    def draft(self, random: Random) -> Sequence[DraftPiece]:
        return [DraftPiece(self.write(random))]


@dataclass(frozen=True, slots=True)
class Function:
    """A tool that may be called, and the schema of its arguments."""

    name: str
    parameters: object = field(default_factory=lambda: FREE_OBJECT)


@dataclass(frozen=True, slots=True)
class CallForm:
    """`count` calls of any of the functions. The raw text is that of Hermes models.

    vLLM ends a call of a named function with `stop`, one that was merely required with `tool_calls`.
    """

    functions: Sequence[Function]
    count: int = 1
    ending: str = "tool_calls"

    def draft(self, random: Random) -> Sequence[DraftPiece]:
        pieces: list[DraftPiece] = []
        for number in range(self.count):
            function = random.choice(self.functions)
            arguments = write_text(read_schema(function.parameters), random)
            head = f'<tool_call>\n{{"name": {json.dumps(function.name)}, "arguments": '
            pieces += [
                DraftPiece(head, Role.HEAD, number, function.name),
                DraftPiece(arguments, Role.ARGUMENTS, number),
                DraftPiece("}\n</tool_call>", Role.END, number),
            ]
        return pieces


def schema_form(schema: object) -> Form:
    """Returns the form of an instance of a JSON schema, given as such or as text; raises `Refusal`."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise Refusal("Invalid JSON grammar specification.") from None
    return _grammar_form(read_schema(schema))


def choice_form(choices: Sequence[str]) -> Form:
    if not choices:
        raise Refusal("Choice '[]' cannot be an empty list")
    return TextForm(lambda random: random.choice(choices))


def regex_form(pattern: str) -> Form:
    return _grammar_form(read_regex(pattern))


def ebnf_form(text: str) -> Form:
    return _grammar_form(read_ebnf(text))


def _grammar_form(grammar: str) -> Form:
    return TextForm(lambda random: write_text(grammar, random))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, whole."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What one token tells of a call: the function's name where it begins, then some of its arguments."""

    call: int
    id: str
    name: str
    arguments: str


def name_call(answer: int, call: int) -> str:
    """Returns the id of an answer's call."""
    return f"chatcmpl-tool-{xxh3_64_hexdigest(f'{answer}/{call}'.encode())}"

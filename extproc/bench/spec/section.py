"""The building blocks of the spec file: a strict section, a component by name, rates, durations, tokenizers.

Rates and durations are written as `10 qps`, `600/m`, `inf`; `30s`, `10m`, `250ms`.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from extproc.documents import describe

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"{_NUMBER}\s*(ms|s|m|h)?")
_RATE = re.compile(rf"{_NUMBER}\s*(qps|rps|req/s|/s|/m|/h)?")
_SECONDS = MappingProxyType({"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0})
_PER_SECOND = MappingProxyType(
    {None: 1.0, "qps": 1.0, "rps": 1.0, "req/s": 1.0, "/s": 1.0, "/m": 1 / 60, "/h": 1 / 3600}
)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class SpecSection(BaseModel):
    """A part of the spec file: frozen, unknown fields refused, both spellings accepted."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=_kebab,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Component(SpecSection):
    """The `name` of a replaceable part and its options; a bare text is the name alone."""

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return allow_short_form(handler.resolve_ref_schema(handler(schema)), "string")

    @property
    def options(self) -> dict[str, object]:
        return {name.replace("-", "_"): value for name, value in (self.model_extra or {}).items()}

    @property
    def section(self) -> dict[str, object]:
        """Name and options as they stand in a file."""
        return {"name": self.name, **self.options}


def allow_short_form(schema: JsonSchemaValue, kind: str) -> JsonSchemaValue:
    """A JSON schema that takes a bare text or number, too, as the section's validator does."""
    return {"anyOf": [{"type": kind}, schema]}


def _or_text(pattern: str) -> WithJsonSchema:
    """A number, or a text that is read as one; editors check against it."""
    schema: dict[str, Any] = {
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": f"^{pattern}$"}]
    }
    return WithJsonSchema(schema)


def list_faults(error: ValidationError) -> str:
    """Returns every fault on a line of its own, for parts whose line is not known any more."""
    return "\n".join(map(describe, error.errors()))


def parse_duration(value: object) -> object:
    """Returns seconds for a text such as `10m`; leaves everything else to pydantic."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value.strip())
    if not found:
        raise ValueError(f"{value!r} is not a duration such as 30s, 10m or 250ms")
    return float(found[1]) * _SECONDS[found[2]]


def parse_rate(value: object) -> object:
    """Returns requests per second for a text such as `10 qps`; leaves everything else to pydantic."""
    if not isinstance(value, str):
        return value
    if value.strip() == "inf":
        return math.inf
    found = _RATE.fullmatch(value.strip())
    if not found:
        raise ValueError(f"{value!r} is not a rate such as 10 qps, 600/m or inf")
    return float(found[1]) * _PER_SECOND[found[2]]


def find_tokenizer(name: str, environment: Mapping[str, str]) -> Path | None:
    """Returns a tokenizer.json on this machine: a file, in a folder, or in the hub's cache; else `None`.

    Nothing is downloaded. Without one, lengths are counted at four bytes a token.
    """
    given = Path(name)
    if given.is_file():
        return given
    if (given / "tokenizer.json").is_file():
        return given / "tokenizer.json"
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    found = sorted(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/tokenizer.json"))
    return found[-1] if found else None


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    AllowInfNan(allow_inf_nan=False),
    _or_text(_DURATION.pattern),
]
Rate = Annotated[float, BeforeValidator(parse_rate), _or_text(rf"(inf|{_RATE.pattern})")]

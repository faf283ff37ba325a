"""A value that a JSON schema allows, drawn at random; with bounded effort whatever the schema says.

Read are the keywords that vLLM's grammars read, and some more. An unknown keyword does not count, as JSON
Schema has it. A schema that nothing satisfies is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from random import Random
from typing import Any
from urllib.parse import unquote

from extproc.vllm.http.patterns import write_match
from extproc.vllm.http.refusals import Refusal

# Objects and lists within each other: below the first, values are as small as the schema lets them be.
SOFT_DEPTH = 4
HARD_DEPTH = 40
MOST_STEPS = 20_000
MOST_ITEMS = 2000
MOST_COMPARED = 1_000_000
ATTEMPTS = 12
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "juniper")
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
# Which keywords tell the type of a schema that does not name one.
HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
FORMATS: Mapping[str, str] = {
    "date-time": r"20[0-4]\d-0[1-9]-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ",
    "date": r"20[0-4]\d-0[1-9]-(0[1-9]|1\d|2[0-8])",
    "time": r"([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ",
    "duration": r"P[1-9]D",
    "email": r"[a-z]{4,8}@[a-z]{4,8}\.com",
    "hostname": r"[a-z]{4,8}\.com",
    "ipv4": r"10\.\d\.\d\.\d",
    "ipv6": r"2001:db8::[1-9a-f]{1,4}",
    "uri": r"https://[a-z]{4,8}\.com/[a-z]{4,8}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}

Schema = Mapping[str, Any]


class _Impossible(Exception):
    """No value here; another branch of the schema may have one."""


def make_instance(schema: object, random: Random) -> Any:
    """Returns a value that the schema allows; raises `Refusal` for a schema that is none or allows nothing."""
    try:
        return _Maker(schema, random).make(schema, 0)
    except _Impossible as fault:
        raise Refusal(f"Grammar error: Unsatisfiable schema: {fault}") from None
    except (
        RecursionError,
        TypeError,
        ValueError,
        AttributeError,
        KeyError,
        IndexError,
        OverflowError,
    ) as fault:
        raise Refusal(f"Grammar error: invalid schema: {type(fault).__name__}") from None


class _Maker:
    def __init__(self, root: object, random: Random) -> None:
        self._root = root
        self._random = random
        self._steps = 0
        self._makers: Mapping[str, Callable[[Schema, int], Any]] = {
            "string": self._make_string,
            "integer": lambda schema, _depth: self._make_number(schema, is_whole=True),
            "number": lambda schema, _depth: self._make_number(schema, is_whole=False),
            "boolean": lambda _schema, _depth: self._random.random() < 0.5,
            "null": lambda _schema, _depth: None,
            "array": self._make_array,
            "object": self._make_object,
        }

    def make(self, schema: object, depth: int) -> Any:
        self._count(depth)
        if schema is True:
            return self._write_words(1)
        if schema is False:
            raise _Impossible("false")
        if not isinstance(schema, Mapping):
            raise Refusal(f"Grammar error: schema must be an object or a boolean, got {schema!r:.80}")
        flat = self._flatten(schema)
        if "const" in flat:
            return flat["const"]
        if "enum" in flat:
            return self._choose(flat["enum"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in flat:
                rest = {name: value for name, value in flat.items() if name != keyword}
                return self._make_any(rest, flat[keyword], depth)
        return self._make_typed(flat, depth)

    def _count(self, depth: int, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise Refusal("Grammar error: the schema is too complex")
        if depth > HARD_DEPTH:
            raise _Impossible("it has no end")

    def _choose(self, values: Sequence[Any]) -> Any:
        if not values:
            raise _Impossible("an empty list of choices")
        return self._random.choice(values)

    def _flatten(self, schema: Schema) -> dict[str, Any]:
        """Returns a schema with what it refers to, and all of `allOf`, merged into it."""
        merged: dict[str, Any] = {}
        for part in self._list_parts(schema):
            _merge(merged, part)
        return merged

    def _list_parts(self, schema: Schema) -> Iterator[Schema]:
        waiting: list[Any] = [schema]
        while waiting:
            self._count(0)
            part = waiting.pop()
            if part is False:
                raise _Impossible("false")
            if part is True:
                continue
            self._count(0, len(part))
            yield {name: value for name, value in part.items() if name not in {"$ref", "allOf"}}
            waiting += part.get("allOf", ())
            if "$ref" in part:
                waiting.append(self._resolve(part["$ref"]))

    def _resolve(self, reference: str) -> Any:
        found = self._root
        if not reference.startswith("#"):
            raise Refusal(f"Grammar error: Remote reference '{reference}' is not supported")
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]  # type: ignore[index]
            except (KeyError, IndexError, TypeError, ValueError):
                raise Refusal(f"Grammar error: Pointer '{reference[1:]}' does not exist") from None
        return found

    def _make_any(self, rest: Schema, branches: Sequence[Any], depth: int) -> Any:
        order = list(branches)
        self._random.shuffle(order)
        if depth >= SOFT_DEPTH:
            order.sort(key=_weigh)
        for branch in order:
            try:
                return self.make({"allOf": [dict(rest), branch]}, depth + 1)
            except _Impossible:
                continue
        raise _Impossible("no branch of it has a value")

    def _make_typed(self, schema: Schema, depth: int) -> Any:
        kinds = schema.get("type", None)
        if kinds is None:
            kinds = next(
                (kind for kind, words in HINTS.items() if any(word in schema for word in words)), None
            )
        if kinds is None:
            return self._make_other_than(schema)
        order = [kinds] if isinstance(kinds, str) else list(kinds)
        self._random.shuffle(order)
        if depth >= SOFT_DEPTH:
            order.sort(key=TYPES.index)
        for kind in order:
            if kind not in TYPES:
                raise Refusal(f"Grammar error: Invalid type: {kind}")
        for kind in order:
            try:
                return self._makers[kind](schema, depth)
            except _Impossible:
                if kind == order[-1]:
                    raise
        raise _Impossible("no type")

    def _make_other_than(self, schema: Schema) -> Any:
        barred = schema.get("not")
        if isinstance(barred, Mapping) and "string" in (barred.get("type"), *barred.get("enum", ())):
            return self._random.randint(0, 100)
        return self._write_words(1)

    def _make_string(self, schema: Schema, _depth: int) -> str:
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
        if longest is not None and longest < shortest:
            raise _Impossible("maxLength is less than minLength")
        if shortest > MOST_ITEMS:
            raise Refusal("Grammar error: minLength is too large")
        self._count(0, shortest // 8)
        pattern = schema.get("pattern") or FORMATS.get(schema.get("format", ""))
        if pattern is None:
            return self._fit(shortest, longest)
        for _ in range(ATTEMPTS):
            self._count(0, 1 + len(pattern) // 8)
            text = write_match(pattern, self._random)
            self._count(0, len(text) // 8)
            if len(text) < shortest and not pattern.endswith("$"):
                text += text[-1:] * (shortest - len(text))
            if shortest <= len(text) <= (MOST_ITEMS if longest is None else longest):
                return text
        raise _Impossible("no text of this length for the pattern")

    def _fit(self, shortest: int, longest: int | None) -> str:
        text = self._write_words(self._random.randint(1, 3))
        while len(text) < shortest:
            text += " " + self._write_words(1)
        text = text[:longest]
        return text if not text.endswith(" ") else text[:-1] + "s"

    def _write_words(self, count: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(count))

    def _make_number(self, schema: Schema, *, is_whole: bool) -> int | float:
        step = Fraction(str(schema.get("multipleOf", 1 if is_whole else "0.25")))
        if is_whole and step.denominator != 1:
            step = Fraction(step.numerator)
        if step <= 0:
            raise Refusal("Grammar error: multipleOf must be greater than 0")
        lowest, highest = self._find_bounds(schema, step)
        if "multipleOf" not in schema and not is_whole and lowest > highest:
            step /= 1 << 40
            lowest, highest = self._find_bounds(schema, step)
        if lowest > highest:
            raise _Impossible("no number between minimum and maximum")
        value = step * self._random.randint(lowest, highest)
        return int(value) if value.denominator == 1 else float(value)

    def _find_bounds(self, schema: Schema, step: Fraction) -> tuple[int, int]:
        """Returns the least and the greatest multiple of `step` that the schema allows, of a hundred."""
        lows: list[int] = []
        highs: list[int] = []
        for name, is_open in (("minimum", False), ("exclusiveMinimum", True)):
            if not isinstance(value := schema.get(name), (bool, type(None))):
                ratio = Fraction(str(value)) / step
                lows.append(
                    floor(ratio) + 1 if is_open or schema.get("exclusiveMinimum") is True else ceil(ratio)
                )
        for name, is_open in (("maximum", False), ("exclusiveMaximum", True)):
            if not isinstance(value := schema.get(name), (bool, type(None))):
                ratio = Fraction(str(value)) / step
                highs.append(
                    ceil(ratio) - 1 if is_open or schema.get("exclusiveMaximum") is True else floor(ratio)
                )
        low = max(lows) if lows else min(0, min(highs)) if highs else 0
        return low, min([*highs, low + 100])

    def _make_array(self, schema: Schema, depth: int) -> list[Any]:
        fewest, most = schema.get("minItems", 0), schema.get("maxItems")
        heads, items = self._split_items(schema)
        if fewest > MOST_ITEMS:
            raise Refusal("Grammar error: minItems is too large")
        if most is not None and most < fewest:
            raise _Impossible("maxItems is less than minItems")
        wanted = fewest if depth >= SOFT_DEPTH else max(fewest, len(heads) or self._random.randint(1, 3))
        wanted = wanted if most is None else min(wanted, most)
        made: list[Any] = []
        if "contains" in schema and depth < HARD_DEPTH and (most is None or most > 0):
            made += [self.make(schema["contains"], depth + 1) for _ in range(schema.get("minContains", 1))]
        while len(made) < wanted:
            place = len(made)
            try:
                made.append(
                    self._make_item(heads[place] if place < len(heads) else items, schema, made, depth)
                )
            except _Impossible:
                if len(made) < fewest:
                    raise
                break
        return made

    @staticmethod
    def _split_items(schema: Schema) -> tuple[Sequence[Any], Any]:
        items = schema.get("items", True)
        if isinstance(items, list):
            return items, schema.get("additionalItems", True)
        return schema.get("prefixItems", ()), items

    def _make_item(self, item: Any, schema: Schema, made: Sequence[Any], depth: int) -> Any:
        for _ in range(ATTEMPTS):
            value = self.make(item, depth + 1)
            if not schema.get("uniqueItems") or value not in made:
                return value
        if item is True:
            return f"{self._write_words(1)} {len(made)}"
        if schema.get("uniqueItems"):
            return self._make_unlike(item, made, depth)
        raise _Impossible("no further item")

    def _make_unlike(self, item: Any, made: Sequence[Any], depth: int) -> Any:
        flat = self._flatten(item) if isinstance(item, Mapping) else {}
        for value in flat.get("enum", ()):
            if value not in made:
                return value
        for _ in range(10 * ATTEMPTS):
            value = self.make(item, depth + 1)
            if value not in made:
                return value
        raise _Impossible("items cannot all differ")

    def _make_object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = self._list_required(schema)
        self._count(depth, len(properties) + len(required))
        made: dict[str, Any] = {}
        for name in [*properties, *(name for name in required if name not in properties)]:
            is_required = name in required
            if not is_required and (depth >= SOFT_DEPTH or self._random.random() < 0.3):
                continue
            try:
                made[name] = self.make(self._find_property(schema, name), depth + 1)
            except _Impossible as fault:
                if is_required:
                    raise _Impossible(f"required property '{name}' is unsatisfiable") from fault
        self._fill_up(schema, made, depth)
        return made

    @staticmethod
    def _list_required(schema: Schema) -> Mapping[str, None]:
        required = list(schema.get("required", ()))
        for name, others in schema.get("dependentRequired", {}).items():
            # All or none: what a property needs is there whether or not the property is.
            required += others if name in schema.get("properties", {}) else ()
        return dict.fromkeys(required)

    def _find_property(self, schema: Schema, name: str) -> Any:
        properties: Mapping[str, Any] = schema.get("properties", {})
        if name in properties:
            return properties[name]
        for pattern, one in schema.get("patternProperties", {}).items():
            if name.startswith(pattern.lstrip("^").rstrip("$.*+")):
                return one
        return schema.get("additionalProperties", True)

    def _fill_up(self, schema: Schema, made: dict[str, Any], depth: int) -> None:
        """Adds properties that the schema does not name, where it wants more or names none."""
        fewest = schema.get("minProperties", 0)
        if fewest > MOST_ITEMS:
            raise Refusal("Grammar error: minProperties is too large")
        names_none = not schema.get("properties") and not schema.get("required") and depth < SOFT_DEPTH
        wanted = max(fewest, 1 if names_none else 0)
        for name, one in schema.get("properties", {}).items():
            if len(made) < fewest and name not in made:
                made[name] = self.make(one, depth + 1)
        patterns = list(schema.get("patternProperties", {}))
        others = schema.get("additionalProperties", True)
        for number in range(wanted + ATTEMPTS):
            if len(made) >= wanted:
                return
            if others is False and not patterns:
                break
            name = write_match(patterns[0], self._random) if patterns else self._name(number)
            value = schema["patternProperties"][patterns[0]] if patterns else others
            if name not in made:
                made[name] = self.make(value, depth + 1)
        if len(made) < fewest:
            raise _Impossible("too few properties")

    @staticmethod
    def _name(number: int) -> str:
        return WORDS[number] if number < len(WORDS) else f"{WORDS[number % len(WORDS)]}{number}"


def _merge(merged: dict[str, Any], part: Schema) -> None:
    """Adds a schema to one that must hold as well, keyword by keyword."""
    for name, value in part.items():
        if name not in merged:
            merged[name] = value
        else:
            merged[name] = _join(name, merged[name], value)


def _join(name: str, one: Any, other: Any) -> Any:
    if name in {"properties", "patternProperties", "$defs", "definitions"}:
        both = {key: {"allOf": [one[key], other[key]]} for key in one if key in other}
        return {**one, **other, **both}
    if name == "required":
        return [*one, *other]
    if name == "enum":
        if len(one) * len(other) > MOST_COMPARED:
            raise Refusal("Grammar error: the schema is too complex")
        return [value for value in one if value in other]
    if name == "type":
        return _join_types(one, other)
    if name in {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}:
        return max(one, other)
    if name in {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}:
        return min(one, other)
    if name in {"items", "additionalProperties"}:
        return {"allOf": [one, other]} if other is not False and one is not False else False
    if name == "anyOf":
        return [{"allOf": [first, second]} for first in one for second in other][:100]
    return other


def _join_types(one: Any, other: Any) -> list[str]:
    first, second = ([kinds] if isinstance(kinds, str) else list(kinds) for kinds in (one, other))
    both = [kind for kind in first if kind in second]
    if "integer" in first + second and "number" in first + second:
        both.append("integer")
    if not both:
        raise _Impossible("two types at once")
    return both


def _weigh(branch: Any) -> int:
    """Returns how deep a branch may lead: plain values first, then what refers to something."""
    if not isinstance(branch, Mapping):
        return 0
    if "const" in branch or "enum" in branch:
        return 0
    if branch.get("type") in TYPES[:5]:
        return 0
    return 2 if "$ref" in branch or "object" in str(branch.get("type")) else 1

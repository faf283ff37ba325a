"""A text that a grammar allows, drawn at random: JSON of a schema, a match of a regex, a sentence of an EBNF.

llguidance reads the grammars, as it does for vLLM: what it refuses is refused here, in the same words. It
tells which byte may come next. This room chooses one, so that the text reads as text and comes to an end.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from extproc.simulator.http.refusals import Refusal

# A text longer than this takes the shortest way to its end.
SOFT_BYTES = 300
# A text that has no end by then has none: about 0.3 s of effort at the most.
MOST_BYTES = 32_768
MOST_CHOICES = 3000
# llguidance follows references by recursion: a chain of some thousands ends the process.
MOST_REFERENCES = 500
MOST_WORDS = 3
MOST_DIGITS = 3
MOST_SEARCHES = 3
WORDS = (
    b"amber", b"birch", b"cedar", b"delta", b"ember", b"fjord", b"grove", b"harbor", b"island", b"juniper",
)  # fmt: skip
END = 256
PLAIN = frozenset([*range(0x20, 0x7F), END])
QUOTE = ord('"')
DIGITS = frozenset(b"0123456789")
# Not every reader of times knows a sixtieth second.
HIGH_DIGITS = frozenset(b"6789")
LOWER = frozenset(b"abcdefghijklmnopqrstuvwxyz")
LETTERS = LOWER | frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
OPENERS = frozenset(b"{[")
CLOSERS = frozenset(b"}]")
ENDERS = CLOSERS | {END, QUOTE, ord(",")}
# Kinds of bytes, each as likely as any other. Of a text that is long, the first kind that may come next does.
KINDS = (frozenset([END]), CLOSERS, frozenset([QUOTE]), LETTERS, DIGITS, OPENERS, frozenset(b","))
# What ends words, the likeliest end first; then what goes on where they may not end yet, as in an address.
WORD_ENDERS = (END, QUOTE)
JOINTS = tuple(b"@:.-")


class _Bytes:
    """A tokenizer, as llguidance wants one, whose tokens are single bytes."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)
    tokens = (*(bytes([byte]) for byte in range(END)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def read_schema(schema: object) -> str:
    """Returns the grammar of a JSON schema's instances, written as `json.dumps` does; raises `Refusal`."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise Refusal(f"Grammar error: schema must be an object, got {schema!r:.80}")
    # Its type is in the stubs alone.
    style: Any = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    }
    return _read(lambda: LLMatcher.grammar_from_json_schema(_encode(schema), overrides=style))


def read_regex(pattern: str) -> str:
    """Returns the grammar of the texts that all of a regex matches; raises `Refusal`."""
    return _read(lambda: LLMatcher.grammar_from_regex(pattern))


def read_ebnf(text: str) -> str:
    """Returns an EBNF (GBNF) or Lark grammar as llguidance has it; raises `Refusal`."""
    if text.count(":") > MOST_REFERENCES:
        raise Refusal("Grammar error: the simulator reads no grammar of so many rules")
    return _read(lambda: grammar_from("grammar", text))


def write_text(grammar: str, random: Random) -> str:
    """Returns a text that a grammar allows; raises `Refusal` if there is none, or only long ones."""
    return _Writer(grammar, random).write()


def _encode(schema: object) -> str:
    text = json.dumps(schema)
    if text.count('"$ref"') > MOST_REFERENCES:
        raise Refusal("Grammar error: the simulator reads no schema of so many references")
    return text


def _read(make: Callable[[], str]) -> str:
    try:
        grammar = make()
    except (ValueError, RecursionError) as fault:
        raise Refusal(f"Grammar error: {fault}") from None
    message = LLMatcher.validate_grammar(grammar, _byte_tokenizer(), limits=_limits())
    if message:
        raise Refusal(f"Grammar error: {message.rstrip()}")
    return grammar


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


@cache
def _limits() -> LLParserLimits:
    """Returns bounds of effort: some milliseconds for a grammar, a fraction of one for a byte."""
    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=200_000,
        step_max_items=5000,
        max_lexer_states=20_000,
        max_grammar_size=50_000,
    )


class _Writer:
    """Writes one text: what must come next, then a choice, and so on."""

    def __init__(self, grammar: str, random: Random) -> None:
        self._matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=_limits())
        self._random = random
        self._text = bytearray()
        self._words = 0
        self._searches = 0
        self._deck: list[bytes] = []

    def write(self) -> str:
        for _ in range(MOST_CHOICES):
            self._take(self._matcher.compute_ff_tokens())
            allowed = self._list_allowed()
            if not allowed or len(self._text) > MOST_BYTES:
                break
            chosen = self._choose_words(allowed) if allowed >= LOWER else self._choose_byte(allowed)
            if chosen[-1] == END:
                break
            self._take(chosen)
        if not self._matcher.is_accepting():
            fault = self._matcher.get_error().partition("\n")[0] or "the simulator found no text"
            raise Refusal(f"Grammar error: {fault}")
        return self._text.decode(errors="replace")

    def _take(self, wanted: Sequence[int]) -> None:
        """Appends as much of what is wanted as the grammar allows."""
        count = self._matcher.try_consume_tokens(list(wanted))
        self._text += bytes(byte for byte in wanted[:count] if byte != END)

    def _list_allowed(self) -> frozenset[int]:
        if self._matcher.is_stopped():
            return frozenset()
        mask = int.from_bytes(self._matcher.compute_bitmask(), "little")
        allowed = frozenset(token for token in range(END + 1) if mask >> token & 1)
        return allowed & PLAIN or allowed

    def _choose_words(self, allowed: frozenset[int]) -> Sequence[int]:
        """Goes on with a word where any text may stand, or ends the words."""
        has_blanks = ord(" ") in allowed
        is_enough = self._words >= self._random.randint(1, MOST_WORDS) or self._is_long
        if self._words and is_enough:
            enders = WORD_ENDERS if has_blanks else WORD_ENDERS + JOINTS
            if found := [byte for byte in enders if byte in allowed]:
                self._words = 0
                return found[:1]
        self._words += 1
        blank = b" " if self._words > 1 and has_blanks else b""
        return blank + self._draw_word()

    def _draw_word(self) -> bytes:
        """Returns a word that has not been for long, since names in an object must differ."""
        if not self._deck:
            self._deck = self._random.sample(WORDS, len(WORDS))
        return self._deck.pop()

    def _choose_byte(self, allowed: frozenset[int]) -> Sequence[int]:
        self._words = 0
        allowed = self._leave_out(allowed)
        if allowed <= DIGITS and self._has_many_digits and self._searches < MOST_SEARCHES:
            return self._end_number() or [self._random.choice(sorted(allowed))]
        kinds = [sorted(allowed & kind) for kind in KINDS if allowed & kind] or [sorted(allowed)]
        return [self._random.choice(kinds[0] if self._is_long else self._random.choice(kinds))]

    def _leave_out(self, allowed: frozenset[int]) -> frozenset[int]:
        """Returns what is allowed without what need not be: empty lists, exponents, ever more digits."""
        last = bytes(self._text[-1:])
        if last in {b"{", b"["} and not self._is_long:
            return allowed - CLOSERS or allowed
        if last.isdigit() and allowed & ENDERS:
            allowed -= LETTERS
        if self._has_many_digits:
            allowed = allowed - DIGITS or allowed
        return _leave_out_odd(allowed, is_first=not last.isdigit())

    def _end_number(self) -> Sequence[int]:
        """Returns a few digits after which a number may end, if there are any: multiples are rare."""
        self._searches += 1
        for count in range(1, MOST_DIGITS + 1):
            tails = [tail for tail in product(sorted(DIGITS), repeat=count) if self._may_end(tail)]
            if tails:
                return self._random.choice(tails)
        return ()

    def _may_end(self, tail: tuple[int, ...]) -> bool:
        wanted = len(tail) + 1
        return any(wanted == self._matcher.validate_tokens([*tail, ender]) for ender in ENDERS)

    @property
    def _has_many_digits(self) -> bool:
        last = self._text[-MOST_DIGITS:]
        return len(last) == MOST_DIGITS and last.isdigit()

    @property
    def _is_long(self) -> bool:
        return len(self._text) > SOFT_BYTES


def _leave_out_odd(allowed: frozenset[int], *, is_first: bool) -> frozenset[int]:
    """Returns what is allowed without small letters that may be large, and digits that look odd."""
    small = {letter for letter in allowed & LOWER if letter - 32 in allowed}
    zero = {ord("0")} if is_first else set()
    digits = allowed & DIGITS
    return (allowed - small - DIGITS) | (digits - HIGH_DIGITS - zero or digits - zero or digits)

"""Log probabilities: plausible ones, the same for the same token at the same place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import xxhash

from extproc.simulator.http.refusals import Refusal, refuse_value
from extproc.simulator.http.tokens import Tokenizer

MOST_SCORES = 20


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that might have come, as likely as `logprob` says."""

    token: int
    text: str
    logprob: float

    def describe(self) -> dict[str, Any]:
        return {"token": self.text, "logprob": self.logprob, "bytes": list(self.text.encode())}


@dataclass(frozen=True, slots=True)
class Score:
    """The likeliest tokens at one place, the one that came first."""

    chosen: Alternative
    top: Sequence[Alternative]

    def describe(self, count: int) -> dict[str, Any]:
        """Returns a member of chat's `logprobs.content`."""
        top = [one.describe() for one in self.top[:count]]
        return self.chosen.describe() | {"top_logprobs": top}

    def describe_prompt(self) -> dict[str, Any]:
        """Returns a member of `prompt_logprobs`."""
        return {
            str(one.token): {"logprob": one.logprob, "rank": rank, "decoded_token": one.text}
            for rank, one in enumerate(self.top or [self.chosen], 1)
        }


def score(tokens: Sequence[int], texts: Sequence[str], count: int, tokenizer: Tokenizer) -> Iterator[Score]:
    """Yields a score for each token: the token itself is always the likeliest, as at temperature 0."""
    words = tokenizer.words
    for place, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        number = xxhash.xxh3_64_intdigest(f"{place}/{token}".encode())
        share = 0.35 + 0.6 * (number % 65_521) / 65_521
        chosen = Alternative(token, text, log(share))
        top = [chosen]
        while len(top) < count:
            share = (1 - share) / 2 if len(top) == 1 else share / 2
            other = words[(number + len(top)) % len(words)]
            if any(one.token == other for one in top):
                other = words[(number + len(top) + count) % len(words)]
            top.append(Alternative(other, tokenizer.decode([other]), log(min(share, 0.3))))
        yield Score(chosen, top[:count])


def score_prompt(prompt: Sequence[int], count: int, tokenizer: Tokenizer) -> list[Score]:
    """Scores all tokens of a prompt but the first, which nothing precedes."""
    rest = prompt[1:]
    return list(score(rest, [tokenizer.decode([token]) for token in rest], count, tokenizer))


def describe_prompt_scores(scores: Sequence[Score]) -> list[Any]:
    return [None, *(one.describe_prompt() for one in scores)]


def describe_content(scores: Sequence[Score], count: int) -> dict[str, Any]:
    """Returns chat's `logprobs`."""
    return {"content": [one.describe(count) for one in scores]}


def check_count(count: int | None, kind: str, tokenizer: Tokenizer) -> None:
    """Raises `Refusal` for more than a server gives; `kind` is `sample` or `prompt`."""
    if count is None:
        return
    asked = tokenizer.size if count == -1 else count
    if asked > MOST_SCORES:
        param = "logprobs" if kind == "sample" else "prompt_logprobs"
        message = f"Requested {kind} logprobs of {asked}, which is greater than max allowed: {MOST_SCORES}"
        raise refuse_value(message, param, asked)


def check_sign(count: object, name: str) -> None:
    """Raises `Refusal` for a number of log probabilities that is none."""
    if count is None:
        return
    if not isinstance(count, (int, float)):
        raise refuse_value(f"`{name}` must be an integer.", name, count)
    if count < 0 and count != -1:
        raise refuse_value(f"`{name}` must be a positive value or -1.", name, count)


def refuse_param(message: str, param: str) -> Refusal:
    return Refusal(f"{message} (parameter={param})", param=param)

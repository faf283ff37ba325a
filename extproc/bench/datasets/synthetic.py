"""Numbers drawn from distributions, and datasets made of them: no text of anybody's is used."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field

from extproc.bench.datasets.conversation import BYTES, ChatTurn, Conversation, Ruler, TurnMessage
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset, Distribution

Draws = npt.NDArray[np.float64]


def draw(distribution: Distribution, count: int, rng: np.random.Generator) -> Draws:
    """Returns `count` values, clipped to `min` and `max`."""
    values = _draw_unclipped(distribution, count, rng)
    return np.clip(values, distribution.min, distribution.max)


def draw_tokens(distribution: Distribution, count: int, rng: np.random.Generator) -> list[int]:
    """Returns `count` whole numbers of tokens, each at least one."""
    return [max(1, round(value)) for value in draw(distribution, count, rng).tolist()]


def _draw_unclipped(distribution: Distribution, count: int, rng: np.random.Generator) -> Draws:
    mean = distribution.mean or 0.0
    match distribution.kind:
        case "fixed":
            return np.full(count, distribution.value)
        case "uniform":
            return rng.uniform(distribution.min, distribution.max, count)
        case "normal":
            return rng.normal(mean, distribution.std, count)
        case "lognormal":
            # The mean of a lognormal is exp(mu + sigma^2 / 2).
            return rng.lognormal(
                math.log(mean) - distribution.sigma**2 / 2, distribution.sigma, count
            )
        case "exponential":
            return rng.exponential(mean, count)
        case "choice":
            return rng.choice(np.asarray(distribution.values), count)


class SyntheticOptions(SpecSection):
    """Conversations of any kind; the defaults stand in for ShareGPT with 16 messages or more.

    A conversation has `turns_min` turns and `turns_extra` more; `shared_system_tokens` open every
    conversation alike. `mean_input_tokens` and `mean_output_tokens`: what prompts (a turn's whole
    history) and answers are scaled to on average; `None` leaves them as drawn. Conversations end
    before a prompt exceeds `max_prompt_tokens`.
    """

    turns_min: int = Field(default=8, gt=0)
    turns_extra: Distribution | None = Distribution(kind="exponential", mean=3.5)
    user_tokens: Distribution = Distribution(kind="lognormal", mean=63, sigma=1.2, min=4)
    reply_tokens: Distribution = Distribution(kind="lognormal", mean=82, sigma=0.8, min=4, max=400)
    shared_system_tokens: int = Field(default=0, ge=0)
    mean_input_tokens: float | None = 832.0
    mean_output_tokens: float | None = 76.06
    max_prompt_tokens: int = Field(default=8192, gt=0)


class RandomOptions(SpecSection):
    """Unique prompts of one turn: no reuse at all, where affinity must not cost anything.

    `prefix_tokens` open every prompt alike, beside `input_tokens`.
    """

    prefix_tokens: int = Field(default=0, ge=0)
    input_tokens: Distribution = Distribution(value=1024)
    output_tokens: Distribution = Distribution(value=128)


class SharedPrefixOptions(SpecSection):
    """Prompts that open with one of `groups` prefixes: tenants' system prompts, or documents.

    The defaults are llm-d's published case. `hot_share` of the requests use the first group; `zipf`
    above zero makes the others' popularity fall with that exponent of their rank. With `per_group`
    every group has exactly so many prompts, in a random order: with `max_prompts` of all, they come
    again.
    """

    groups: int = Field(default=150, gt=0)
    prefix_tokens: Distribution = Distribution(value=6000)
    question_tokens: Distribution = Distribution(kind="lognormal", mean=120, sigma=0.8, min=4)
    output_tokens: Distribution = Distribution(kind="lognormal", mean=100, sigma=0.6, min=4)
    hot_share: float = Field(default=0.0, ge=0, le=1)
    zipf: float = Field(default=0.0, ge=0)
    per_group: int | None = Field(default=None, gt=0)


Lengths = list[tuple[int, int]]
"""Of one conversation: tokens of each turn's question and of its reply."""


def generate_conversations(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Generates conversations until their turns cover `need` requests or `max_conversations` is reached."""
    options = SyntheticOptions.model_validate(dataset.options)
    lengths = _scale(_draw_lengths(options, dataset.max_conversations, need, rng), options)
    system = ruler.write(options.shared_system_tokens, rng)
    return [Conversation(tuple(_write_turns(chat, system, rng, ruler))) for chat in lengths]


def generate_random(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Generates `need` prompts that share nothing but a prefix, if the spec has one."""
    options = RandomOptions.model_validate(dataset.options)
    prefix = ruler.write(options.prefix_tokens, rng)
    inputs = draw_tokens(options.input_tokens, need, rng)
    outputs = draw_tokens(options.output_tokens, need, rng)
    return [
        Conversation((ChatTurn((TurnMessage("user", prefix + ruler.write(size, rng)),), output),))
        for size, output in zip(inputs, outputs, strict=True)
    ]


def generate_shared_prefix(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Generates `need` prompts of a group's prefix, as system message, and a question of their own."""
    options = SharedPrefixOptions.model_validate(dataset.options)
    prefixes = [
        ruler.write(size, rng) for size in draw_tokens(options.prefix_tokens, options.groups, rng)
    ]
    weights = np.arange(1, options.groups + 1, dtype=np.float64) ** -options.zipf
    shares = (1 - options.hot_share) * weights / weights.sum()
    shares[0] += options.hot_share
    groups = rng.choice(options.groups, need, p=shares)
    if options.per_group:
        groups = rng.permutation(np.repeat(np.arange(options.groups), options.per_group))
        need = len(groups)
    questions = draw_tokens(options.question_tokens, need, rng)
    outputs = draw_tokens(options.output_tokens, need, rng)
    return [
        Conversation(
            (
                ChatTurn(
                    (
                        TurnMessage("system", prefixes[g]),
                        TurnMessage("user", ruler.write(size, rng)),
                    ),
                    output,
                ),
            )
        )
        for g, size, output in zip(groups.tolist(), questions, outputs, strict=True)
    ]


def _draw_lengths(
    options: SyntheticOptions, conversations: int | None, need: int, rng: np.random.Generator
) -> list[Lengths]:
    lengths: list[Lengths] = []
    missing = need
    while len(lengths) < conversations if conversations else missing > 0:
        extra = draw(options.turns_extra, 1, rng)[0] if options.turns_extra else 0
        turns = options.turns_min + int(extra)
        users = draw_tokens(options.user_tokens, turns, rng)
        replies = draw_tokens(options.reply_tokens, turns, rng)
        lengths.append(list(zip(users, replies, strict=True)))
        missing -= turns
    return lengths


def _scale(lengths: list[Lengths], options: SyntheticOptions) -> list[Lengths]:
    """Scales replies to the mean answer, then questions to the mean prompt, and cuts what is too long.

    Replies are part of later prompts and cutting changes both means, hence a few rounds.
    """
    user_scale = reply_scale = 1.0
    for _ in range(12):
        scaled = [
            _cut(
                [(max(1, round(u * user_scale)), max(1, round(r * reply_scale))) for u, r in chat],
                options,
            )
            for chat in lengths
        ]
        inputs, outputs, questions = _measure(scaled, options.shared_system_tokens)
        if options.mean_output_tokens:
            reply_scale *= options.mean_output_tokens / outputs
        if options.mean_input_tokens:
            user_scale *= max(0.05, 1 + (options.mean_input_tokens - inputs) / questions)
    return [chat for chat in scaled if chat]


def _cut(chat: Lengths, options: SyntheticOptions) -> Lengths:
    history = options.shared_system_tokens
    for kept, (user, reply) in enumerate(chat):
        if history + user > options.max_prompt_tokens:
            return chat[:kept]
        history += user + reply
    return chat


def _measure(chats: list[Lengths], system: int) -> tuple[float, float, float]:
    """Returns means per prompt: its tokens, its answer's tokens, the tokens of questions in it."""
    prompts = inputs = outputs = questions = 0
    for chat in chats:
        history = system
        asked = 0
        for user, reply in chat:
            asked += user
            inputs += history + user
            outputs += reply
            questions += asked
            prompts += 1
            history += user + reply
    return inputs / prompts, outputs / prompts, questions / prompts


def _write_turns(
    chat: Lengths, system: str, rng: np.random.Generator, ruler: Ruler
) -> Iterator[ChatTurn]:
    opening = (TurnMessage("system", system),) if system else ()
    for user, reply in chat:
        yield ChatTurn(
            (*opening, TurnMessage("user", ruler.write(user, rng))), reply, ruler.write(reply, rng)
        )
        opening = ()

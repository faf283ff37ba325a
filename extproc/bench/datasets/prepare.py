"""The preprocessor: filters, lengths, prompts per turn, cuts, order."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np

from extproc.bench.datasets.conversation import (
    ChatTurn,
    Conversation,
    Message,
    build_prompts,
    count_prompt_tokens,
)
from extproc.bench.datasets.draws import draw_tokens
from extproc.bench.datasets.source import Source
from extproc.bench.datasets.text import estimate_tokens, fit_text, trim_text
from extproc.bench.spec.traffic import Dataset, Distribution, TrafficShape
from extproc.errors import SettingsError


def prepare(
    traffic: TrafficShape, source: Source, need: int, seed: np.random.SeedSequence
) -> list[Conversation]:
    """Returns the conversations of a run, the same for the same seed.

    `need` is how many requests the run is going to make; generated datasets provide that many.
    Raises `SettingsError` if nothing is left.
    """
    dataset = traffic.dataset
    text_rng, length_rng, order_rng = (np.random.default_rng(s) for s in seed.spawn(3))
    conversations: Iterable[Conversation] = source(dataset, need, text_rng)
    kept = [c for c in conversations if is_kept(c, dataset)][: dataset.max_conversations]
    if dataset.turns == "prompts":
        kept = [prompt for conversation in kept for prompt in build_prompts(conversation)]
    kept = [c for c in kept if _is_short(c, dataset.max_prompt_tokens)][: dataset.max_prompts]
    kept = _set_lengths(kept, traffic, length_rng)
    if not kept:
        raise SettingsError(f"dataset {dataset.name}: nothing is left after its filters")
    kept *= dataset.repeat
    if dataset.is_shuffled:
        order_rng.shuffle(kept)
    return kept


def is_kept(conversation: Conversation, dataset: Dataset) -> bool:
    """Tells whether a conversation, cut at its answers, has the messages and characters asked for."""
    contents = conversation.user_contents
    return (
        conversation.message_count >= dataset.min_messages
        and len(contents) >= dataset.min_user_messages
        and sum(map(len, contents)) >= dataset.min_user_characters
    )


def _is_short(conversation: Conversation, limit: int | None) -> bool:
    if limit is None:
        return True
    *_, last = build_prompts(conversation)
    return count_prompt_tokens(last.turns[0].messages) <= limit


def _set_lengths(
    conversations: list[Conversation], traffic: TrafficShape, rng: np.random.Generator
) -> list[Conversation]:
    turns = sum(len(c.turns) for c in conversations)
    inputs = _draw_or_none(traffic.input_length, turns, rng)
    outputs = _draw_or_none(traffic.max_output_length, turns, rng)
    # A recorded body has its own messages, so it cannot stay where lengths are asked for.
    is_recorded = traffic.input_length is None
    return [
        replace(
            c,
            turns=tuple(_fit_turn(t, next(inputs), next(outputs)) for t in c.turns),
            body=c.body if is_recorded else None,
        )
        for c in conversations
    ]


def _draw_or_none(
    distribution: Distribution | None, count: int, rng: np.random.Generator
) -> Iterator[int | None]:
    if distribution is None:
        return repeat(None)
    return iter(draw_tokens(distribution, count, rng))


def _fit_turn(turn: ChatTurn, input_tokens: int | None, output_tokens: int | None) -> ChatTurn:
    messages = turn.messages if input_tokens is None else fit_messages(turn.messages, input_tokens)
    return replace(turn, messages=messages, output_tokens=output_tokens or turn.output_tokens)


def fit_messages(messages: tuple[Message, ...], tokens: int) -> tuple[Message, ...]:
    """Trims a prompt's tail, or pads its last message, to that many estimated tokens.

    Two prompts keep their common prefix, cut to the length asked for: padding depends on the whole
    prompt, so a prompt that extended another one leaves it where that one ended.
    """
    fitted: list[Message] = []
    left, context = tokens, ""
    for message in messages[:-1]:
        content = trim_text(message.content, left)
        fitted.append(replace(message, content=content))
        left -= estimate_tokens(content)
        context += f"{content}\0"
    last = messages[-1]
    fitted.append(replace(last, content=fit_text(last.content, left, context=context)))
    return tuple(message for message in fitted if message.content)

"""The preprocessor: filters, lengths, prompts per turn, cuts, order."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
import xxhash

from extproc.bench.datasets.chats import Source
from extproc.bench.datasets.conversation import (
    BYTES,
    Conversation,
    Ruler,
    TurnMessage,
    build_prompts,
    count_prompt_tokens,
    fit_text,
)
from extproc.bench.datasets.synthetic import draw_tokens
from extproc.bench.spec.traffic import Dataset, Distribution, TrafficShape
from extproc.errors import SettingsError

# Little beside a prompt, and more than enough that two runs never have the same.
_SALT_TOKENS = 4


def prepare(
    traffic: TrafficShape,
    source: Source,
    need: int,
    seed: np.random.SeedSequence,
    ruler: Ruler = BYTES,
) -> list[Conversation]:
    """Returns the conversations of a run, the same for the same seed.

    `need` is how many requests the run is going to make; generated datasets provide that many.
    Raises `SettingsError` if nothing is left.
    """
    dataset = traffic.dataset
    text_rng, length_rng, order_rng = (np.random.default_rng(s) for s in seed.spawn(3))
    conversations: Iterable[Conversation] = source(dataset, need, text_rng)
    kept = [c for c in conversations if is_kept(c, dataset)][: dataset.max_conversations]
    if dataset.salt:
        key = xxhash.xxh3_64_intdigest(dataset.salt.encode())
        opening = ruler.write(_SALT_TOKENS, np.random.default_rng(key))
        kept = [_add_salt(c, opening) for c in kept]
    if traffic.turns == "prompts":
        kept = [prompt for conversation in kept for prompt in build_prompts(conversation)]
    kept = [c for c in kept if _is_short(c, dataset.max_prompt_tokens, ruler)][
        : dataset.max_prompts
    ]
    kept = _set_lengths(kept, traffic, length_rng, ruler)
    if not kept:
        raise SettingsError(f"dataset {dataset.name}: nothing is left after its filters")
    if dataset.salt and any(c.body is not None for c in kept):
        raise SettingsError(
            f"dataset {dataset.name}: recorded bodies take no salt: list the endpoints in scrape, or in "
            "ab.flush, so that caches are emptied"
        )
    if dataset.is_shuffled:
        order_rng.shuffle(kept)
    return kept * dataset.repeat


def _add_salt(conversation: Conversation, opening: str) -> Conversation:
    """Puts the same text before all prompts: what they share with each other stays as it is."""
    first, *others = conversation.turns
    message, *rest = first.messages
    salted = (replace(message, content=opening + message.content), *rest)
    return replace(conversation, turns=(replace(first, messages=salted), *others))


def is_kept(conversation: Conversation, dataset: Dataset) -> bool:
    """Whether a conversation, cut at its answers, has as many messages and characters as the spec wants."""
    contents = conversation.user_contents
    return (
        conversation.message_count >= dataset.min_messages
        and len(contents) >= dataset.min_user_messages
        and sum(map(len, contents)) >= dataset.min_user_characters
    )


def _is_short(conversation: Conversation, limit: int | None, ruler: Ruler) -> bool:
    if limit is None:
        return True
    *_, last = build_prompts(conversation)
    return count_prompt_tokens(last.turns[0].messages, ruler) <= limit


def _set_lengths(
    conversations: list[Conversation], traffic: TrafficShape, rng: np.random.Generator, ruler: Ruler
) -> list[Conversation]:
    turns = sum(len(c.turns) for c in conversations)
    inputs = _draw_or_none(traffic.input_length, turns, rng)
    outputs = _draw_or_none(traffic.max_output_length, turns, rng)
    # A recorded body has its own messages, so it cannot stay where the spec sets lengths.
    is_recorded = traffic.input_length is None
    return [
        replace(
            c,
            turns=tuple(
                replace(
                    turn,
                    messages=fit_messages(turn.messages, tokens, ruler)
                    if tokens
                    else turn.messages,
                    output_tokens=next(outputs) or turn.output_tokens,
                )
                for turn, tokens in zip(c.turns, inputs, strict=False)
            ),
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


def fit_messages(
    messages: tuple[TurnMessage, ...], tokens: int, ruler: Ruler = BYTES
) -> tuple[TurnMessage, ...]:
    """Returns a prompt at that many tokens, over all messages: the head of its history, and its own question.

    Where both have no room, an eighth is the question's, so that later turns of one conversation
    share their head and are no repeats. The history is cut where its room ends; a piece of a
    question that is cut there opens the last one, as two questions in a row are refused by some
    chat templates. What is left is padded. Two prompts keep their common history, as far as it is
    kept.
    """
    last = next((i for i in reversed(range(len(messages))) if messages[i].role != "assistant"), -1)
    *history, question = messages[: last + 1] or messages
    left = tokens - min(ruler.count(question.content), max(1, tokens // 8))
    kept: list[TurnMessage] = []
    opening = ""
    for message in history:
        size = ruler.count(message.content)
        if size > left:
            piece = ruler.trim(message.content, left)
            kept += [replace(message, content=piece)] if piece else []
            break
        kept.append(message)
        left -= size
    if kept and kept[-1].role == question.role:
        opening = kept.pop().content
    context = "".join(f"{message.content}\0" for message in kept)
    room = tokens - sum(ruler.count(message.content) for message in kept)
    text = fit_text(opening + question.content, room, context=context, ruler=ruler)
    return (*kept, replace(question, content=text))

"""Prompts as KubeAI's changed copy of vLLM's benchmark makes them from a ShareGPT file."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from pydantic import Field

from extproc.bench.datasets.conversation import ChatTurn, Conversation, TurnMessage
from extproc.bench.datasets.source import Entry, read_objects, read_rows, read_text, require_path
from extproc.bench.datasets.text import BYTES, Ruler
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset

# The script's limits: tokens of a prompt or an answer at least, of a prompt at most.
_LEAST, _MOST_IN = 4, 8192


class KubeaiOptions(SpecSection):
    """`seed` shuffles the prompts as Python's `random` does; `output_len` replaces recorded lengths."""

    seed: int = 0
    output_len: int | None = Field(default=None, gt=0)


def read_kubeai_sharegpt(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads a prompt for each question with all that came before it; every request is one message.

    `max_prompts` are taken in the file's order (the script calls them conversations), then shuffled; the
    run begins again at the first until it has its number.
    """
    del need, rng
    options = KubeaiOptions.model_validate(dataset.options)
    rows = [
        messages
        for row in read_rows(require_path(dataset, KubeaiOptions))
        if len(messages := _list(row)) >= 2
    ]
    prompts = [prompt for messages in rows for prompt in _grow(messages)][: dataset.max_prompts]
    Random(options.seed).shuffle(prompts)  # noqa: S311  # the order must be the script's
    made = []
    for prompt, answer in prompts:
        size = options.output_len or ruler.count(answer)
        if _LEAST <= ruler.count(prompt) <= _MOST_IN and size >= _LEAST:
            made.append(Conversation((ChatTurn((TurnMessage("user", prompt),), size),)))
    return made


def _list(row: Entry) -> list[str]:
    return [read_text(item, "value") for item in read_objects(row, "conversations")]


def _grow(messages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each question with its history as one text, and the answer that followed it, if any did."""
    text = ""
    for i, message in enumerate(messages):
        text += f"{'Assistant' if i % 2 else 'User'}: {message}\n"
        if i % 2 == 0:
            yield text, messages[i + 1] if i + 1 < len(messages) else ""

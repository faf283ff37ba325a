"""Datasets as `vllm bench serve` reads them: the same prompts in the same order for the same seed.

Every request is one message. Only local files are read, as everywhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
from pydantic import Field

from extproc.bench.datasets.conversation import ChatTurn, Conversation, Message
from extproc.bench.datasets.source import Entry, read_objects, read_rows, read_text, require_path
from extproc.bench.datasets.text import BYTES, Ruler
from extproc.bench.spec.section import Section
from extproc.bench.spec.traffic import Dataset
from extproc.errors import SettingsError

# vLLM's own limits for ShareGPT: tokens of a prompt or an answer at least, of a prompt, of both at most.
_LEAST, _MOST_IN, _MOST_BOTH = 4, 1024, 2048
# And those of KubeAI's changed script.
_KUBEAI_MOST_IN = 8192


class FileOptions(Section):
    """`seed` shuffles the file's rows as Python's `random` does; `output_len` replaces recorded lengths."""

    seed: int = 0
    is_in_order: bool = False
    output_len: int | None = Field(default=None, gt=0)


class PrefixRepetitionOptions(Section):
    """`num_prefixes` prefixes, each equally often, with a suffix of its own each time."""

    prefix_len: int = Field(default=256, ge=0)
    suffix_len: int = Field(default=256, ge=0)
    num_prefixes: int = Field(default=10, gt=0)
    output_len: int = Field(default=128, gt=0)
    is_in_order: bool = False


def read_vllm_sharegpt(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads the first question and answer of each shuffled conversation, within vLLM's limits of length."""
    del rng
    options, rows = _open(dataset)
    pairs = (_first_pair(row) for row in rows)
    kept = (
        (prompt, size)
        for prompt, answer in pairs
        if (size := _fit(ruler.count(prompt), answer, options, ruler)) is not None
    )
    return _oversample([_ask(*pair) for pair in _take(kept, need)], need, options.seed)


def read_kubeai_sharegpt(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads a prompt for each question with all that came before it, as KubeAI's changed script does.

    `max_prompts` are taken in the file's order (the script calls them conversations), then shuffled; the
    run begins again at the first until it has its number.
    """
    del need, rng
    options = FileOptions.model_validate(dataset.options)
    rows = [row for row in read_rows(require_path(dataset, FileOptions)) if len(_messages(row)) >= 2]
    prompts = [prompt for row in rows for prompt in _grow(_messages(row))][: dataset.max_prompts]
    _open_random(options.seed).shuffle(prompts)
    kept = []
    for prompt, answer in prompts:
        size = options.output_len or ruler.count(answer)
        if _LEAST <= ruler.count(prompt) <= _KUBEAI_MOST_IN and (options.output_len or size >= _LEAST):
            kept.append(_ask(prompt, size))
    return kept


def read_vllm_custom(dataset: Dataset, need: int, rng: np.random.Generator) -> list[Conversation]:
    """Reads JSON lines of `prompt` and, without `output_len`, `output_tokens`; applies no chat template."""
    del rng
    options, rows = _open(dataset)
    asked = [_ask(read_text(row, "prompt"), options.output_len or _recorded(row)) for row in rows[:need]]
    return _oversample(asked, need, options.seed)


def generate_prefix_repetition(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Generates `need // num_prefixes` prompts for each prefix, shuffled unless in order."""
    options = PrefixRepetitionOptions.model_validate(dataset.options)
    each = need // options.num_prefixes
    if not each:
        raise SettingsError(
            f"dataset {dataset.name}: {need} prompts are too few for {options.num_prefixes} prefixes"
        )
    made = []
    for _ in range(options.num_prefixes):
        prefix = ruler.write(options.prefix_len, rng)
        made += [_ask(prefix + ruler.write(options.suffix_len, rng), options.output_len) for _ in range(each)]
    order = range(len(made)) if options.is_in_order else rng.permutation(len(made)).tolist()
    return [made[i] for i in order]


def _open(dataset: Dataset) -> tuple[FileOptions, list[Entry]]:
    """The options, and the rows in the order in which they are used."""
    options = FileOptions.model_validate(dataset.options)
    path = require_path(dataset, FileOptions)
    rows = [row for row in read_rows(path) if _is_row(path, row)]
    if not options.is_in_order:
        _open_random(options.seed).shuffle(rows)
    return options, rows


def _is_row(path: Path, row: Entry) -> bool:
    if "conversations" not in row and "prompt" not in row:
        raise SettingsError(f"{path}: a row has neither `conversations` nor `prompt`")
    return "prompt" in row or len(_messages(row)) >= 2


def _messages(row: Entry) -> list[str]:
    return [read_text(item, "value") for item in read_objects(row, "conversations")]


def _first_pair(row: Entry) -> tuple[str, str]:
    first, second, *_ = _messages(row)
    return first, second


def _grow(messages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each question with its history as one text, and the answer that followed it, if any did."""
    text = ""
    for i, message in enumerate(messages):
        text += f"{'Assistant' if i % 2 else 'User'}: {message}\n"
        if i % 2 == 0:
            yield text, messages[i + 1] if i + 1 < len(messages) else ""


def _fit(prompt_tokens: int, answer: str, options: FileOptions, ruler: Ruler) -> int | None:
    """Returns the tokens that an answer may have; `None` for a pair outside of vLLM's limits."""
    size = options.output_len or ruler.count(answer)
    is_short = prompt_tokens < _LEAST or (options.output_len is None and size < _LEAST)
    is_long = prompt_tokens > _MOST_IN or prompt_tokens + size > _MOST_BOTH
    return None if is_short or is_long else size


def _take(pairs: Iterable[tuple[str, int]], count: int) -> Iterator[tuple[str, int]]:
    # Lengths are counted one by one: no more than are needed.
    for number, pair in enumerate(pairs, start=1):
        yield pair
        if number == count:
            return


def _recorded(row: Entry) -> int:
    value = row.get("output_tokens")
    if not isinstance(value, int) or value < 1:
        raise SettingsError("a row lacks `output_tokens`, which --custom-output-len=-1 reads")
    return value


def _ask(prompt: str, output_tokens: int) -> Conversation:
    return Conversation((ChatTurn((Message("user", prompt),), output_tokens),))


def _open_random(seed: int) -> Random:
    # Python's own, as the order must be vLLM's.
    return Random(seed)  # noqa: S311  nothing is kept secret here


def _oversample(asked: list[Conversation], need: int, seed: int) -> list[Conversation]:
    """Fills up with requests drawn from those that there are."""
    random = _open_random(seed)
    return asked + [random.choice(asked) for _ in range(need - len(asked))] if asked else asked

"""What a workload is made of, printed before the run: how much of it could be cached, and why."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from extproc.bench.datasets.conversation import (
    BYTES,
    BYTES_PER_TOKEN,
    Conversation,
    Ruler,
    build_prompts,
    count_prompt_tokens,
    join_prompt,
)

_BLOCK_TOKENS = 16
_BLOCK_BYTES = _BLOCK_TOKENS * BYTES_PER_TOKEN
_REUSE_BUCKETS = ((1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"), (16, "9-16"), (64, "17-64"))


@dataclass(frozen=True, slots=True)
class Honesty:
    """The account of a workload. Tokens are counted by `counted_by`; blocks are of 16 estimated tokens.

    `distinct_tokens`: tokens in blocks, counted once. `exact_repeats`: share of prompts that came
    before. `left_out`: rows of the file that became nothing, by reason. `are_prompts`: each turn
    was made a request of its own, so that `conversations` counts these. `reuse`: share of distinct
    blocks by how often they are read. `ideal_hit_rate`: hit
    tokens of one unlimited cache that sees every prompt in order. `period`: the prompts repeat
    after that many; a multiple of the endpoint count makes strict round robin look like affinity.
    """

    conversations: int
    prompts: int
    input_tokens: int
    output_tokens: int
    input_quantiles: tuple[float, float, float]
    output_quantiles: tuple[float, float, float]
    distinct_tokens: int
    exact_repeats: float
    reuse: dict[str, float]
    ideal_hit_rate: float
    period: int | None
    endpoints: int
    counted_by: str = BYTES.name
    left_out: dict[str, int] = field(default_factory=dict)
    are_prompts: bool = False

    @property
    def has_faked_affinity(self) -> bool:
        """Whether strict round robin would send every repeat to the endpoint that served it before."""
        return self.period is not None and self.endpoints > 1 and self.period % self.endpoints == 0

    def __str__(self) -> str:
        return "\n".join(f"{name:<17}{value}" for name, value in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        distinct = self.distinct_tokens / (self.input_tokens or 1)
        whole = "prompts" if self.are_prompts else "conversations"
        yield whole, f"{self.conversations}, requests {self.prompts}"
        if self.left_out:
            counts = (f"{count} {why}" for why, count in self.left_out.items())
            yield "left out", f"rows of the file: {', '.join(counts)}"
        for name, total, (p50, p90, p99) in (
            ("input tokens", self.input_tokens, self.input_quantiles),
            ("output tokens", self.output_tokens, self.output_quantiles),
        ):
            mean = total / self.prompts
            yield name, f"{total} (mean {mean:.2f}, p50 {p50:.0f}, p90 {p90:.0f}, p99 {p99:.0f})"
        yield "distinct tokens", f"{self.distinct_tokens} ({distinct:.1%} of input)"
        yield "exact repeats", f"{self.exact_repeats:.1%} of requests"
        yield "block reuse", ", ".join(f"{name}x {share:.0%}" for name, share in self.reuse.items())
        of = f"one unlimited cache, {_BLOCK_TOKENS}-token blocks"
        yield "ideal hit rate", f"{self.ideal_hit_rate:.1%} ({of})"
        yield "period", "none" if self.period is None else f"{self.period} requests"
        yield "endpoints", str(self.endpoints)
        if self.has_faked_affinity:
            yield (
                "WARNING",
                "the period is a multiple of the endpoints: round robin will look like affinity",
            )
        yield "tokens by", self.counted_by


def account(
    conversations: Sequence[Conversation], requests: int, endpoints: int, ruler: Ruler = BYTES
) -> Honesty:
    """Returns the account of the first `requests` requests, conversations beginning again as needed."""
    prompts = [prompt for c in conversations for prompt in build_prompts(c)]
    turns = [prompts[i % len(prompts)].turns[0] for i in range(requests)]
    sizes = [count_prompt_tokens(prompt.turns[0].messages, ruler) for prompt in prompts[:requests]]
    inputs = np.array([sizes[i % len(prompts)] for i in range(requests)])
    outputs = np.array([turn.output_tokens for turn in turns])
    texts = [join_prompt(turn.messages) for turn in turns]
    reads, hit_tokens, distinct_tokens = _read_blocks(texts)
    estimated = sum(map(BYTES.count, texts)) or 1
    return Honesty(
        conversations=len(conversations),
        prompts=requests,
        input_tokens=int(inputs.sum()),
        output_tokens=int(outputs.sum()),
        input_quantiles=tuple(np.percentile(inputs, [50, 90, 99]).tolist()),
        output_quantiles=tuple(np.percentile(outputs, [50, 90, 99]).tolist()),
        distinct_tokens=round(distinct_tokens * int(inputs.sum()) / estimated),
        exact_repeats=1 - len(set(texts)) / requests,
        reuse=_bucket(reads.values()),
        ideal_hit_rate=hit_tokens / estimated,
        period=find_period([xxhash.xxh3_64_intdigest(text.encode()) for text in texts]),
        endpoints=endpoints,
        counted_by=ruler.name,
    )


def find_period(keys: Sequence[int]) -> int | None:
    """Returns the least p below the length with `keys[i] == keys[i + p]` throughout, else `None`.

    The failure function of Knuth, Morris and Pratt; linear.
    """
    border = [0] * len(keys)
    k = 0
    for i in range(1, len(keys)):
        while k and keys[i] != keys[k]:
            k = border[k - 1]
        k += keys[i] == keys[k]
        border[i] = k
    period = len(keys) - border[-1] if keys else 0
    return period if period < len(keys) else None


def _read_blocks(texts: Iterable[str]) -> tuple[Counter[int], int, int]:
    reads: Counter[int] = Counter()
    hits = distinct = 0
    for text in texts:
        blocks = list(_hash_blocks(text.encode()))
        known = next((i for i, block in enumerate(blocks) if block not in reads), len(blocks))
        tokens = BYTES.count(text)
        # vLLM always recomputes at least one token, so a full hit misses its last block.
        hits += min(known, (tokens - 1) // _BLOCK_TOKENS) * _BLOCK_TOKENS
        distinct += tokens - known * _BLOCK_TOKENS
        reads.update(blocks)
    return reads, hits, distinct


def _hash_blocks(data: bytes) -> Iterator[int]:
    """Yields one hash per full block, chained to its parent."""
    parent = 0
    for start in range(0, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        parent = xxhash.xxh3_64_intdigest(data[start : start + _BLOCK_BYTES], parent)
        yield parent


def _bucket(reads: Iterable[int]) -> dict[str, float]:
    counts = Counter(next((name for top, name in _REUSE_BUCKETS if n <= top), "65+") for n in reads)
    total = counts.total() or 1
    names = [name for _, name in _REUSE_BUCKETS] + ["65+"]
    return {name: counts[name] / total for name in names if counts[name]}

"""A fleet split in two: some endpoints only compute prompts. Who decides when, ours and others' rules.

Others' rules choose both endpoints as `prefix_cache` does, unless they say otherwise, so that a
table shows nothing but the decision. docs/how-to/prefill-decode.md has the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.prefill_stage import PrefillStage, Transfer
from extproc.router.routing.strategies.base import Candidates, Choice, Reading
from extproc.router.routing.strategies.prefix_cache.strategy import LOCAL_PREFILL, REMOTE_PREFILL

DEFAULT_TRANSFER: Final = Transfer(overhead_ms=9)
"""128 KiB a token at 100 Gbit/s: Llama 3.1 8B. The rest is a step and a half of an H100 with that model."""


class ThresholdStage(PrefillStage):
    """llm-d's order: first the endpoint that answers, as ever; if it lacks so many tokens, another prefills."""

    def __init__(self, pool: Pool, transfer: Transfer, answering: Pool, *, tokens: int) -> None:
        super().__init__(pool, transfer, answering)
        self._tokens = tokens

    def choose(
        self, reading: Reading, candidates: Candidates, count: int, adapter: str
    ) -> tuple[Choice, Pick | None]:
        reading.expect_transfer(is_computed=False)
        choice, prefill = reading.choose(candidates, count), self.propose(reading, adapter)
        first = next(row for row in reading.costs if row.endpoint == choice.names[0])
        if prefill is None or first.miss_tokens < max(1, self._tokens):
            return Choice(choice.names, LOCAL_PREFILL), None
        reading.expect_transfer(is_computed=True)
        return Choice(choice.names, REMOTE_PREFILL), prefill


class DynamoStage(PrefillStage):
    """Dynamo's: whoever prefills is chosen by overlap and load, whoever answers by load alone; always both."""

    def choose(
        self, reading: Reading, candidates: Candidates, count: int, adapter: str
    ) -> tuple[Choice, Pick | None]:
        reading.choose(candidates, count)
        prefill = self.propose(reading, adapter)
        names = tuple(sorted(candidates.names, key=candidates.in_flight)[:count])
        reading.expect_transfer(is_computed=prefill is not None)
        return Choice(names, REMOTE_PREFILL if prefill else LOCAL_PREFILL), prefill


DECIDERS: Final[Mapping[str, Callable[[Pool, Transfer, Pool], PrefillStage]]] = MappingProxyType(
    {
        "ours": PrefillStage,
        **{
            f"llm-d {tokens}": partial(ThresholdStage, tokens=tokens)
            for tokens in (0, 16, 512, 2048)
        },
        "Dynamo": DynamoStage,
    }
)


@dataclass(frozen=True, slots=True)
class FleetSplit:
    """The last `prefill` endpoints of a fleet only compute prompts; `decider` is one of `DECIDERS`."""

    prefill: int
    decider: str = "ours"
    transfer: Transfer = DEFAULT_TRANSFER

    def build(self, pool: Pool, answering: Pool) -> PrefillStage:
        return DECIDERS[self.decider](pool, self.transfer, answering)

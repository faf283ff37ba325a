"""What an engine tells of its KV cache, in vLLM's three kinds of event."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks, one chained 64-bit hash each, became reusable; `parent_hash` of `None`: a prompt's head.

    `token_ids` holds the tokens of all of them; empty if the engine was given hashes only.
    """

    block_hashes: Sequence[int]
    parent_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    extra_key: str = ""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks were evicted."""

    block_hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole prefix cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
EventSink = Callable[[KvEvent], None]

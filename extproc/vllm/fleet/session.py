"""Sessions: what one simulated client asks, turn by turn, and which text it has in common with others."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class _Text(IntEnum):
    """Whose text a block holds; keeps the identities of the three apart."""

    OWN = 0
    FAMILY = 1
    DISCARDED = 2


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request: `prompt_tokens` counts the whole history; it is sent `think_s` after the last answer."""

    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """Turns of one growing text, named `owner`; `key` is its routing key.

    Its first `family_tokens` are the text named `family`, which many sessions have in common. Where
    `is_replayed`, the history of later prompts holds recorded replies and not what the model generates.
    """

    owner: int
    key: int
    turns: tuple[PlannedTurn, ...]
    family: int = 0
    family_tokens: int = 0
    is_replayed: bool = False

    def hashes(self, turn: int, block_size: int, number: int) -> Sequence[int]:
        """Returns one identity per full block of a turn's prompt and output, chained by construction.

        `number` tells the outputs of replayed prompts apart, which no later prompt contains.
        """
        asked = self.turns[turn]
        blocks = (asked.prompt_tokens + asked.output_tokens) // block_size
        kept = asked.prompt_tokens // block_size if self.is_replayed else blocks
        head = min(self.family_tokens // block_size, kept)
        own = _blocks(_Text.OWN, self.owner, head, kept)
        if not head and kept == blocks:
            return own
        discarded = _blocks(_Text.DISCARDED, number, kept, blocks)
        return (*_blocks(_Text.FAMILY, self.family, 0, head), *own, *discarded)


def _blocks(text: _Text, name: int, start: int, stop: int) -> range:
    first = (name * len(_Text) + text) << 24
    return range(first + start, first + stop)

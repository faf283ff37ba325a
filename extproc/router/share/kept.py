"""The prompts of one peer's open requests, to be touched at their ends."""

from collections import OrderedDict
from typing import Final

from extproc.router.share.messages import Picked

KEPT: Final = 2_048
# Of all prompts together; each takes some 40 bytes. A long prompt has some hundred of them.
KEPT_BLOCKS: Final = 131_072


class Kept:
    """The newest ones, so many and of so many blocks: of a peer that says no ends nothing grows on and on."""

    __slots__ = ("_blocks", "_picks")

    def __init__(self) -> None:
        self._picks: OrderedDict[int, Picked] = OrderedDict()
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._picks)

    def put(self, pick: Picked) -> None:
        self.take(pick.number)
        self._picks[pick.number] = pick
        self._blocks += len(pick.hashes)
        while len(self._picks) > KEPT or self._blocks > KEPT_BLOCKS:
            self._blocks -= len(self._picks.popitem(last=False)[1].hashes)

    def take(self, number: int) -> Picked | None:
        """Returns a request's pick, which is not kept any more; `None` where it is not kept."""
        pick = self._picks.pop(number, None)
        if pick is not None:
            self._blocks -= len(pick.hashes)
        return pick

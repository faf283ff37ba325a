"""The KV cache of an engine, by the run of blocks: what a fleet of thousands can afford.

A text is cached from its start: a request that uses a block uses those before it too, and of blocks
that fall idle together the last is evicted first. So a text needs three numbers: how much of it is
there, how much of that is in use, and in which order the rest was left. A request then costs the
number of its texts, not of its blocks. `BlockCache` does the same by the block, for prompts that
are any tokens at all.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final


class Path:
    """The blocks of a prompt and its output as runs: (text, where in the path its run stops), in order.

    A text begins at the same place of every path that has it, behind the same texts.
    """

    __slots__ = ("blocks", "runs")

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self.runs: Final = runs
        self.blocks: Final = runs[-1][1] if runs else 0

    def __len__(self) -> int:
        return self.blocks

    def __repr__(self) -> str:
        return f"<Path {self.runs}>"

    def cut(self, stop: int) -> Iterator[tuple[int, int]]:
        """Yields (text, how much of it) for the first `stop` blocks."""
        start = 0
        for text, end in self.runs:
            if start >= stop:
                return
            if end > start:
                yield text, min(end, stop) - start
            start = end


class _Run:
    """Blocks of one text that fell idle together."""

    __slots__ = ("start", "stop", "text")

    def __init__(self, text: "_Text", start: int, stop: int) -> None:
        self.text, self.start, self.stop = text, start, stop


class _Text:
    """The first `held` blocks of a text, of which the first `used` are in use.

    `users` counts requests by how much of the text they use; `idle` has the runs beyond `used`, the
    last blocks, which fell idle first, in front.
    """

    __slots__ = ("held", "idle", "name", "used", "users")

    def __init__(self, name: int) -> None:
        self.name = name
        self.held = self.used = 0
        self.users: dict[int, int] = {}
        self.idle: list[_Run] = []


class RunCache:
    """Counts `size` blocks and remembers runs of texts; see `BlockCache`, whose rules these are."""

    __slots__ = ("_blank", "_idle", "_texts", "free", "size")

    def __init__(self, size: int) -> None:
        self.size = self.free = self._blank = size
        self._texts: dict[int, _Text] = {}
        self._idle: OrderedDict[_Run, None] = OrderedDict()

    def __repr__(self) -> str:
        return (
            f"<RunCache of {self.size}: {self.free} free, {self.free - self._blank} of them cached>"
        )

    def match(self, names: Path, limit: int) -> tuple[int, int]:
        """Returns how many of the first `limit` blocks are cached, and how many of these are idle."""
        hits = idle = 0
        for name, end in names.runs:
            text = self._texts.get(name)
            wanted = (min(limit, end)) - hits
            if not wanted:
                continue
            if text is None:
                break
            found = min(wanted, text.held)
            hits += found
            if found > text.used:
                idle += found - text.used
            if found < wanted or hits == limit:
                break
        return hits, idle

    def share(self, names: Path, stop: int) -> None:
        """Uses the first `stop` blocks, all of them cached, for one more request."""
        for name, blocks in names.cut(stop):
            self._lengthen(self._texts[name], 0, blocks)

    def reserve(self, count: int) -> None:
        """Takes free blocks as private ones; the caller makes sure that there are enough."""
        self.free -= count
        blank = min(count, self._blank)
        self._blank -= blank
        count -= blank
        while count:
            count -= self._evict(count)

    def seal(self, names: Path, start: int, stop: int) -> None:
        """Gives a request's private blocks their names; two of the same content become one."""
        end = 0
        for name, blocks in names.cut(stop):
            begin, end = end, end + blocks
            if end <= start:
                continue
            text = self._texts.get(name)
            if text is None:
                text = self._texts[name] = _Text(name)
            before = max(0, start - begin)
            twice = min(text.held, blocks) - before
            if twice > 0:
                self._blank += twice
                self.free += twice
            text.held = max(text.held, blocks)
            self._lengthen(text, before, blocks)

    def release(self, names: Path, shared: int, private: int) -> None:
        """Ends one request's use of its blocks; the tail is evicted before the head."""
        self._blank += private
        self.free += private
        for name, blocks in reversed([*names.cut(shared)]):
            text = self._texts[name]
            self._forget_user(text, blocks)
            used = max(text.users) if text.users else 0
            if used < text.used:
                run = _Run(text, used, text.used)
                text.idle.append(run)
                self._idle[run] = None
                self.free += text.used - used
                text.used = used

    def forget(self) -> None:
        """Drops the contents of all idle blocks."""
        while self._idle:
            self._blank += self._evict(self.size)

    def clear(self) -> bool:
        """Forgets all contents; returns whether it could: vLLM refuses while a block is in use."""
        if self.free < self.size:
            return False
        self.forget()
        return True

    def _lengthen(self, text: _Text, before: int, blocks: int) -> None:
        """Lets one request use the first `blocks` of a text, of which it used `before` until now."""
        if before:
            self._forget_user(text, before)
        text.users[blocks] = text.users.get(blocks, 0) + 1
        if blocks <= text.used:
            return
        text.used = blocks
        while text.idle and text.idle[-1].start < blocks:
            run = text.idle[-1]
            woken = min(run.stop, blocks)
            self.free -= woken - run.start
            run.start = woken
            if run.start == run.stop:
                text.idle.pop()
                del self._idle[run]

    def _forget_user(self, text: _Text, blocks: int) -> None:
        left = text.users[blocks] - 1
        if left:
            text.users[blocks] = left
        else:
            del text.users[blocks]

    def _evict(self, most: int) -> int:
        """Evicts the last blocks of the run that has been idle longest; returns how many."""
        run = next(iter(self._idle))
        text, count = run.text, min(most, run.stop - run.start)
        run.stop -= count
        text.held -= count
        if run.start == run.stop:
            del self._idle[run]
            del text.idle[0]
            if not text.held:
                del self._texts[text.name]
        return count

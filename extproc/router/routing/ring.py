"""A consistent-hash ring: many positions per member, looked up clockwise.

Immutable: a change of members makes a new ring out of the old one's arrays, so that one arrival
among a thousand costs a merge and not a sort. The ring has names only; loads and health are the
caller's.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Self

from xxhash import xxh3_64_intdigest

# Cannot occur in a Kubernetes name, an address, or (checked by the settings) a configured name, so
# `vllm-1` + `10` and `vllm-11` + `0` are different positions.
SEPARATOR: Final = "\0"

Hash = Callable[[bytes], int]


class Ring:
    """Members on a circle of 64-bit hashes (Karger et al. 1997), `positions` of them per member.

    Equal whatever the order in which members came and went. `hash_` is replaceable so that a test
    can read owners off the page.
    """

    __slots__ = ("_hash", "_members", "_owners", "_positions", "_slots", "positions_per_member")

    def __init__(
        self, members: Iterable[str] = (), positions: int = 256, hash_: Hash = xxh3_64_intdigest
    ) -> None:
        self.positions_per_member = positions
        self._hash = hash_
        # A member keeps its slot for as long as it stays: owners refer to members by slot, so a
        # departure rewrites no one else's positions.
        self._members: list[str | None] = [*sorted(set(members))]
        self._slots = {name: slot for slot, name in enumerate(self._members) if name is not None}
        # One integer per position sorts several times faster than a tuple would.
        marks = sorted(
            mark << 32 | slot for name, slot in self._slots.items() for mark in self._marks(name)
        )
        self._positions = array("Q", [mark >> 32 for mark in marks])
        self._owners = array("I", [mark & 0xFFFFFFFF for mark in marks])

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, member: str) -> bool:
        return member in self._slots

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ring):
            return NotImplemented
        return self._positions == other._positions and list(self._owner_names()) == list(
            other._owner_names()
        )

    __hash__ = None  # type: ignore[assignment]  # equal rings may differ in their slots

    def walk(self, key: int) -> Iterator[str]:
        """Yields every member once, in the order in which `key` meets them clockwise.

        O(log positions) to the first; a whole turn of n members looks at about n ln n positions.
        """
        positions, owners, members = self._positions, self._owners, self._members
        seen: set[int] = set()
        start = bisect_left(positions, key)
        for leg in (range(start, len(positions)), range(start)):
            for index in leg:
                slot = owners[index]
                if slot in seen:
                    continue
                seen.add(slot)
                name = members[slot]
                assert name is not None  # noqa: S101  # owners only name taken slots
                yield name
                if len(seen) == len(self._slots):
                    return

    @classmethod
    def grown(cls, before: object, members: Iterable[str], positions: int) -> Self:
        """The ring of `members`; out of `before` where that is one of as many positions per member."""
        if isinstance(before, cls) and before.positions_per_member == positions:
            return before.replace(members)
        return cls(members, positions)

    def replace(self, members: Iterable[str]) -> Self:
        """Returns the ring of exactly `members`; cheap where few of them changed."""
        wanted = set(members)
        arrived = wanted - self._slots.keys()
        departed = self._slots.keys() - wanted
        if not arrived and not departed:
            return self
        if 4 * (len(arrived) + len(departed)) > len(wanted):
            return type(self)(wanted, self.positions_per_member, self._hash)
        ring = self._copy()
        for name in departed:
            ring._leave(name)
        for name in sorted(arrived):
            ring._join(name)
        return ring

    def _marks(self, name: str) -> list[int]:
        return sorted(
            self._hash(f"{name}{SEPARATOR}{index}".encode())
            for index in range(self.positions_per_member)
        )

    def _owner_names(self) -> Iterator[str | None]:
        return (self._members[slot] for slot in self._owners)

    def _copy(self) -> Self:
        ring = type(self)((), self.positions_per_member, self._hash)
        ring._members, ring._slots = list(self._members), dict(self._slots)
        ring._positions, ring._owners = self._positions, self._owners
        return ring

    def _join(self, name: str) -> None:
        slot = self._members.index(None) if None in self._members else len(self._members)
        self._members[slot : slot + 1] = [name]
        self._slots[name] = slot
        positions, owners = array("Q"), array("I")
        done = 0
        for mark in self._marks(name):
            cut = bisect_left(self._positions, mark)
            # Members whose hashes collide stand in the order of their names.
            while (
                cut < len(self._positions)
                and self._positions[cut] == mark
                and self._name_at(cut) < name
            ):
                cut += 1
            positions += self._positions[done:cut]
            owners += self._owners[done:cut]
            positions.append(mark)
            owners.append(slot)
            done = cut
        self._positions = positions + self._positions[done:]
        self._owners = owners + self._owners[done:]

    def _leave(self, name: str) -> None:
        slot = self._slots.pop(name)
        self._members[slot] = None
        positions, owners = array("Q"), array("I")
        done = 0
        for mark in self._marks(name):
            cut = bisect_left(self._positions, mark, done)
            while self._owners[cut] != slot:  # members whose hashes collide
                cut += 1
            positions += self._positions[done:cut]
            owners += self._owners[done:cut]
            done = cut + 1
        self._positions = positions + self._positions[done:]
        self._owners = owners + self._owners[done:]

    def _name_at(self, index: int) -> str:
        return self._members[self._owners[index]] or ""

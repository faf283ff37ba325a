"""What an engine has said of its cache in KV events: what was missed, what is lost, how full it is. Pure."""

# The rules, and why:
#
# - vLLM numbers its messages from 0. A number that goes back is another process: its cache is
#   empty. One that comes too early is a gap, which a replay may fill. It begins with the last one
#   that we have: where that is another by now, so is the process. Who was there before us is asked
#   for nothing, and what a new one said before we reached it is no fault.
# - Events name blocks of tokens, and we know text (docs/why/events.md). So what is cached is
#   inferred as ever; events are taken at their word for what ends it: a cache that was cleared, a
#   process that is new.
# - Blocks are counted and not kept. An engine stores and removes a hash once for each block of
#   memory that has it, so the difference is how many it has: from an empty cache on, until
#   something is missed. Memory of the GPU counts, and of several attention groups the first.
# - Nobody notices that the last message of all is missing. So a fault lasts until nothing was wrong
#   for a minute; an engine that says nothing while requests go there is the alert's business.
# - Reading a message holds up every request for as long: long ones, and those of many events, stay
#   unread.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta, MsgspecError, Raw, Struct, msgpack

MAX_BYTES: Final = 262_144
"""Of one message, which a prefill of 32,000 tokens fills."""
_MOST_EVENTS: Final = 4_096
_CALM_S: Final = 60.0
# No engine counts further in its life; what does is made up, and would not fit into JSON's numbers.
_LAST_NUMBER: Final = 1 << 53
_BlockTokens = Annotated[int, Meta(ge=0, le=65_536)]

_CLEARED: Final = "AllBlocksCleared"
_MEDIA: Final = frozenset({None, "GPU"})


class KvEvent(Struct, gc=False):
    """An event as vLLM 0.32 writes it; of `block_hashes` the length alone is read."""

    type: str
    block_hashes: Raw = Raw(b"\x90")
    block_size: _BlockTokens = 0
    medium: str | None = None
    group_idx: int | None = None


class _StoredRow(Struct, array_like=True, tag="BlockStored"):
    block_hashes: Raw
    parent_block_hash: Raw
    token_ids: Raw
    block_size: _BlockTokens
    lora_id: Raw = Raw(b"\xc0")
    medium: str | None = None


class _RemovedRow(Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: Raw
    medium: str | None = None


class _ClearedRow(Struct, array_like=True, tag=_CLEARED):
    block_hashes: Raw = Raw(b"\x90")
    medium: str | None = None


class _Maps(Struct, array_like=True):
    ts: float
    events: list[KvEvent]


class _Rows(Struct, array_like=True):
    ts: float
    events: list[_StoredRow | _RemovedRow | _ClearedRow]


_read_maps: Final = msgpack.Decoder(_Maps).decode
_read_rows: Final = msgpack.Decoder(_Rows).decode


def read_events(payload: bytes) -> Sequence[KvEvent] | None:
    """Reads a message, of maps or, as older releases write it, arrays; `None`: not vLLM's, or too much."""
    # Behind an array's head of one byte and a time of nine come the events.
    if (
        len(payload) > MAX_BYTES
        or payload[1:2] != b"\xcb"
        or not 0 <= _length(payload[10:]) <= _MOST_EVENTS
    ):
        return None
    try:
        events: Sequence[KvEvent] = _read_maps(payload).events
    except (MsgspecError, ValueError, RecursionError):
        try:
            events = [_as_event(row) for row in _read_rows(payload).events]
        except (MsgspecError, ValueError, RecursionError):
            return None
    return events if all(_length(event.block_hashes) >= 0 for event in events) else None


def _as_event(row: _StoredRow | _RemovedRow | _ClearedRow) -> KvEvent:
    size = row.block_size if isinstance(row, _StoredRow) else 0
    return KvEvent(str(row.__struct_config__.tag), row.block_hashes, size, row.medium)


def _length(array: bytes | Raw) -> int:
    """How many items a msgpack array has, by its head; -1: it is none."""
    head = bytes(memoryview(array)[:5]) or b"\0"
    if 0x90 <= head[0] <= 0x9F:
        return head[0] - 0x90
    size = {0xDC: 2, 0xDD: 4}.get(head[0])
    return int.from_bytes(head[1 : 1 + size]) if size else -1


@dataclass(slots=True, eq=False)
class EventLog:
    """What one publisher has said: one engine, or a data-parallel rank of it.

    `why` is what keeps it from being believed, empty for nothing, and `since_s` since when. `next`
    is the number that is due, `None`: none came yet. `missed` messages were lost for good;
    `emptied` is how often the cache was.
    """

    since_s: float
    why: str = "silent"
    next: int | None = None
    stored: int = 0
    removed: int = 0
    missed: int = 0
    emptied: int = 0
    block_tokens: int = 0
    _fault_s: float = -_CALM_S
    _held: int | None = None
    _last: int = 0

    @property
    def cached_tokens(self) -> int | None:
        """How many are in the cache; `None`: not all was heard."""
        return None if self._held is None else max(0, self._held) * self.block_tokens

    def due(self, number: int) -> int | None:
        """From where a replay is due before this number: the last that came; `None`: none is missing."""
        if self.next is None:
            return None
        first = 0 if number < self.next else self.next
        return max(0, first - 1) if first < number else None

    def receive(self, number: int, payload: bytes, now: float) -> bool:
        """Takes the next message that there is; returns whether the cache was empty since the last one."""
        if not 0 <= number <= _LAST_NUMBER:
            self.fail("garbled", now)
            return False
        if number + 1 == self.next and hash(payload) == self._last:
            return False
        self._last = hash(payload)
        is_new = self.next is not None and number < self.next
        if is_new or self.next is None:
            self._held = None if number else 0
        elif number > self.next:
            self.missed += number - self.next
            self.fail("gap", now)
        self.next = number + 1
        events = read_events(payload)
        if events is None:
            self.fail("garbled", now)
        elif self.why and now - self._fault_s >= _CALM_S:
            self.why, self.since_s = "", now
        is_cleared = False
        for event in events or ():
            if event.type == _CLEARED:
                is_cleared, self._held = True, 0
            elif event.medium in _MEDIA and not event.group_idx:
                self._count(event)
        self.emptied += is_new or is_cleared
        return is_new or is_cleared

    def fail(self, why: str, now: float) -> None:
        """Notes that something of it was not heard."""
        if self.why != why:
            self.why, self.since_s = why, now
        self._fault_s, self._held = now, None

    def _count(self, event: KvEvent) -> None:
        blocks = _length(event.block_hashes)
        if event.type == "BlockStored":
            self.stored += blocks
            self.block_tokens = event.block_size or self.block_tokens
        elif event.type == "BlockRemoved":
            self.removed += blocks
            blocks = -blocks
        else:
            blocks = 0
        if self._held is not None:
            self._held += blocks


EventLogs = dict[str, list[EventLog]]
"""What the publishers of each endpoint said, by its name; of one that names none the list is empty."""


def describe_logs(
    logs: Sequence[EventLog], now: float, kv_tokens: int | None = None
) -> dict[str, Any]:
    """What an endpoint's publishers said together, JSON-ready; `inferred`: it names none.

    Its cache has room for `kv_tokens`.
    """
    worst = min(logs, key=lambda log: (not log.why, log.since_s), default=None)
    held = [log.cached_tokens for log in logs]
    cached = sum(filter(None, held)) if held and None not in held else None
    return {
        "state": "inferred" if worst is None else "degraded" if worst.why else "confirmed",
        "why": worst.why if worst is not None else "",
        "for_s": round(now - worst.since_s, 1) if worst is not None else 0,
        "cached_tokens": cached,
        "cached_share": round(cached / kv_tokens, 3) if cached is not None and kv_tokens else None,
        "stored": sum(log.stored for log in logs),
        "removed": sum(log.removed for log in logs),
        "missed": sum(log.missed for log in logs),
        "emptied": sum(log.emptied for log in logs),
    }

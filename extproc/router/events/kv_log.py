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
# - Reading a message holds up every request for as long. So it is read in pieces, each under a
#   millisecond whatever it holds. A decoder finds the events of a message of 96 KiB in one call, 5 ns
#   for each number. A longer one is walked: 50 ns for each, and it can be left anywhere. What is longer
#   than an engine's longest stays unread.

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta, MsgspecError, Raw, Struct, msgpack

MAX_BYTES: Final = 262_144
"""Of one message, which a prefill of 32,000 tokens fills."""
_MOST_EVENTS: Final = 4_096
# Events, and bytes, that are read at once: .2 and .3 ms.
_PIECE: Final = 64
_LONG_BYTES: Final = 49_152
# A prefill of 24,000 tokens is one event. Finding it takes .8 ms, and so may reading it, whatever it holds.
_EVENT_BYTES: Final = 98_304
# A walk takes so many steps at once, .1 to .4 ms, and each passes an item or a run of numbers.
_STEPS: Final = 64
_RUN: Final = 64
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


class _Message(Struct, array_like=True):
    ts: float
    events: list[Raw]


_read_message: Final = msgpack.Decoder(_Message).decode
_read_maps: Final = msgpack.Decoder(list[KvEvent]).decode
_read_rows: Final = msgpack.Decoder(list[_StoredRow | _RemovedRow | _ClearedRow]).decode

# In msgpack a number, `nil` and the like are as long as the first byte says. Of others a number follows,
# so many bytes long, which counts bytes or items. Extensions are nothing that vLLM sends.
_NUMBER: Final = (
    rb"(?s:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcd\xd1]..|[\xcf\xd3\xcb].{8}"
    rb"|[\xce\xd2\xca].{4}|[\xcc\xd0].)"
)
_number: Final = re.compile(_NUMBER).match
_numbers: Final = re.compile(_NUMBER + b"{%d}+" % _RUN).match
_COUNTED: Final = {
    **{first + at: (1 << at, 1, 0) for first in (0xC4, 0xD9) for at in range(3)},
    0xDC: (2, 0, 1),
    0xDD: (4, 0, 1),
    0xDE: (2, 0, 2),
    0xDF: (4, 0, 2),
}


def read_events(payload: bytes) -> Iterator[Sequence[KvEvent] | None]:
    """Reads a message piece by piece, of maps or, as older releases write it, arrays.

    `None`, which is the last: not vLLM's, or too much.
    """
    # Behind an array's head of one byte and a time of nine come the events.
    if (
        len(payload) > MAX_BYTES
        or not re.match(rb"[\x92-\x9f]\xcb", payload)
        or not 0 <= _length(payload[10:15]) <= _MOST_EVENTS
    ):
        yield None
        return
    try:
        is_walked = len(payload) > _EVENT_BYTES
        events = _walk(payload) if is_walked else _read_message(payload).events
        if len(payload) > _LONG_BYTES:
            yield ()
        yield from map(_read_piece, _gather(events))
    except (MsgspecError, LookupError, ValueError, RecursionError):
        yield None


def _gather(found: Iterable[bytes | Raw]) -> Iterator[list[bytes | Raw]]:
    """As many events as are read at once; none where `found` has an empty one."""
    piece, size = list[bytes | Raw](), 0
    for event in found:
        length = memoryview(event).nbytes
        if len(piece) == _PIECE or size + length > _LONG_BYTES:
            yield piece
            piece, size = [], 0
        if length:
            piece.append(event)
            size += length
        else:
            yield []
    yield piece


def _walk(payload: bytes) -> Iterator[bytes]:
    """The events of a long message; an empty one where a turn should end.

    Raises `LookupError` where the message ends before them, `ValueError` for one that is too long.
    """
    at, count = _pass(payload, 10)
    steps = 0
    for _ in range(count):
        begin, left = at, 1
        while left:
            run = _numbers(payload, at) if left >= _RUN else None
            at, more = (run.end(), 1 - _RUN) if run else _pass(payload, at)
            left += more - 1
            steps += 1
            if steps % _STEPS == 0:
                yield b""
        if at - begin > _EVENT_BYTES:
            raise ValueError
        yield payload[begin:at]


def _pass(data: bytes, at: int) -> tuple[int, int]:
    """Where an item ends, or the first of those within it begins, and how many these are."""
    if number := _number(data, at):
        return number.end(), 0
    head = data[at]
    if head < 0xA0:
        return at + 1, head - 0x90 if head >= 0x90 else 2 * (head - 0x80)
    if head < 0xC0:
        return at + 1 + head - 0xA0, 0
    width, bytes_each, items_each = _COUNTED[head]
    begin = at + 1 + width
    count = int.from_bytes(data[at + 1 : begin])
    return begin + count * bytes_each, count * items_each


def _read_piece(piece: Sequence[bytes | Raw]) -> Sequence[KvEvent]:
    """Raises `MsgspecError`, `ValueError` or `RecursionError`."""
    array = b"\xdc" + len(piece).to_bytes(2) + b"".join(piece)
    if piece and _length(piece[0]) >= 0:
        events: Sequence[KvEvent] = [_as_event(row) for row in _read_rows(array)]
    else:
        events = _read_maps(array)
    if any(_length(event.block_hashes) < 0 for event in events):
        raise ValueError
    return events


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

    def receive(self, number: int, payload: bytes, now: float) -> Iterator[bool]:
        """Takes the next message that there is, piece by piece; says of each whether it emptied the cache."""
        if not 0 <= number <= _LAST_NUMBER:
            self.fail("garbled", now)
            return
        if number + 1 == self.next and hash(payload) == self._last:
            return
        self._last = hash(payload)
        is_new = self.next is not None and number < self.next
        if is_new or self.next is None:
            self._held = None if number else 0
        elif number > self.next:
            self.missed += number - self.next
            self.fail("gap", now)
        self.next = number + 1
        self.emptied += is_new
        yield is_new
        is_cleared = False
        for events in read_events(payload):
            if events is None:
                self.fail("garbled", now)
                return
            is_first = self._count_all(events) and not is_cleared
            is_cleared = is_cleared or is_first
            self.emptied += is_first and not is_new
            yield is_first
        if self.why and now - self._fault_s >= _CALM_S:
            self.why, self.since_s = "", now

    def fail(self, why: str, now: float) -> None:
        """Notes that something of it was not heard."""
        if self.why != why:
            self.why, self.since_s = why, now
        self._fault_s, self._held = now, None

    def _count_all(self, events: Sequence[KvEvent]) -> bool:
        """Returns whether the cache was cleared."""
        is_cleared = False
        for event in events:
            if event.type == _CLEARED:
                is_cleared, self._held = True, 0
            elif event.medium in _MEDIA and not event.group_idx:
                self._count(event)
        return is_cleared

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

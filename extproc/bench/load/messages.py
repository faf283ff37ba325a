"""What the leader of a run and its workers say to each other: msgpack, every message of a bounded size.

The leader asks (`Order`, its `Prompts` and `Starts`, then `Ask`, `Go`, `Halt`), a worker answers (`Prepared`,
`Told`, `Noted`, `Finished`, `Refused`). Nothing is executed on reading: these are plain values. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from extproc.bench.datasets.conversation import Conversation
from extproc.bench.load.generator import Share
from extproc.bench.progress import Standing
from extproc.bench.record import ClientStats
from extproc.bench.spec.tree import Spec
from extproc.errors import ExtprocError

# Both sides refuse another's version: a run by two versions is no run.
VERSION = 2
# A whole frame; batches are closed well before. The longest prompt of a model is a few megabytes.
MOST_BYTES = 16 * 1024 * 1024
BATCH_BYTES = 1024 * 1024
_BATCH_STARTS = 50_000


class MessageError(ExtprocError):
    """The other side sent what is no message, or one that does not belong here."""


class Part(msgspec.Struct, frozen=True):
    """What a share holds besides its starts and what all of a machine's have in common."""

    process: int
    users: int
    cap: int | None
    starts: int


class Order(msgspec.Struct, frozen=True, tag="order"):
    """The head of a run: a spec, the shares of one machine, and how much follows."""

    version: int
    spec: dict[str, Any]
    model: str
    requests: int | None
    endpoint: str | None
    numbers: tuple[int, int, int]
    conversations: int
    parts: tuple[Part, ...]


class Prompts(msgspec.Struct, frozen=True, tag="prompts"):
    conversations: tuple[Conversation, ...]


class Starts(msgspec.Struct, frozen=True, tag="starts"):
    """Starts of a machine's shares, in the order of its `parts`."""

    starts: tuple[tuple[int, float], ...]


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """What do your clocks say?"""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The run begins at this reading of the worker's monotonic clock."""

    monotonic_s: float


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """The run ends now."""


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """Every load process of the worker can start."""


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What the worker's clocks say: the monotonic one, and the time of day."""

    monotonic_s: float
    time_s: float


class News(msgspec.Struct, frozen=True, tag="news"):
    standing: Standing


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """Requests that have ended, as lines of a `parts.RecordStore`."""

    lines: bytes


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """All was sent, in so many lines."""

    stats: tuple[ClientStats, ...]
    lines: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str


Question = Order | Prompts | Starts | Ask | Go | Halt
Reply = Prepared | Told | News | Noted | Finished | Refused
_T = TypeVar("_T")


def encode(message: Question | Reply) -> bytes:
    """Raises `MessageError` for one that the other side would not take."""
    try:
        data = msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"cannot be sent to a worker: {error}") from None
    if len(data) > MOST_BYTES:
        raise MessageError(f"a message of {len(data):,} bytes: {MOST_BYTES:,} are allowed")
    return data


def decode_question(data: bytes) -> Question:
    return _decode(data, _QUESTIONS)


def decode_reply(data: bytes) -> Reply:
    return _decode(data, _REPLIES)


_QUESTIONS: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a message: {error}") from None


def list_orders(shares: Sequence[Share]) -> Iterator[Order | Prompts | Starts]:
    """Yields what one machine must hear to offer these shares, which have all but their starts in common."""
    first = shares[0]
    yield Order(
        version=VERSION,
        spec=first.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        model=first.model,
        requests=first.requests,
        endpoint=first.endpoint,
        numbers=(first.numbers.start, first.numbers.stop, first.numbers.step),
        conversations=len(first.conversations),
        parts=tuple(Part(share.process, share.users, share.cap, len(share.starts)) for share in shares),
    )
    yield from (Prompts(batch) for batch in cut_batches(first.conversations))
    starts = [start for share in shares for start in share.starts]
    for place in range(0, len(starts), _BATCH_STARTS):
        yield Starts(tuple(starts[place : place + _BATCH_STARTS]))


def cut_batches(items: Iterable[_T]) -> Iterator[tuple[_T, ...]]:
    """Cuts values into batches of about a megabyte; a larger one comes alone."""
    batch: list[_T] = []
    size = 0
    for item in items:
        length = len(msgspec.msgpack.encode(item))
        if batch and size + length > BATCH_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield tuple(batch)


class Gathering:
    """An order as it comes in: complete when all that its head announces is there."""

    def __init__(self, order: Order) -> None:
        if order.version != VERSION:
            raise MessageError(f"the leader speaks version {order.version}, this worker {VERSION}")
        self._order = order
        self._conversations: list[Conversation] = []
        self._starts: list[tuple[int, float]] = []
        self._wanted = sum(part.starts for part in order.parts)

    @property
    def is_complete(self) -> bool:
        return len(self._conversations) == self._order.conversations and len(self._starts) == self._wanted

    def add(self, message: Prompts | Starts) -> None:
        """Raises `MessageError` for more than was announced: nobody fills a worker's memory unseen."""
        if isinstance(message, Prompts):
            self._conversations.extend(message.conversations)
        else:
            self._starts.extend(message.starts)
        if len(self._conversations) > self._order.conversations or len(self._starts) > self._wanted:
            raise MessageError("more prompts or starts than announced")

    def build(self, spec: Spec) -> list[Share]:
        """Returns the shares as they were cut."""
        order, starts = self._order, iter(self._starts)
        common = Share(
            process=0,
            spec=spec,
            model=order.model,
            conversations=tuple(self._conversations),
            requests=order.requests,
            numbers=range(*order.numbers),
            endpoint=order.endpoint,
        )
        return [
            replace(
                common,
                process=part.process,
                users=part.users,
                cap=part.cap,
                starts=tuple(next(starts) for _ in range(part.starts)),
            )
            for part in order.parts
        ]

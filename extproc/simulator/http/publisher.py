"""KV cache events over ZMQ, in the format of vLLM 0.32.0 (extra `simulator`)."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from extproc.errors import MissingExtra, SettingsError
from extproc.simulator.engine.records import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from extproc.simulator.http.driver import KEY_SEPARATOR

HIGH_WATER_MARK = 100_000


class StoredMessage(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class RemovedMessage(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class ClearedMessage(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[StoredMessage | RemovedMessage | ClearedMessage]
    data_parallel_rank: int = 0


class Socket(Protocol):
    """What the publisher needs of a ZMQ socket."""

    def send_multipart(self, msg_parts: Sequence[bytes]) -> object: ...


class Publisher:
    """Sends the events of each step as one numbered message; `flush` ends a step.

    `endpoint` is the address where `socket` publishes, for `/kv_event_sources`.
    """

    def __init__(
        self, socket: Socket, endpoint: str, topic: str, epoch_s: Callable[[], float]
    ) -> None:
        self.endpoint = endpoint
        self.topic = topic
        self._socket = socket
        self._epoch_s = epoch_s
        self._events: list[StoredMessage | RemovedMessage | ClearedMessage] = []
        self._number = 0

    def collect(self, event: KvEvent) -> None:
        self._events.append(encode_event(event))

    def flush(self) -> None:
        if not self._events:
            return
        batch = msgspec.msgpack.encode(Batch(self._epoch_s(), self._events))
        self._socket.send_multipart((self.topic.encode(), self._number.to_bytes(8, "big"), batch))
        self._number += 1
        self._events = []

    def describe(self) -> dict[str, Any]:
        """Returns the description of a publisher in vLLM's `/kv_event_sources`."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": None,
            "buffer_steps": 10_000,
            "hwm": HIGH_WATER_MARK,
            "max_queue_size": 100_000,
            "topic": self.topic,
        }


def open_socket(endpoint: str) -> Any:
    """Binds a PUB socket; raises `SettingsError` if pyzmq is missing or the endpoint cannot be bound."""
    try:
        import zmq  # noqa: PLC0415, an optional extra
    except ImportError:
        raise MissingExtra("--kv-events", "simulator") from None
    socket: Any = zmq.Context.instance().socket(zmq.PUB)
    socket.set_hwm(HIGH_WATER_MARK)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as fault:
        socket.close(linger=0)
        raise SettingsError(f"{endpoint}: {fault}") from None
    return socket


def encode_event(event: KvEvent) -> StoredMessage | RemovedMessage | ClearedMessage:
    """Returns an event in vLLM's words."""
    match event:
        case BlockStored():
            return _encode_stored(event)
        case BlockRemoved():
            return RemovedMessage(list(event.block_hashes), "GPU", 0)
        case AllBlocksCleared():
            return ClearedMessage()


def _encode_stored(event: BlockStored) -> StoredMessage:
    adapter, _, salt = event.extra_key.partition(KEY_SEPARATOR)
    # Every block's key holds the adapter; only a prompt's first block holds the cache salt.
    first, others = _name_keys(adapter, salt), _name_keys(adapter, "")
    keys = [others] * len(event.block_hashes)
    if event.parent_hash is None:
        keys[0] = first
    return StoredMessage(
        block_hashes=list(event.block_hashes),
        parent_block_hash=event.parent_hash,
        token_ids=list(event.token_ids),
        block_size=event.block_size,
        lora_id=None,
        medium="GPU",
        lora_name=adapter or None,
        extra_keys=keys,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def _name_keys(adapter: str, salt: str) -> tuple[str, ...] | None:
    return tuple(filter(None, (adapter, salt))) or None

"""The seam between a transport and the services on it: one gRPC call, seen from either side.

A transport (ours, or grpcio's) opens a handler for each call and passes it the messages; the
handler answers through the call, now or later. Every method runs on the event loop and returns at
once: no coroutine per call, no await between a message and its reply.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol


class Status(IntEnum):
    """The gRPC status codes that we send (grpc/doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Call(Protocol):
    """One gRPC call, as a handler sees it. Once the call has ended, `send` and `finish` do nothing."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The request's headers by lower-case name, pseudo-headers left out."""

    @property
    def peer(self) -> str:
        """Where the client is, for a log line."""

    def send(self, message: bytes) -> None:
        """Sends one message, in the order of the calls."""

    def finish(self, status: Status = Status.OK, details: str = "") -> None:
        """Ends the call after what was sent. `details` is printable ASCII, nothing that a client chose."""


class Handler(Protocol):
    """What a service does with one call. An exception ends the call as INTERNAL; its text is not sent."""

    def on_message(self, message: bytes | bytearray) -> None:
        """Takes one message; a long one may be a `bytearray`, the handler's own."""

    def on_skipped(self, size: int) -> None:
        """A message of `size` bytes was dropped: there was no room for it."""

    def on_half_close(self) -> None:
        """The client will send no more messages. Most services answer with `Call.finish`."""

    def on_close(self) -> None:
        """The call is over: finished, cancelled, timed out, or its connection lost. Called exactly once."""


Open = Callable[[Call], Handler]

# Handlers by path: "/package.Service/Method".
Routes = Mapping[str, Open]

"""A call without a transport: what a handler sends and how it ends, for whoever looks."""

from collections.abc import Mapping
from types import MappingProxyType

from extproc.grpc_server.calls import Status


class RecordedCall:
    """A `Call` that keeps what a handler did with it."""

    metadata: Mapping[str, str] = MappingProxyType({})
    peer = "test"

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.status: Status | None = None
        self.details = ""

    def send(self, message: bytes) -> None:
        if self.status is None:
            self.sent.append(message)

    def finish(self, status: Status = Status.OK, details: str = "") -> None:
        if self.status is None:
            self.status, self.details = status, details

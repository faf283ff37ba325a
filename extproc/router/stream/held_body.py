"""The headers and the body of a request that is not routed yet, counted in the process's budgets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from re import compile as compile_pattern
from typing import Final

from extproc.errors import BodyTooLarge
from extproc.grpc_server.budget import Budget
from extproc.router.stream.events import Phase, Piece, RequestBody, RequestHeaders
from extproc.router.stream.names import CONTENT_LENGTH
from extproc.router.stream.uploads import SMALL_BYTES, Upload, Uploads

# Envoy refuses larger pieces of a body in FULL_DUPLEX_STREAMED mode.
PIECE_BYTES: Final = 62_000

# A length of more digits is above any limit.
_LENGTH: Final = compile_pattern(r"[0-9]{1,18}")

NO_REQUEST: Final = RequestHeaders({})


@dataclass(slots=True, eq=False)
class HeldBody:
    """The headers, the subset, and what has come of the body, in `messages` messages.

    `budget` counts bodies that we hold, `uploads` those that proxies buffer; both are the
    process's.
    """

    _max_body_bytes: int
    _budget: Budget
    _uploads: Uploads
    _upload: Upload | None = None
    request: RequestHeaders = NO_REQUEST
    subset: Sequence[str] | None = None
    body: bytes | bytearray = b""
    messages: int = 0

    def begin(self, request: RequestHeaders) -> None:
        self.request, self.subset = request, request.subset

    def announce(self) -> Upload | None:
        """Counts the body that a proxy will buffer; `None` where there is no room for it."""
        length = self.request.headers.get(CONTENT_LENGTH, "")
        # A body without a length may be as large as any, but most are small. The proxy itself
        # refuses a body that is too long, and buffers no more than the limit: a refusal of ours at
        # the headers reaches no HTTP/2 client that still sends.
        size = int(length) if _LENGTH.fullmatch(length) else SMALL_BYTES
        self._upload = self._uploads.announce(min(size, self._max_body_bytes))
        return self._upload

    def check(self, event: RequestBody) -> None:
        """Takes the subset from a message of the body; raises `BodyTooLarge`."""
        if event.subset is not None:
            self.subset = event.subset
        if len(self.body) + len(event.data) > self._max_body_bytes:
            raise BodyTooLarge(f"the request is larger than {self._max_body_bytes} bytes")

    def put(self, data: bytes | bytearray) -> None:
        """Keeps all of a body, and counts it until it is read.

        It is in memory already, so it counts even above the limit, and leaves less room for others.
        From now on the proxy's copy counts as what it is.
        """
        self.body = data
        self._budget.hold(len(data))
        if self._upload is not None:
            self._uploads.arrive(self._upload, len(data))

    def add(self, data: bytes | bytearray) -> bool:
        """Keeps one more message of a body; whether there is room for it."""
        if not self._budget.reserve(len(data)):
            return False
        self.messages += 1
        if not self.body:
            self.body = data
        else:
            self.body = bytearray(self.body) if isinstance(self.body, bytes) else self.body
            self.body += data
        return True

    def drop(self) -> None:
        """Drops a body that was read and need not be given back. The proxy still has its own copy."""
        self._budget.give(len(self.body))
        self.body = b""

    def forget(self) -> None:
        """Gives back what was counted; may be called again."""
        self.drop()
        if self._upload is not None:
            self._uploads.end(self._upload)
            self._upload = None
        self.request, self.subset = NO_REQUEST, None


def pieces(data: bytes | bytearray, phase: Phase, end_of_stream: bool) -> Iterator[Piece]:
    """Yields views of `data` without a copy: the sender copies each piece when it sends it."""
    view = memoryview(data)
    for start in range(0, len(data) or end_of_stream, PIECE_BYTES):
        end = start + PIECE_BYTES
        yield Piece(phase, view[start:end], end_of_stream and end >= len(data))

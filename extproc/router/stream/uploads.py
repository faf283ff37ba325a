"""The bodies that proxies buffer for us: which have room, and which give way. Pure: the time comes in."""

# A buffering proxy shows no byte of a body before all of it is there. So an upload that is slow and
# one that never comes look alike, and only time tells them apart:
#
# - An upload counts what its headers announce, until its body is here; then it counts what came.
# - Small ones may exceed the limit by half. So large announcements alone never keep them out, however
#   often they are made.
# - After a second without its body an upload is late. Where there is no room, late ones give way,
#   large ones first and the oldest of them first: their clients are answered, and the proxy drops
#   what it has of them. Nobody gives way in vain.
#
# What was tried: to count nothing of a late upload. Half-sent ones then fill the proxy. To route a
# late one without its body is not possible: its headers are answered, and the proxy waits for a
# decision about the whole body. A share for each client's address: behind a load balancer all
# clients have one address, and where Envoy does not write `x-forwarded-for`, the client does.

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from extproc.grpc_server.budget import Budget, unlimited

# Almost every chat is smaller. A body without a length is taken for one of this size.
SMALL_BYTES: Final = 1_048_576

# 125 MB/s bring the largest body in less, and a client with a small one needs no second either.
LATE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Upload:
    """One announced body. `give_way` answers its client; who drives the stream sets it."""

    size: int
    since_s: float
    give_way: Callable[[], object] | None = None


_Group = dict[Upload, None]  # in the order in which they came


@dataclass(slots=True, eq=False)
class Uploads:
    """All bodies that proxies buffer, counted in `budget`; `clock` tells the time in seconds."""

    budget: Budget
    clock: Callable[[], float]
    _fresh: _Group = field(default_factory=dict)
    _late: tuple[_Group, _Group] = field(default_factory=lambda: ({}, {}))  # large ones, small ones
    _late_bytes: int = 0

    def announce(self, size: int) -> Upload | None:
        """Counts a body that a proxy will buffer; `None` where there is no room for it."""
        extra = self.budget.limit_bytes // 2 if size <= SMALL_BYTES else 0
        now_s = self.clock()
        if not self.budget.reserve(size, extra=extra):
            self._find_late(now_s)
            missing = self.budget.used + size - self.budget.limit_bytes - extra
            if missing > self._late_bytes:
                return None
            self._clear(missing)
            self.budget.hold(size)
        upload = Upload(size, now_s)
        self._fresh[upload] = None
        return upload

    def arrive(self, upload: Upload, size: int) -> None:
        """The body is here and has `size` bytes: it counts these, and no longer gives way."""
        self._leave(upload)
        self.budget.hold(size - upload.size)
        upload.size = size

    def end(self, upload: Upload) -> None:
        """The proxy has sent the body on, or dropped it."""
        self.arrive(upload, 0)

    def _leave(self, upload: Upload) -> None:
        upload.give_way = None
        if self._fresh.pop(upload, self) is self:
            late = self._late[upload.size <= SMALL_BYTES]
            if late.pop(upload, self) is not self:
                self._late_bytes -= upload.size

    def _find_late(self, now_s: float) -> None:
        while self._fresh:
            upload = next(iter(self._fresh))
            if now_s - upload.since_s < LATE_S:
                return
            del self._fresh[upload]
            self._late[upload.size <= SMALL_BYTES][upload] = None
            self._late_bytes += upload.size

    def _clear(self, missing: int) -> None:
        for group in self._late:
            while group and missing > 0:
                upload = next(iter(group))
                missing -= upload.size
                give_way = upload.give_way
                self.end(upload)
                if give_way is not None:
                    give_way()


def unlimited_uploads() -> Uploads:
    return Uploads(unlimited(), lambda: 0.0)

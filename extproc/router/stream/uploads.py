"""The bodies that proxies buffer for us: which have room, and which give way. Pure: the time comes in."""

# A buffering proxy shows no byte of a body before all of it is there. So an upload that is slow and
# one that never comes look alike, and only time tells them apart:
#
# - An upload counts what its headers announce, until its body is here; then it counts what came.
# - Small ones may exceed the limit by half. So large announcements alone never keep them out, however
#   often they are made.
# - After a second without its body an upload is late. Where there is no room, late ones give way,
#   large ones first, and the largest of these first, of equals the oldest: their clients are answered,
#   and the proxy drops what it has of them. Nobody gives way in vain.
# - A large upload that turns late, or ends without its body, casts doubt on those that are announced
#   anew. While there is doubt they give way, too, but only to smaller ones: whoever announces the
#   largest bodies again and again keeps out nobody else's. Without doubt many came at once, and an
#   error for the one would be worse than no affinity for the other.
#
# What was tried: to count nothing of a late upload. Half-sent ones then fill the proxy. To route a
# late one without its body is not possible: its headers are answered, and the proxy waits for a
# decision about the whole body. If we end the stream, it sends on what it has, by a route whose
# retries keep it in memory; and what half-sent uploads leave with engines nothing bounds. A share
# for each client's address: behind a load balancer all clients have one address, and where Envoy
# does not write `x-forwarded-for`, the client does. A limit that is lower the larger a body is:
# a dozen announcements of falling size still fill it.

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from extproc.grpc_server.budget import Budget, unlimited

# Almost every chat is smaller. A body without a length is taken for one of this size.
SMALL_BYTES: Final = 1_048_576

# 125 MB/s bring the largest body in less, and a client with a small one needs no second either.
LATE_S: Final = 1.0

# Whoever makes room scarce with announcements breaks some of them in each second.
_DOUBT_S: Final = 10.0


@dataclass(slots=True, eq=False)
class Upload:
    """One announced body. `give_way` answers its client; who drives the stream sets it."""

    size: int
    since_s: float
    give_way: Callable[[], object] | None = None


# In the order in which they came: the large ones, the small ones.
_Groups = tuple[dict[Upload, None], dict[Upload, None]]


@dataclass(slots=True, eq=False)
class Uploads:
    """All bodies that proxies buffer, counted in `budget`; `clock` tells the time in seconds."""

    budget: Budget
    clock: Callable[[], float]
    _fresh: _Groups = field(default_factory=lambda: ({}, {}))
    _late: _Groups = field(default_factory=lambda: ({}, {}))
    _late_bytes: int = 0
    _doubt_ends_s: float = -inf

    def announce(self, size: int) -> Upload | None:
        """Counts a body that a proxy will buffer; `None` where there is no room for it."""
        extra = self.budget.limit_bytes // 2 if size <= SMALL_BYTES else 0
        now_s = self.clock()
        if not self.budget.reserve(size, extra=extra):
            self._find_late(now_s)
            missing = self.budget.used + size - self.budget.limit_bytes - extra
            doubted = self._larger_than(size) if now_s < self._doubt_ends_s else []
            if missing > self._late_bytes + sum(each.size for each in doubted):
                return None
            self._clear(missing, doubted)
            self.budget.hold(size)
        upload = Upload(size, now_s)
        self._fresh[size <= SMALL_BYTES][upload] = None
        return upload

    def arrive(self, upload: Upload, size: int) -> None:
        """The body is here and has `size` bytes: it counts these, and no longer gives way."""
        self._leave(upload)
        self.budget.hold(size - upload.size)
        upload.size = size

    def end(self, upload: Upload) -> None:
        """The proxy has sent the body on, or dropped it."""
        if upload in self._fresh[0]:
            self._doubt_ends_s = self.clock() + _DOUBT_S
        self.arrive(upload, 0)

    def _leave(self, upload: Upload) -> None:
        upload.give_way = None
        is_small = upload.size <= SMALL_BYTES
        self._fresh[is_small].pop(upload, None)
        if self._late[is_small].pop(upload, self) is not self:
            self._late_bytes -= upload.size

    def _find_late(self, now_s: float) -> None:
        for fresh, late in zip(self._fresh, self._late, strict=True):
            while fresh:
                upload = next(iter(fresh))
                if now_s - upload.since_s < LATE_S:
                    break
                del fresh[upload]
                late[upload] = None
                self._late_bytes += upload.size
        if self._late[0]:
            self._doubt_ends_s = now_s + _DOUBT_S

    def _larger_than(self, size: int) -> list[Upload]:
        return sorted((each for each in self._fresh[0] if each.size > size), key=_by_size)

    def _clear(self, missing: int, doubted: list[Upload]) -> None:
        large, small = self._late
        for upload in [*sorted(large, key=_by_size), *small, *doubted]:
            if missing <= 0:
                return
            missing -= upload.size
            give_way = upload.give_way
            self.end(upload)
            if give_way is not None:
                give_way()


def _by_size(upload: Upload) -> int:
    """The largest first; a sort leaves equals in the order in which they came."""
    return -upload.size


def unlimited_uploads() -> Uploads:
    return Uploads(unlimited(), lambda: 0.0)

"""The log: lines of JSON, or plain ones on a terminal, and a limit to how often one message is written.

Nothing of a prompt is in it.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Final, TextIO

from extproc.grpc_server.budget import TokenBucket

# As `extra` of a message that every try repeats: it is let through once a minute. Messages of one
# text that say different things have another `kind` each.
ONCE_A_MINUTE: Final = {"every_s": 60.0}


class RateLimit(logging.Filter):
    """Lets a message through a few times at once, then once a second, however often it is said.

    Messages with the same text before its arguments count as one: a flood of refusals is one
    message, whatever each of them quotes. The next one says how many were left out. DEBUG has no
    limit.
    """

    def __init__(self, clock: Callable[[], float], *, burst: int = 10, kinds: int = 256) -> None:
        super().__init__()
        self._clock = clock
        self._burst = burst
        self._kinds = kinds
        # By kind of message: how often it may be said now, and how often it was not.
        self._allowances: dict[tuple[str, int, str], tuple[TokenBucket, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        kind = (record.name, record.levelno, f"{record.msg}{getattr(record, 'kind', '')}")
        # The longest unheard goes first: a text that is never the same twice takes no memory for
        # good.
        bucket, unsaid = self._allowances.pop(kind, (None, 0))
        if bucket is None:
            every_s: float | None = getattr(record, "every_s", None)
            # A bucket may be overdrawn once.
            bucket = TokenBucket(1 / (every_s or 1.0), 0 if every_s else self._burst - 1)
        is_said = not bucket.wait_s(self._clock())
        if is_said:
            bucket.spend(1)
            record.unsaid = unsaid
        self._allowances[kind] = (bucket, 0 if is_said else unsaid + 1)
        if len(self._allowances) > self._kinds:
            del self._allowances[next(iter(self._allowances))]
        return is_said


class JsonFormatter(logging.Formatter):
    """One JSON object per line. JSON escapes whatever could break a line or a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if unsaid := getattr(record, "unsaid", 0):
            line["unsaid"] = unsaid  # of the same kind, since the last one
        if record.exc_info and record.exc_info[0]:
            # The type only: an exception's text may hold pieces of a prompt.
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line)


class PlainFormatter(logging.Formatter):
    """One line for people at a terminal, in their time; nothing in it can move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone()
        text = " | ".join(record.getMessage().splitlines())
        if unsaid := getattr(record, "unsaid", 0):
            text += f" (and {unsaid} more of this kind)"
        if record.exc_info and record.exc_info[0]:
            text += f" ({record.exc_info[0].__name__})"
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
        return f"{time:%H:%M:%S} {record.levelname:<7} {shown}"


def configure_logging(level: str, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
    """Sends this package's logs to `stream`, and warnings of others.

    Not the Kubernetes client's: it repeats with every try what `PoolKeeper` says once a minute.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter() if stream.isatty() else JsonFormatter())
    handler.addFilter(RateLimit(clock))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("extproc").setLevel(level)
    logging.getLogger("kubernetes").setLevel(logging.CRITICAL)

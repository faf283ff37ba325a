"""The log: lines of JSON, or plain ones on a terminal, and a limit to how often one message is written.

Nothing of a prompt is in it.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Final, TextIO

# As `extra` of a message that every try repeats: it is let through once a minute. Messages of one text that
# say different things have another `kind` each.
ONCE_A_MINUTE: Final = {"every_s": 60.0}


class RateLimit(logging.Filter):
    """Lets a message through a few times at once, then once a second, however often it is said.

    Messages with the same text before its arguments count as one: a flood of refusals is one message,
    whatever each of them quotes. The next one says how many were left out. DEBUG has no limit.
    """

    def __init__(self, clock: Callable[[], float], *, burst: int = 10, kinds: int = 256) -> None:
        super().__init__()
        self._clock = clock
        self._burst = burst
        self._kinds = kinds
        self._allowances: dict[tuple[str, int, str], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        text = f"{record.msg}{getattr(record, 'kind', '')}"
        kind, now_s = (record.name, record.levelno, text), self._clock()
        # The longest unheard goes first: a text that is never the same twice takes no memory for good.
        allowance = self._allowances.pop(kind, None) or _Allowance(self._burst, now_s)
        self._allowances[kind] = allowance
        if len(self._allowances) > self._kinds:
            del self._allowances[next(iter(self._allowances))]
        return allowance.takes(record, now_s, self._burst)


@dataclass(slots=True)
class _Allowance:
    """How often one kind of message may be said now, and how often it was not."""

    left: float
    seen_s: float
    unsaid: int = 0

    def takes(self, record: logging.LogRecord, now_s: float, burst: int) -> bool:
        every_s: float | None = getattr(record, "every_s", None)
        self.left = min(1 if every_s else burst, self.left + (now_s - self.seen_s) / (every_s or 1.0))
        self.seen_s = now_s
        if self.left < 1:
            self.unsaid += 1
            return False
        self.left -= 1
        record.unsaid, self.unsaid = self.unsaid, 0
        return True


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

"""What went wrong, in one short line that may be logged."""

import traceback
from pathlib import Path
from typing import Final

from aiohttp import ClientError
from dns.exception import DNSException

from extproc.errors import ExtprocError

_CHARS: Final = 300

# Their texts name addresses, certificates and files. Others may quote what they failed to parse:
# aiohttp refuses a header that ends in a newline with the whole header, and that is the token.
_QUOTABLE: Final = (ExtprocError, ClientError, OSError, DNSException)


def describe_error(error: BaseException) -> str:
    """Returns the kind of the error and what it says, or where it was raised if it may say too much."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    kind, text = type(error).__name__, shorten(str(error))
    if isinstance(error, ExtprocError):
        return text
    if isinstance(error, _QUOTABLE):
        return f"{kind}: {text}" if text else kind
    frames = traceback.extract_tb(error.__traceback__)
    return f"{kind} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else kind


def shorten(text: str) -> str:
    """Returns the text as one line of no more than 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _CHARS else f"{line[: _CHARS - 1]}…"

"""Commands ask the admin port of a running service."""

from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from extproc.errors import ExtprocError

_TIMEOUT_S: Final = 10.0


def ask_admin(request: Request) -> bytes:
    """Returns what the admin port answers. Raises `ExtprocError` where that is a refusal, or nothing."""
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # the operator's own address
            said: bytes = answer.read()
            return said
    except HTTPError as error:
        text = error.read(4096).decode(errors="replace").strip()
        raise ExtprocError(f"{request.full_url} answers {error.code}: {text}") from None
    except OSError as error:
        why = getattr(error, "reason", error)
        raise ExtprocError(f"{request.full_url} does not answer ({why})") from None

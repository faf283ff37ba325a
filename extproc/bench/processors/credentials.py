"""How a request shows who asks: a key from the environment, or a token in a file that changes."""

from pathlib import Path

from extproc.bench.record import Clock
from extproc.bench.spec.tree import Target
from extproc.errors import ExtprocError

# After a refusal the file is read again, but no sooner than this after the last time: every request of a
# load may be refused at once.
_PAUSE_S = 1.0


class NoToken(ExtprocError):
    """There is no token to send."""


class Keys:
    """Where requests take their key from: `key`, or the file of a target that has one.

    A file is read anew every `token_refresh` and after a refusal. While it has no token the old one is sent.
    """

    def __init__(self, target: Target, key: str | None, clock: Clock) -> None:
        self._path, self._every_s, self._clock = target.token_file, target.token_refresh, clock
        self._key = key
        self._read_s = self._due_s = -1e300

    def get(self) -> str | None:
        """Returns the key for a request that is sent now; raises `NoToken` if there never was one."""
        if self._path is not None and self._clock() >= self._due_s:
            try:
                self._key = _read_token(self._path)
            except NoToken:
                if self._key is None:
                    raise
            self._read_s = self._clock()
            self._due_s = self._read_s + self._every_s
        return self._key

    def refuse(self) -> None:
        """Notes that the server did not take the key."""
        self._due_s = min(self._due_s, self._read_s + _PAUSE_S)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise NoToken(f"{path}: no token in it")
    return token

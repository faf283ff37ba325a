"""Letters as bytes that only gateways of one cluster can write and read. Pure."""

# What is safe, and what is not:
#
# - Block hashes are xxh3: fast, the same everywhere, and no secret. Whoever sees one can guess
#   prompts until one fits. A secret seed would not help: xxh3 does not protect its seed.
# - So a letter is sealed as a whole: AES-256-GCM, its key derived from the cluster's secret and
#   name (HKDF, RFC 5869). That hides hashes, counts and names, and nobody without the secret can
#   write a letter, or change one. It costs half a microsecond; a keyed hash that is one (BLAKE2b)
#   takes a microsecond and more for every block.
# - A nonce is never used twice under one key: it is the peer's name, 64 bits drawn at random when
#   it starts, and a count of its letters.
# - An old letter sent once more is dropped by its number while we remember its sender. The letters
#   of a new sender have no effect, no block, no count, until it echoes a letter that we sent just
#   now; see `peers`. So recordings from before we started, or of gateways that are gone, have no
#   effect.
# - Anyone with the secret can act as a gateway.
#
# The first byte is the version of all this, and of how prompts are cut into blocks: gateways of two
# versions do not understand each other, and decide as if alone.

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import DecodeError, ValidationError
from msgspec.msgpack import Decoder, Encoder

from extproc.errors import ExtprocError
from extproc.router.share.letters import Letter

VERSION: Final = b"\x01"
MAX_BYTES: Final = 131_072

_NONCE: Final = 12
_COUNTED: Final = 4
_LETTERS: Final = 1 << (8 * _COUNTED)
_SPARE: Final = 1 << 20
_OVERHEAD: Final = len(VERSION) + _NONCE + 16
_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(Letter)
_SECRET_BYTES: Final = 16


class LetterError(ExtprocError):
    """Bytes that are no letter of this cluster; the text says in a word why."""


def read(opened: bytes) -> Letter:
    """Returns the letter in what was sealed; raises `LetterError` and nothing else."""
    try:
        return _DECODER.decode(opened)
    except (DecodeError, ValidationError):
        raise LetterError("garbled") from None


class Seal:
    """Seals one gateway's letters and opens those of the others.

    `secret` is the cluster's, 16 bytes or more that nobody can guess; raises `ValueError` for a
    shorter one.
    """

    def __init__(self, cluster: str, secret: bytes, me: int) -> None:
        if len(secret) < _SECRET_BYTES:
            raise ValueError(f"a cluster's secret has {_SECRET_BYTES} bytes or more")
        info = b"extproc share " + VERSION + cluster.encode()
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)
        self._cipher = AESGCM(key)
        self._me = me
        self.sent = 0

    @property
    def is_used_up(self) -> bool:
        """Whether there are so few letters left that it is time for another name."""
        return self.sent > _LETTERS - _SPARE

    def close(self, letter: Letter) -> bytes:
        """Returns a letter of ours as bytes, `MAX_BYTES` at most."""
        if self.sent == _LETTERS or letter.peer != self._me:
            raise ValueError("a nonce would be used twice")
        nonce = self._me.to_bytes(8) + self.sent.to_bytes(_COUNTED)
        self.sent += 1
        return VERSION + nonce + self._cipher.encrypt(nonce, _ENCODER.encode(letter), VERSION)

    def open(self, data: bytes) -> Letter:
        """Returns a peer's letter; raises `LetterError` and nothing else, whatever the bytes."""
        if len(data) > MAX_BYTES:
            raise LetterError("long")
        if data[:1] != VERSION:
            raise LetterError("version")
        if len(data) < _OVERHEAD:
            raise LetterError("short")
        nonce = data[1 : 1 + _NONCE]
        try:
            letter = read(self._cipher.decrypt(nonce, data[1 + _NONCE :], VERSION))
        except InvalidTag:
            raise LetterError("foreign") from None
        if letter.peer != int.from_bytes(nonce[:8]):
            raise LetterError("garbled")
        return letter

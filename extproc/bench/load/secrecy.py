"""TLS between a leader and its workers, from nothing but the token that they share.

Both derive one key from the token, and one certificate: the worker shows it, and the leader trusts no other.
Whoever does not know the token can neither listen nor play the worker, and there is no file to hand out.
Who asks a worker for its certificate may guess at the token from then on, at a tenth of a second a guess: a
token is as long as a key, not a word.
"""

import hashlib
import ssl
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from extproc.router.wire.certificates import Pems, load_chain

_SALT: Final = b"extproc bench worker 1"
# RFC 7914, with the parameters for interactive use: 16 MiB, and 0.1 s of a core.
_SCRYPT: Final = {"n": 2**14, "r": 8, "p": 1, "maxmem": 2**26}
# Clocks of machines differ, and a token is good for as long as it is known: RFC 5280's end of all times.
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def build_worker_context(token: str) -> ssl.SSLContext:
    """Returns what a worker listens with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load_chain(context, derive_pems(token))
    return context


def build_leader_context(token: str) -> ssl.SSLContext:
    """Returns what a leader connects with. Names do not count: the certificate is the token's own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=derive_pems(token).certificate.decode())
    return context


def derive_pems(token: str) -> Pems:
    """Returns the same key and certificate for the same token, to the byte: Ed25519 signs without chance."""
    seed = hashlib.scrypt(token.encode(), salt=_SALT, dklen=32, **_SCRYPT)
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "extproc bench worker")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .sign(key, None)
    )
    return Pems(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )

"""TLS for the listener: certificates from files, or our own; looked at again in each handshake.

Contexts are built from what was read, not from the files again: a certificate and a key that change
between two reads are of one generation.
"""

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from extproc.errors import SettingsError

_PROTOCOLS: Final = ["h2"]  # RFC 9113 §3.2

# Some clients check a certificate's dates: a short life shows which, while somebody still looks.
_LIFE: Final = timedelta(days=30)
# Clocks of two machines differ.
_SKEW: Final = timedelta(hours=1)


class Pems(NamedTuple):
    """A server's certificate chain, its key and, for mTLS, the authority that clients are signed by."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


class Files:
    """Certificates that somebody else makes and changes."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._paths = [certificate, key, *([client_ca] if client_ca else [])]

    def __call__(self) -> Pems:
        """Returns what the files hold now. Raises `SettingsError`."""
        try:
            return Pems(*(path.read_bytes() for path in self._paths))
        except OSError as error:
            raise SettingsError(f"server.tls: {error.filename}: {error.strerror}") from None


class SelfSigned:
    """A certificate of our own, which never leaves memory; another one when half its life is over.

    For gateways that require TLS and accept any certificate: it keeps readers out, not impostors.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._made: tuple[datetime, Pems] | None = None

    def __call__(self) -> Pems:
        now = self._now()
        if self._made is None or now - self._made[0] > _LIFE / 2:
            self._made = now, _sign(now)
        return self._made[1]


class Certificates:
    """What a listener shows; every handshake sees the newest that `read` returns.

    `read` raises `SettingsError` where there is nothing to be had; later the last good ones stay.
    """

    def __init__(self, read: Callable[[], Pems]) -> None:
        self._read = read
        self._seen: Pems | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Returns what to listen with. Raises `SettingsError` where certificates cannot be read now."""
        pems = self.read()
        self._context = _build(pems)
        listening = _build(pems)
        listening.sni_callback = self._choose
        return listening

    def read(self) -> Pems:
        """Raises `SettingsError`."""
        self._seen = self._read()
        return self._seen

    def read_if_changed(self) -> Pems | None:
        """Returns what `read` does, or `None` where nothing new can be read: the last good ones stay."""
        seen = self._seen
        try:
            fresh = self.read()
        except SettingsError:
            return None
        return None if fresh == seen else fresh

    def _choose(
        self, handshake: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext
    ) -> None:
        """Called in each handshake, with a server name or without one."""
        fresh = self.read_if_changed()
        if fresh is not None:
            # Files of two generations, half-written, leave the last good ones, too.
            with suppress(SettingsError):
                self._context = _build(fresh)
        if self._context is not None:
            handshake.context = self._context


def _build(pems: Pems) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    try:
        load_chain(context, pems)
        if pems.client_ca is not None:
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii", "replace"))
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            f"server.tls: the certificate or its key cannot be used: {error}"
        ) from None
    return context


def load_chain(context: ssl.SSLContext, pems: Pems) -> None:
    """Python's ssl reads a certificate and its key from a file only: this one is in memory."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pems.key + b"\n" + pems.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def _sign(now: datetime) -> Pems:
    # 40 ms to load, for one of the ways to run.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "extproc")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("extproc")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pems(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )

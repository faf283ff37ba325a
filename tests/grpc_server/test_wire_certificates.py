"""Certificates of our own: what they say, and when another one takes over."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import grpc
import pytest
from cryptography import x509

from extproc.errors import SettingsError
from extproc.grpc_server.certificates import Certificates, Pems, SelfSigned
from tests.grpc_server.serving import echo, serving_listener
from tests.tables import table

START = datetime(2026, 11, 22, tzinfo=UTC)


class CalendarClock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def test_a_certificate_of_our_own_is_valid_for_a_month_and_has_its_own_key() -> None:
    certificate = x509.load_pem_x509_certificate(SelfSigned(CalendarClock())().certificate)

    assert certificate.not_valid_before_utc == START - timedelta(hours=1)
    assert certificate.not_valid_after_utc == START + timedelta(days=30)
    assert SelfSigned(CalendarClock())().key != SelfSigned(CalendarClock())().key


def test_another_one_takes_over_when_half_its_life_is_over() -> None:
    clock = CalendarClock()
    certificates = Certificates(SelfSigned(clock))
    first = certificates.read()
    clock.now += timedelta(days=15)
    at_half = certificates.read_if_changed()
    clock.now += timedelta(seconds=1)
    second = certificates.read_if_changed()

    assert at_half is None
    assert second is not None
    assert second.certificate != first.certificate
    assert second.key != first.key
    assert certificates.read_if_changed() is None


async def test_each_handshake_sees_the_newest_and_open_connections_stay() -> None:
    clock = CalendarClock()
    async with serving_listener(tls=Certificates(SelfSigned(clock)).context()) as served:
        address = ("127.0.0.1", served.port)
        first = await asyncio.to_thread(ssl.get_server_certificate, address)
        credentials = grpc.ssl_channel_credentials(first.encode())
        options = [("grpc.ssl_target_name_override", "extproc")]
        async with grpc.aio.secure_channel(served.target, credentials, options) as channel:
            assert await echo(channel, b"before") == [b"before"]
            clock.now += timedelta(days=16)
            second = await asyncio.to_thread(ssl.get_server_certificate, address)
            assert await echo(channel, b"after") == [b"after"]

    assert first != second


@table("part", ["certificate", "key", "client_ca"])
def test_what_is_no_certificate_is_an_error(part: str) -> None:
    pems = SelfSigned(CalendarClock())()._replace(**{part: b"-----BEGIN NOTHING-----\n"})

    with pytest.raises(
        SettingsError, match=r"server\.tls: the certificate or its key cannot be used"
    ):
        Certificates(lambda: pems).context()


def test_a_key_of_another_generation_leaves_the_last_good_certificate() -> None:
    good, other = SelfSigned(CalendarClock())(), SelfSigned(CalendarClock())()
    files = [good]
    certificates = Certificates(lambda: files[-1])
    listening = certificates.context()
    handshakes = [SimpleNamespace(context=None) for _ in range(3)]
    for handshake, pems in zip(
        handshakes, (good, Pems(good.certificate, other.key), other), strict=True
    ):
        files.append(pems)
        assert listening.sni_callback is not None
        listening.sni_callback(handshake, None, listening)  # type: ignore[arg-type]  # what it sets of it
    before, broken, after = (handshake.context for handshake in handshakes)

    assert before is broken is not None
    assert after is not before

"""Gateways that share over a real NATS server; and over one that is not there."""

import asyncio
import gc
import os
import signal
import ssl
from base64 import b32encode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from hashlib import sha512
from pathlib import Path
from typing import Any, NamedTuple

import nkeys  # type: ignore[import-untyped]
import orjson
import pytest
import trustme

from extproc.router.share.courier import LetterCounts
from extproc.router.share.nats import Nats, NatsAccess
from tests.router.share.gateways import (
    Build,
    ShareGateway,
    all_running,
    end_task,
    until_counted,
    until_prompt,
)
from tests.slow.share.broker import PASSWORD, Broker, rave_over
from tests.stack.ports import free_ports
from tests.waiting import until

# The library loses a connection whose making is cancelled. Python closes it and warns: here, not
# later.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _lost_connections_end_here() -> Iterator[None]:
    yield
    gc.collect()


def over(broker: Broker, *, password: str = "password") -> Build:
    access = NatsAccess([f"nats://127.0.0.1:{broker.port}"], user="gateway", password=password)

    def build(tally: LetterCounts) -> Nats:
        return Nats(access, "llm", tally)

    return build


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path, free_ports(1)[0])


@pytest.fixture
async def three(broker: Broker) -> AsyncGenerator[list[ShareGateway]]:
    gateways = [ShareGateway(me, over(broker)) for me in (1, 2, 3)]
    async with all_running(gateways):
        yield gateways


async def test_picks_count_everywhere_whenever_the_server_comes_and_goes(
    broker: Broker, three: list[ShareGateway]
) -> None:
    """Nobody waits for the server.

    1. It is not there: picks are picks. 2. It comes: a pick counts everywhere. 3. It dies: picks go
       on, and
    the others' counts are gone. 4. It is back: all is as before. 5. A fourth comes and ends: nobody
    is lost.
    """
    one, two, _ = three
    one.pick("before").release()
    with broker:
        await until_prompt(three)
        pick = one.pick()
        await until_counted(three, 1)
        broker.kill()
        await until(lambda: two.pool.book.total == 0 and two.neighbours.lost == 2)
        two.pick("meanwhile").release()
        broker.start()
        await until_counted(three, 1)
        pick.release()
        await until_counted(three, 0)
        async with ShareGateway(4, over(broker)).running():
            await until(lambda: all(gateway.neighbours.active == 3 for gateway in three))
        await until(lambda: all(gateway.neighbours.active == 2 for gateway in three))
        assert [0, 0, 0] == [gateway.neighbours.lost for gateway in three]


async def test_a_server_that_refuses_us_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    """1. They share. 2. The server wants another password. 3. It wants the first one again: they share."""
    rules = tmp_path / "server.conf"
    users = 'authorization {users: [{user: "gateway", password: "%s"}]}'
    rules.write_text(users % "password")
    broker = Broker(tmp_path, free_ports(1)[0], ("-c", str(rules)))
    one, other = (ShareGateway(me, over(broker)) for me in (1, 2))
    with broker:
        async with one.running(), other.running():
            await until(lambda: one.neighbours.active == other.neighbours.active == 1)
            rules.write_text(users % "another")
            broker.send(signal.SIGHUP)
            await until(lambda: one.neighbours.active == other.neighbours.active == 0)
            rules.write_text(users % "password")
            broker.send(signal.SIGHUP)
            await until(lambda: one.neighbours.active == other.neighbours.active == 1)


async def test_a_server_that_hangs_keeps_nobody_from_ending(broker: Broker) -> None:
    with broker:
        gateway = ShareGateway(1, over(broker))
        async with asyncio.timeout(40), gateway.running():
            await until(lambda: gateway.counts["sent"] > 0)
            broker.send(signal.SIGSTOP)
            unsent = gateway.counts["unsent"]
            while gateway.counts["unsent"] == unsent:  # until its queue is full
                gateway.carrier.send(bytes(100_000))
                await asyncio.sleep(0)


def test_nobody_reads_a_password_in_what_is_printed() -> None:
    assert "swordfish" not in repr(
        NatsAccess(["nats://nats:4222"], user="gateway", password="swordfish")
    )


async def test_a_wrong_password_and_another_cluster_are_not_believed(
    broker: Broker, three: list[ShareGateway]
) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(broker)
        await until_prompt(three)
        shut = ShareGateway(4, over(broker, password="wrong"))
        other = ShareGateway(5, over(broker), cluster="another")
        await stack.enter_async_context(shut.running())
        await stack.enter_async_context(other.running())
        await until(lambda: shut.counts["unsent"] > 1 and three[0].counts["foreign"] > 1)

        assert shut.counts["sent"] == 0
        assert {2} == {gateway.neighbours.active for gateway in three}
        assert other.neighbours.active == 0


class Reach(NamedTuple):
    """How far a gateway gets: the peers that it hears, and the letters that it sent."""

    peers: int
    sent: int


ALONE = Reach(peers=0, sent=0)


async def share_beside(ours: NatsAccess, *others: NatsAccess) -> list[Reach]:
    """Two gateways with our access reach each other; returns how far each of the others gets."""

    def build(access: NatsAccess) -> Build:
        return lambda tally: Nats(access, "llm", tally)

    gateways = [
        ShareGateway(me, build(access)) for me, access in enumerate([ours, ours, *others], 1)
    ]
    one, other, *strangers = gateways
    async with all_running(gateways):
        await until(lambda: one.neighbours.active == other.neighbours.active == 1)
        await until(lambda: all(gateway.counts["unsent"] for gateway in strangers))
        return [Reach(gateway.neighbours.active, gateway.counts["sent"]) for gateway in strangers]


async def test_with_credentials_of_an_account_gateways_come_in_and_others_do_not(
    tmp_path: Path,
) -> None:
    operator, stranger = Operator(), Operator()
    operator.write_server(tmp_path / "server.conf")
    operator.write_user(tmp_path / "user.creds")
    stranger.write_user(tmp_path / "other.creds")
    [port] = free_ports(1)
    servers = [f"nats://127.0.0.1:{port}"]
    ours = NatsAccess(servers, credentials=str(tmp_path / "user.creds"))
    others = NatsAccess(servers, credentials=str(tmp_path / "other.creds"))
    missing = NatsAccess(servers, credentials=str(tmp_path / "no.creds"))
    with Broker(tmp_path, port, ("-c", str(tmp_path / "server.conf"))):
        reached = await share_beside(ours, others, missing, NatsAccess(servers))

    assert reached == [ALONE] * 3


async def test_over_tls_a_server_has_to_show_that_it_is_ours(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    tls = ("--tls", "--tlscert", str(tmp_path / "both.pem"), "--tlskey", str(tmp_path / "both.pem"))
    [port] = free_ports(1)

    def access(authority: trustme.CA) -> NatsAccess:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return NatsAccess(
            [f"tls://127.0.0.1:{port}"], user="gateway", password="password", tls=context
        )

    with Broker(tmp_path, port, (*PASSWORD, *tls)):
        reached = await share_beside(access(authority), access(stranger))

    assert reached == [ALONE]


async def test_a_flood_over_the_server_ends_with_its_sender(
    broker: Broker, three: list[ShareGateway]
) -> None:
    """It has the secret, and is believed. It crowds out others' letters, but keeps nobody from picking."""
    one, other, _ = three
    with broker:
        await until_prompt(three)
        task = asyncio.create_task(rave_over(broker, one.me))
        await until(lambda: one.counts["flood"] + one.counts["heard"] > 1_000)
        pick = one.pick()
        await end_task(task)
        await until_counted([other], 1)
        pick.release()
        await until_counted([other], 0)


class Operator:
    """One with one account. Writes a server's configuration and a user's credentials."""

    def __init__(self) -> None:
        self._key = _draw(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = _draw(nkeys.PREFIX_BYTE_ACCOUNT)

    def write_server(self, path: Path) -> None:
        operator = _claims(self._key, self._key, "operator", "operator")
        account = _claims(self._key, self._account, "gateways", "account", limits=_NO_LIMITS)
        name = _public(self._account)
        path.write_text(
            f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {name}: {account} }}\n"
        )

    def write_user(self, path: Path) -> None:
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        jwt = _claims(
            self._account, nkeys.from_seed(seed), "gateway", "user", subs=-1, data=-1, payload=-1
        )
        path.write_text(_paper("NATS USER JWT", jwt) + _paper("USER NKEY SEED", seed.decode()))


_NO_LIMITS = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
    "wildcards": True,
}


def _draw(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _public(key: nkeys.KeyPair) -> str:
    return bytes(key.public_key).decode()


def _claims(
    issuer: nkeys.KeyPair, subject: nkeys.KeyPair, name: str, kind: str, **more: Any
) -> str:
    claims: dict[str, Any] = {"iat": 1_700_000_000, "iss": _public(issuer), "name": name}
    claims |= {"sub": _public(subject), "nats": {"type": kind, "version": 2, **more}}
    claims["jti"] = b32encode(sha512(orjson.dumps(claims)).digest()[:32]).decode().rstrip("=")
    signed = _text({"typ": "JWT", "alg": "ed25519-nkey"}) + "." + _text(claims)
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def _text(value: object) -> str:
    return _base64(orjson.dumps(value))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _paper(what: str, text: str) -> str:
    return f"-----BEGIN {what}-----\n{text}\n------END {what}------\n\n"

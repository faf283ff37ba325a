"""An operator of NATS servers: accounts and users by signed claims (JWT), as `nsc` makes them."""

import os
from base64 import b32encode, urlsafe_b64encode
from hashlib import sha512
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import orjson


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
        jwt = _claims(self._account, nkeys.from_seed(seed), "gateway", "user", subs=-1, data=-1, payload=-1)
        path.write_text(_paper("NATS USER JWT", jwt) + _paper("USER NKEY SEED", seed.decode()))


_NO_LIMITS = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
    "wildcards": True,
}


def _draw(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _public(key: nkeys.KeyPair) -> str:
    return bytes(key.public_key).decode()


def _claims(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, name: str, kind: str, **more: Any) -> str:
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

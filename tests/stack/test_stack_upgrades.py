"""Offers to upgrade a connection: an offer of TLS is ignored, others get words and not silence."""

import pytest

from tests.stack.client import MODEL, chat_about, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.tables import table

pytestmark = pytest.mark.envoy


def offer(protocol: str) -> dict[str, str]:
    return {"Connection": "Upgrade", "Upgrade": protocol}


# Apache HttpClient 5.4 and later sends it with GET, HEAD and OPTIONS (RFC 2817).
@table("protocol", ["TLS/1.2", "tls/1.0", "TLS/1.3"])
async def test_an_offer_of_tls_is_ignored(stack: Stack, protocol: str) -> None:
    async with connect(stack.url) as session:
        for path in ("/health", "/v1/models"):
            async with session.get(path, headers=offer(protocol)) as answer:
                assert (answer.status, answer.headers.get("upgrade")) == (200, None)


@table("path, kind", [("/v1/models", "code"), ("/v1/messages", "type")])
async def test_another_upgrade_is_refused_with_words(stack: Stack, path: str, kind: str) -> None:
    async with (
        connect(stack.url) as session,
        session.get(path, headers=offer("telepathy/1")) as answer,
    ):
        error = (await answer.json())["error"]

    assert answer.status == 403
    assert "does not upgrade" in error["message"]
    assert error[kind] in {"upgrade_refused", "permission_error"}


async def test_a_post_that_offers_a_websocket_is_refused_at_once(stack: Stack) -> None:
    for others in ((), (pool(stack.spare, name="b", models=["b"]),)):
        stack.use(pool(stack.addresses, models=[MODEL]), *others)
        async with connect(stack.url) as session:
            answer = await send(session, chat_about("x"), headers=offer("websocket"))
        assert (answer.status, "RFC 6455" in answer.error["message"]) == (400, True)

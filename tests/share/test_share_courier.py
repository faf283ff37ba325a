"""Who is remembered, and what is taken of whom."""

from extproc.routing.share.messages import Letter
from extproc.routing.share.names import name_of
from extproc.routing.share.sealed import Seal
from extproc.share.courier import _MOST_SENDERS
from tests.share.gateways import SECRET, Gateway, meshed


def test_who_is_heard_is_not_forgotten_for_others() -> None:
    """Somebody plays letters of more senders than are remembered: none of them pushes another one out."""
    gateway = Gateway(1, meshed(1, []))
    sent = [
        Seal("llm", SECRET, me).close(Letter(me, name_of("llama"), 1)) for me in range(2, _MOST_SENDERS + 7)
    ]
    for data in sent:
        gateway.courier.take(data)

    assert (gateway.counts["heard"], gateway.counts["flood"]) == (_MOST_SENDERS, 5)

    gateway.courier.take(sent[0])

    assert gateway.counts["repeated"] == 1
    assert gateway.neighbours.heard == 0

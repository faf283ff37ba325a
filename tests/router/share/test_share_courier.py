"""Which senders are remembered, and how much of our time each may take. All clocks are passed in."""

from dataclasses import dataclass, field

from extproc.grpc_server.budget import TokenBucket
from extproc.router.share.courier import MOST_SENDERS
from extproc.router.share.letters import Letter, name_of
from extproc.router.share.sealed import Seal
from tests.router.share.gateways import SECRET, ShareGateway, meshed


def test_known_senders_are_not_forgotten_for_others() -> None:
    """Somebody plays letters of more senders than are remembered: none of them pushes another one out."""
    gateway = ShareGateway(1, meshed(1, []), cpu_clock=lambda: 0.0)
    sent = [
        Seal("llm", SECRET, me).close(Letter(me, name_of("llama"), 1))
        for me in range(2, MOST_SENDERS + 7)
    ]
    for data in sent:
        gateway.courier.receive(data)
    assert (gateway.counts["heard"], gateway.counts["flood"]) == (MOST_SENDERS, 5)

    gateway.courier.receive(sent[0])

    assert gateway.counts["repeated"] == 1
    assert gateway.neighbours.active == 0


@dataclass
class LetterReader:
    """A gateway that takes so long over each letter of its only peer: on the wall, and on the CPU."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    now_s: float = 1_000.0
    ran_s: float = 0.0
    peer: Seal = field(default_factory=lambda: Seal("llm", SECRET, 2))

    def __post_init__(self) -> None:
        reader = self

        class SlowSeal(Seal):
            def open(self, data: bytes) -> Letter:
                reader.now_s += reader.wall_s
                reader.ran_s += reader.cpu_s
                return super().open(data)

        self.gateway = ShareGateway(
            1,
            meshed(1, []),
            build_seal=SlowSeal,
            clock=lambda: self.now_s,
            cpu_clock=lambda: self.ran_s,
        )

    def read(self, after_s: float = 0.0) -> str:
        """Returns what becomes of the peer's next letter."""
        self.now_s += after_s
        before = dict(self.gateway.counts)
        self.gateway.courier.receive(self.peer.close(Letter(2, name_of("llama"), 1)))
        [result] = [name for name, count in self.gateway.counts.items() if count > before[name]]
        return result


def test_a_process_that_was_stopped_while_it_read_a_letter_hears_its_peers_at_once() -> None:
    """A throttled container, a suspended machine: the peer is not to blame."""
    reader = LetterReader(wall_s=0.001, cpu_s=0.001)
    reader.read()
    reader.wall_s = 0.6

    assert ["heard"] * 20 == [reader.read(after_s=0.05) for _ in range(20)]


def test_a_sender_gets_a_tenth_of_a_core_and_no_more() -> None:
    reader = LetterReader()
    reader.read()
    reader.cpu_s = 0.3
    first = reader.read()
    reader.cpu_s = 0.0

    assert first == "heard"
    assert ["flood", "flood"] == [reader.read(), reader.read(after_s=1.9)]
    assert [reader.read(after_s=0.2) for _ in range(3)] == ["heard"] * 3


def test_senders_that_are_not_known_share_one_tenth_of_a_core() -> None:
    reader = LetterReader(cpu_s=0.3)
    assert [reader.read(), reader.read()] == ["heard", "heard"]

    stranger = Seal("llm", SECRET, 3).close(Letter(3, name_of("llama"), 1))
    reader.gateway.courier.receive(stranger)

    assert reader.gateway.counts["flood"] == 1


def test_what_is_left_is_spent_at_once_what_is_overspent_is_waited_for_and_little_is_saved_up() -> (
    None
):
    bucket = TokenBucket(10.0, 5.0)

    assert bucket.wait_s(0.0) == 0
    bucket.spend(7.0)
    assert [bucket.wait_s(0.0), bucket.wait_s(0.2)] == [0.2, 0]
    assert bucket.wait_s(1000.0) == 0
    bucket.spend(6.0)
    assert bucket.wait_s(1000.0) == 0.1
    assert bucket.wait_s(999.5) == 0.1, "a clock that stands or goes back gives nothing"

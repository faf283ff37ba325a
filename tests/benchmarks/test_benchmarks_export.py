"""What was simulated, asked of real servers: the same prompts, times and pauses."""

from pathlib import Path

import numpy as np
import pytest

from extproc.bench.datasets.chats import read_prepared
from extproc.bench.datasets.conversation import Conversation
from extproc.bench.spec.traffic import Dataset
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.fleet import FleetRun
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.http.apis.fields import ChatMessage, render
from extproc.simulator.http.tokens import FourByteTokenizer
from tests.benchmarks.export import export_run
from tests.tables import table


def read(content: bytes, folder: Path) -> list[Conversation]:
    path = folder / "sessions.jsonl"
    path.write_bytes(content)
    return read_prepared(Dataset(name="prepared", path=path), 0, np.random.default_rng(0))


def first_turns(run: FleetRun) -> list[Flight]:
    return sorted((flight for flight in run.flights if not flight.turn), key=lambda flight: flight.due_at)


def count_prompts(conversation: Conversation) -> list[int]:
    """The tokens that a simulated endpoint counts for each turn, its own answers in the history."""
    said, counts = list[ChatMessage](), list[int]()
    for turn in conversation.turns:
        said += [ChatMessage(role=message.role, content=message.content) for message in turn.messages]
        counts.append(len(FourByteTokenizer().encode(render(said))))
        said.append(ChatMessage(role="assistant", content=" bab" * turn.output_tokens))
    return counts


def test_bench_reads_the_sessions_with_their_times_lengths_and_pauses(tmp_path: Path) -> None:
    cell = MatrixCell(arm="least_load", workload="C", endpoints=2, load=0.5, warmup_s=5, measured_s=20)
    run = cell.simulate()
    conversations = read(export_run(run), tmp_path)
    assert [one.arrival_s for one in conversations] == [flight.due_at for flight in first_turns(run)]
    for conversation, flight in zip(conversations, first_turns(run), strict=True):
        told = [(turn.output_tokens, turn.think_s) for turn in conversation.turns]
        assert told == [(turn.output_tokens, turn.think_s) for turn in flight.session.turns]


@table("workload", ["T", "Tu", "H", "U", "A"])
def test_endpoint_counts_the_planned_tokens_of_a_prompt(workload: str, tmp_path: Path) -> None:
    run = MatrixCell(arm="least_load", workload=workload, endpoints=1, requests=60, load=0.5).simulate()
    counts = [count_prompts(conversation) for conversation in read(export_run(run), tmp_path)]
    planned = [[turn.prompt_tokens for turn in flight.session.turns] for flight in first_turns(run)]

    if workload == "A":
        # Histories of very short messages are shorter than what frames them.
        assert sum(map(sum, counts)) == pytest.approx(sum(map(sum, planned)), rel=0.02)
    else:
        assert counts == planned

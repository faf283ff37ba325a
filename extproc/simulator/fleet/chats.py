"""Drawing chats: lengths of questions and answers, scaled to given means, and sessions of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import log
from random import Random

from msgspec import Struct

from extproc.simulator.fleet.session import PlannedSession, PlannedTurn, Transcript

Chat = list[tuple[int, int]]
"""Of one conversation: tokens of each question and of its reply."""

Draw = Callable[[Random], float]


def lognormal(mean: float, sigma: float, low: float = 1, high: float = float("inf")) -> Draw:
    """Returns a draw with this mean, before it is clipped to `low` and `high`."""
    mu = log(mean) - sigma**2 / 2
    return lambda rng: min(max(rng.lognormvariate(mu, sigma), low), high)


@dataclass(frozen=True, slots=True)
class ChatKind:
    """What chats of one kind are like: at least `turns` of them and exponentially many more.

    `input_tokens` and `output_tokens` are what prompts (a turn's whole history) and answers are
    scaled to on average, `None` leaves them as drawn; a chat ends before a prompt, as drawn,
    exceeds `longest`.
    """

    turns: int
    more_turns: float
    question: Draw
    reply: Draw
    input_tokens: float | None = None
    output_tokens: float | None = None
    system_tokens: int = 0
    longest: int = 8192

    def draw(self, requests: int, rng: Random) -> list[Chat]:
        """Returns chats whose turns cover `requests`, cut to exactly as many."""
        chats: list[Chat] = []
        missing = requests
        while missing:
            # A chat whose first question is too long gives no request.
            if chat := self._draw_chat(rng)[:missing]:
                chats.append(chat)
                missing -= len(chat)
        return self._scale(chats)

    def prompts(self, chat: Chat) -> list[tuple[int, int]]:
        """Returns prompt and output tokens of each turn."""
        history, found = self.system_tokens, []
        for question, reply in chat:
            found.append((history + question, reply))
            history += question + reply
        return found

    def _scale(self, chats: Sequence[Chat]) -> list[Chat]:
        prompts = [prompt for chat in chats for prompt in self.prompts(chat)]
        tokens, output = (sum(column) / len(prompts) for column in zip(*prompts, strict=True))
        question_tokens = sum(
            q * (len(chat) - turn) for chat in chats for turn, (q, _) in enumerate(chat)
        )
        by_reply = self.output_tokens / output if self.output_tokens else 1.0
        history = tokens - question_tokens / len(prompts) - self.system_tokens
        wanted = (self.input_tokens or tokens) - self.system_tokens - history * by_reply
        by_question = wanted * len(prompts) / question_tokens
        return [
            [(max(1, round(q * by_question)), max(1, round(r * by_reply))) for q, r in c]
            for c in chats
        ]

    def _draw_chat(self, rng: Random) -> Chat:
        turns = self.turns + int(rng.expovariate(1 / self.more_turns))
        chat = [(round(self.question(rng)), round(self.reply(rng))) for _ in range(turns)]
        fitting = sum(prompt <= self.longest for prompt, _ in self.prompts(chat))
        return chat[:fitting]


class Demand(Struct, frozen=True):
    """How much of a workload: `requests` turns together, with pauses of `think_s` seconds on average.

    Workloads whose prefixes are shared have more of them where there are more `endpoints`. Those
    that have arrivals of their own make `rps` requests per second of them.
    """

    requests: int
    think_s: float = 0.0
    endpoints: int = 8
    rps: float = 1.0


Sessions = Iterator[PlannedSession]
Talk = Callable[[Transcript, str, float, Random], Iterable[PlannedTurn]]
"""Takes an empty script, a session's name and its mean pause in seconds; returns its turns."""


def draw_talks(talk: Talk, demand: Demand, rng: Random) -> Sessions:
    """Yields sessions without an end."""
    blank = Transcript(rng.getrandbits(63))
    for owner in count():
        yield PlannedSession(owner, tuple(talk(blank, f"session {owner}", demand.think_s, rng)))


def take_turns(
    script: Transcript, name: str, think_s: float, rng: Random, chat: Iterable[tuple[float, float]]
) -> Iterator[PlannedTurn]:
    """Yields the turns of questions and replies of these lengths, with exponential pauses between them."""
    pause_s = 0.0
    for place, (question, reply) in enumerate(chat):
        turn = script.then("user", f"{name}.q{place}", question).ask(
            f"{name}.a{place}", reply, pause_s
        )
        yield turn
        script, pause_s = script.after(turn), rng.expovariate(1 / think_s) if think_s else 0.0

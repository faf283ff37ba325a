"""Drawing chats: lengths of questions and answers, scaled to given means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from random import Random

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

    `input_tokens` and `output_tokens` are what prompts (a turn's whole history) and answers are scaled
    to on average, `None` leaves them as drawn; a chat ends before a prompt, as drawn, exceeds `longest`.
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
            # Of a chat whose first question is too long there is nothing.
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
        means = _Means.of(self, chats)
        replies = self.output_tokens / means.output if self.output_tokens else 1.0
        history = means.input - means.questions - self.system_tokens
        wanted = (self.input_tokens or means.input) - self.system_tokens - history * replies
        questions = wanted / means.questions
        return [[(_scaled(q, questions), _scaled(r, replies)) for q, r in chat] for chat in chats]

    def _draw_chat(self, rng: Random) -> Chat:
        turns = self.turns + int(rng.expovariate(1 / self.more_turns))
        chat = [(round(self.question(rng)), round(self.reply(rng))) for _ in range(turns)]
        fitting = sum(prompt <= self.longest for prompt, _ in self.prompts(chat))
        return chat[:fitting]


@dataclass(frozen=True, slots=True)
class _Means:
    """Per prompt: its tokens, its answer's tokens, the tokens of all questions in it."""

    input: float
    output: float
    questions: float

    @classmethod
    def of(cls, kind: ChatKind, chats: Sequence[Chat]) -> "_Means":
        prompts = [prompt for chat in chats for prompt in kind.prompts(chat)]
        asked = sum(q * (len(chat) - turn) for chat in chats for turn, (q, _) in enumerate(chat))
        total = len(prompts)
        return cls(sum(p for p, _ in prompts) / total, sum(o for _, o in prompts) / total, asked / total)


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))

"""What is asked: conversations, their turns, and the prompts they become."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from extproc.bench.datasets.text import BYTES, Ruler


@dataclass(frozen=True, slots=True)
class TurnMessage:
    """One message of a chat: a role of OpenAI's API and plain text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What one request adds to a conversation, and the answer that was recorded for it.

    `output_tokens` is what the request allows the answer to take; `reply` is empty if none is known. It is
    asked `think_s` after the answer before it; `None`: after what the spec's `think-time` draws.
    """

    messages: tuple[TurnMessage, ...]
    output_tokens: int
    reply: str = ""
    think_s: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order. `arrival_s` is set by traces; `body` is a whole request body to send as it is."""

    turns: tuple[ChatTurn, ...]
    arrival_s: float | None = None
    body: Mapping[str, object] | None = None

    @property
    def message_count(self) -> int:
        return sum(len(turn.messages) + bool(turn.reply) for turn in self.turns)

    @property
    def user_contents(self) -> list[str]:
        return [m.content for turn in self.turns for m in turn.messages if m.role == "user"]


def build_prompts(conversation: Conversation) -> Iterator[Conversation]:
    """Yields one single-turn conversation per turn: everything before its reply, as recorded.

    A turn without a recorded reply contributes none to the history of the next.
    """
    history: tuple[TurnMessage, ...] = ()
    for turn in conversation.turns:
        history += turn.messages
        yield replace(conversation, turns=(replace(turn, messages=history),))
        if turn.reply:
            history += (TurnMessage("assistant", turn.reply),)


def count_prompt_tokens(messages: Sequence[TurnMessage], ruler: Ruler = BYTES) -> int:
    """Returns the tokens of a prompt's messages, without what a chat template adds."""
    return sum(ruler.count(message.content) for message in messages)


def join_prompt(messages: Sequence[TurnMessage]) -> str:
    """Renders a prompt for an API without messages; a longer history extends a shorter one's text."""
    return "\n\n".join(message.content for message in messages)

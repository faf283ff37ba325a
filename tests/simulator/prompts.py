"""Prompts over HTTP for the sessions of the fleet."""

from extproc.simulator.fleet.session import PlannedSession

# Keeps the texts of sessions and of families apart, token by token.
_TEXT_TOKENS = 1 << 20


def write_prompt(session: PlannedSession, turn: int, block_size: int) -> list[int]:
    """Returns tokens with the same blocks in common that the session's identities have."""
    tokens = session.turns[turn].prompt_tokens
    head = min(session.head_tokens // block_size * block_size, tokens)
    family = session.heads[0].text if session.heads else 0
    common, own = 2 * family * _TEXT_TOKENS, (2 * session.owner + 1) * _TEXT_TOKENS
    return [*range(common, common + head), *range(own + head, own + tokens)]

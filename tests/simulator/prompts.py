"""Sessions of one growing text, and the prompts over HTTP for the sessions of the fleet."""

from extproc.simulator.fleet.session import PlannedSession, Transcript

# Keeps texts apart, token by token.
_TEXT_TOKENS = 1 << 20


def planned(
    owner: int, *turns: tuple[float, ...], head: Transcript | None = None
) -> PlannedSession:
    """A session of turns with so many prompt and output tokens, and perhaps a pause before."""
    script, found = head or Transcript(), []
    for number, (tokens, answer, *pause) in enumerate(turns):
        script = script.then("user", f"{owner}.q{number}", tokens - script.tokens)
        found.append(script.ask(f"{owner}.a{number}", answer, *pause))
        script = script.after(found[-1])
    return PlannedSession(owner, tuple(found))


def write_prompt(session: PlannedSession, turn: int) -> list[int]:
    """Returns tokens with the same blocks in common that the session's texts have."""
    asked = session.turns[turn].messages[:-1]
    starts = [(message.text % (1 << 40)) * _TEXT_TOKENS for message in asked]
    return [
        start + token
        for start, message in zip(starts, asked, strict=True)
        for token in range(message.tokens)
    ]

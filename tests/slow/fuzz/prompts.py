"""What is told and kept of prompts, and who computes them: what must hold for any prompts."""

from contextlib import suppress

import orjson

from extproc.errors import PromptError
from extproc.router.lint.heads import PromptHead, read_prompt_head
from extproc.router.lint.partings import find_partings
from extproc.router.recording.trace_rows import BLOCK_BYTES, name_blocks
from extproc.router.routing.pool import Pick
from extproc.router.routing.prompt.parse import parse
from tests.router.routing.staged import StagedFleet
from tests.slow.fuzz.choices import Choices

_WORDS = "the same text in all of them, long enough to be worth something. " * 40


def check_lint(data: bytes) -> str:
    """Any prompts part somewhere or nowhere; counts and places are true, and no text is told."""
    choices, heads = Choices(data), list[PromptHead]()
    same = choices.piece().decode("utf-8", "replace")
    while choices and len(heads) < 12:
        said = [choices.piece().decode("utf-8", "replace") for _ in range(1 + choices.byte() % 3)]
        texts = [f"SECRET{same}{each}{_WORDS}" for each in said]
        roles = ("system", "user", "assistant")
        turns = [{"role": choices.one_of(roles), "content": text} for text in texts]
        with suppress(PromptError):
            body = orjson.dumps({"messages": turns})
            heads.append(read_prompt_head(parse("/v1/chat/completions", "", body)))
    found = find_partings(heads, least_prompts=2)
    for parting, split in found:
        assert 2 <= parting.prompts <= parting.sampled == len(heads)
        assert 0 <= parting.byte <= split.at
        assert "SECRET" not in f"{parting} {parting.sentence} {heads[split.left]}"
    return f"{len(found)} partings"


def check_recording(data: bytes) -> str:
    """Names are those of the text however it comes; whole blocks keep theirs whatever follows."""
    choices = Choices(data)
    key, pieces = choices.take(8) or b"k", list[bytes]()
    while choices:
        pieces.append(choices.piece() * (1 + choices.byte() % 40))
    text = b"".join(pieces)
    size, names = name_blocks(pieces, key)
    assert (size, names) == name_blocks([text], key)
    assert len(names) == -(-size // BLOCK_BYTES)
    longer = name_blocks([text, b"x" * BLOCK_BYTES], key)[1]
    whole = size // BLOCK_BYTES
    assert longer[:whole] == names[:whole]
    return f"{len(names)} blocks"


def check_prefill(data: bytes) -> str:
    """Whoever prefills is another endpoint than who answers, and in the end nobody has work."""
    choices, fleet, picks = Choices(data), StagedFleet(), list[Pick]()
    while choices and len(picks) < 20:
        if choices.flag() and picks:
            _end(picks.pop(choices.byte() % len(picks)))
        else:
            picks.append(fleet.pick(f"{choices.piece()!r} " * (1 + choices.byte() * 8)))
            helper = picks[-1].prefill
            assert helper is None or helper.endpoint.name in "pq"
            assert picks[-1].endpoint.name in "ab"
    sent = sum(pick.prefill is not None for pick in picks)
    for pick in picks:
        _end(pick)
    assert not any((*fleet.pool.book.counts().values(), *fleet.helpers.book.counts().values()))
    return f"{sent} prefilled elsewhere"


def _end(pick: Pick) -> None:
    """As a session does: who prefills has no work from the answer's begin on."""
    if pick.prefill is not None:
        pick.prefill.release()
    pick.release()

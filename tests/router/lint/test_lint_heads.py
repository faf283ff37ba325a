"""The sample of prompts: bounded in number, bytes and time; and nothing of its text leaves."""

import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from extproc.router.lint.heads import EVERY, HEAD_BYTES, MOST_HEADS, read_prompt_head
from extproc.router.lint.partings import PoolLint, find_partings
from extproc.router.routing.picker import Query
from extproc.router.routing.prompt.parse import parse
from tests.clock import Clock
from tests.router.lint.planted import KINDS, PATHS, plant_fault, write_lines
from tests.router.routing.fleet import CHAT, Fleet, ask


def _linted() -> tuple[Fleet, PoolLint]:
    fleet = Fleet()
    lint = PoolLint("llama", fleet.clock)
    fleet.pool.listeners = (lint,)
    return fleet, lint


def test_sample_is_bounded_in_number_and_bytes() -> None:
    fleet, lint = _linted()
    for number in range(EVERY * (MOST_HEADS + 10)):
        fleet.picker.find(ask(f"chat {number}" + " 😀" * 20_000 * (number % EVERY == 0)))
    heads = lint.sample.heads()

    assert len(heads) == MOST_HEADS
    assert {sum(len(turn.text) for turn in head.turns) for head in heads} <= {
        *range(HEAD_BYTES - 64, HEAD_BYTES + 1)
    }


def test_sample_takes_every_fiftieth_request_and_no_trial() -> None:
    fleet, lint = _linted()
    for number in range(EVERY + 1):
        fleet.picker.find(Query("POST", CHAT, {}, ask("asks").body, is_trial=number < EVERY))

    assert len(lint.sample.heads()) == 1


def test_heads_are_forgotten_after_ten_minutes() -> None:
    fleet, lint = _linted()
    fleet.picker.find(ask("early"))
    fleet.clock.now_s += 599

    assert lint.sample.heads() == []


def test_what_is_told_is_found_anew_each_minute_at_most() -> None:
    clock = Clock(0.0)
    lint = PoolLint("llama", clock)
    before = lint.tell()
    clock.now_s += 59

    assert lint.tell() is before

    clock.now_s += 1

    assert lint.tell() is not before


SECRETS = st.text("QXJZ", min_size=6, max_size=12)


@given(
    secret=SECRETS,
    kind=st.sampled_from(KINDS),
    path=st.sampled_from(PATHS),
    field=st.sampled_from(["system", "role", "name", "salt", "all"]),
)
def test_nothing_of_a_text_is_told(secret: str, kind: str, path: str, field: str) -> None:
    def hide(n: int) -> bytes:
        text = plant_fault(kind, path, n).decode()
        changes = {
            "system": ("You are", f"{secret} You are"),
            "role": ('"role":"user"', f'"role":"{secret}"'),
            "name": ('"name":"', f'"name":"{secret}'),
            "salt": ("{", f'{{"cache_salt":"{secret}",'),
            "all": ("o", secret),
        }
        one, two = changes[field]
        return text.replace(one, two, 1 if field == "salt" else -1).encode()

    clock = Clock(0.0)
    lint = PoolLint("llama", clock)
    for n in range(8):
        prompt = parse(path, "", hide(n))
        for _ in range(EVERY):
            lint.sample.see(prompt)
    told = lint.tell()
    said = [encode(told).decode(), *told.lines, repr(lint.sample.heads()), repr(told)]

    assert not [text for text in said if secret[:4] in text]


@given(st.lists(st.binary(max_size=300), max_size=6), st.sampled_from(["", *PATHS]))
def test_any_prompts_can_be_compared(texts: list[bytes], path: str) -> None:
    heads = []
    for text in texts:
        said = text.decode("latin-1")
        messages = [
            {"role": said[:3], "content": said},
            {"role": "user", "content": write_lines("q")},
        ]
        body = {"messages": messages, "input": said, "system": said[:100]}
        heads.append(read_prompt_head(parse(path, "", orjson.dumps(body))))

    assert all(0 <= found.byte <= HEAD_BYTES for found, _ in find_partings(heads, 2))

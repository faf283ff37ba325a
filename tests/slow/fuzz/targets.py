"""What must hold for any input. A target returns, or the input is a finding.

Run by the fuzzer for as long as one likes, and by the tests on every input that ever was a finding.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import orjson
from msgspec.msgpack import encode as encode_letter

from extproc.errors import PromptError, ProtocolError
from extproc.grpc_server.budget import Budget
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Route
from extproc.router.routing.pool import Pool, Snapshot
from extproc.router.routing.prompt.chain import chain_of
from extproc.router.routing.prompt.json_reader import LIMITS
from extproc.router.routing.prompt.parse import Prompt, parse
from extproc.router.routing.prompt.prefix import parse_key, prefix_of, routing_key
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.router.share.letters import name_of
from extproc.router.share.pool_share import Share
from extproc.router.share.sealed import LetterError, Seal, read
from extproc.router.stream import events
from extproc.router.stream.codec import decode, encode
from extproc.router.stream.held_body import PIECE_BYTES
from extproc.router.stream.names import READ_HEADERS
from extproc.router.stream.session import Session, SessionOptions
from tests.router.outside import fixed_outside
from tests.slow.fuzz.blocks import check_blocks
from tests.slow.fuzz.choices import Choices
from tests.slow.fuzz.http2 import http2
from tests.slow.fuzz.prompts import check_lint, check_prefill, check_recording
from tests.slow.fuzz.streams import check_events, check_nats, check_uploads, check_zmtp

PATHS: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v2/embed"),
    *("/score", "/rerank", "/pooling", "/invocations", "/v1/systemone", "/inference/v1/generate"),
    *(
        "/v1/chat/completions/batch",
        "/v1/audio/transcriptions",
        "/tokenize",
        "/v1/models",
        "/unknown",
        "",
    ),
)
# So that a few bytes are a large body, and one of which a part is read.
LARGE: Final = replace(LIMITS, small_bytes=0)
TINY: Final = replace(LARGE, head_bytes=64, tail_bytes=32, medium_bytes=8, containers=4, values=8)
CONTENT_TYPES: Final = (
    "application/json",
    "multipart/form-data; boundary=X",
    "multipart/form-data",
    "",
)
KEY_NAMES: Final = (
    "header:x-session",
    "field:user",
    "conversation",
    "first_user_message",
    "prompt_head",
)
KEYS: Final = tuple(map(parse_key, KEY_NAMES))
ENDPOINTS: Final = tuple(
    Endpoint(f"vllm-{n}", f"10.0.0.{n}:8000", adapters=frozenset({"sql"})) for n in (1, 2, 3)
)
STRATEGY: Final = PrefixHash(fixed_outside(1), key=KEY_NAMES, positions=4)
SNAPSHOTS: Final = tuple(Snapshot.build(ENDPOINTS[:count], STRATEGY) for count in range(4))


def check_prompt(data: bytes) -> None:
    """Any bytes are a prompt or a `PromptError`; a prompt answers every question, within bounds."""
    choices = Choices(data)
    path, content_type = choices.one_of(PATHS), choices.one_of(CONTENT_TYPES)
    is_partial, chars = choices.flag(), choices.byte()
    body = choices.rest()
    is_form = content_type.startswith("multipart")
    texts: list[list[str]] = []
    # Read as it comes, and in another way; all of them would halve the number of inputs.
    other = ((memoryview(body), LIMITS), (body, LARGE), (body, TINY))[len(body) % 3]
    for given, limits in ((body, LIMITS), other):
        try:
            read = parse(path, content_type, given, is_partial=is_partial, limits=limits)
        except PromptError:
            is_refused = not is_form and not is_partial and limits is not TINY and _is_vllms(body)
            assert not is_refused, "an object that vLLM reads was refused"
            continue
        texts.append(_check_prompt(read, chars))
    if not is_form and not is_partial and other[1] is not TINY and _is_plain(body):
        assert texts == texts[:1] * 2, "a large body is read otherwise than a small one"


def wire(data: bytes) -> None:
    """Any messages in any order: nothing raises, at most one decision, one release; replies can be written.

    Between them the endpoints may change.
    """
    choices = Choices(data)
    pools = [_build_pool(name) for name in ("a", "b")[: 1 + choices.flag()]]
    picker = _build_picker(pools)
    _converse(picker, pools, _decoded(choices, pools, READ_HEADERS | picker.key_headers), choices)


def letter(data: bytes) -> None:
    """Whatever a faulty gateway with the secret sends is a letter that we take, or none."""
    with suppress(LetterError):
        Seal("a", bytes(16), 1).open(data)
    choices = Choices(data)
    pool = _build_pool("a")
    pool.install(SNAPSHOTS[3])
    share = Share(pool, 1)
    names = [name_of(name) for name in pool.snapshot.names]
    now = 0.0
    while choices:
        now += choices.byte() / 50
        share.heartbeat(now)
        head = [choices.byte() % 3, name_of("a"), int(now * 1e6)]
        try:
            decoded = read(
                encode_letter([*head, _some_news(choices, names), [[1, int(now * 1e6), 0]]])
            )
        except LetterError:
            decoded = read(encode_letter([*head, []]))
        share.receive(decoded, now)
        assert min(pool.book.counts().values()) >= 0
        assert not any(pool.book.ours().values())
    share.peers.check(now + 4, 0)
    assert not any(pool.book.counts().values())


def _some_news(choices: Choices, names: list[int]) -> list[object]:
    """News whose numbers and counts may be anything; now and then bytes that are not news."""
    news: list[object] = []
    for _ in range(choices.byte() % 8):
        endpoint, number = choices.one_of([*names, 5]), choices.byte()
        match choices.byte() % 5:
            case 0:
                news.append([1, number, endpoint, choices.byte(), [*choices.piece()]])
            case 1:
                news.append([2, number, endpoint, choices.byte()])
            case 2:
                news.append([3, number, {endpoint: choices.byte()}])
            case 3:
                news.append([4])
            case _:
                news.append([choices.byte(), choices.piece()])
    return news


TARGETS: Final = MappingProxyType[str, Callable[[bytes], object]](
    {
        "prompt": check_prompt,
        "wire": wire,
        "http2": http2,
        "blocks": check_blocks,
        "letter": letter,
        "zmtp": check_zmtp,
        "uploads": check_uploads,
        "nats": check_nats,
        "events": check_events,
        "lint": check_lint,
        "recording": check_recording,
        "prefill": check_prefill,
    }
)


def _is_vllms(body: bytes) -> bool:
    """Whether Python's own reader, which is vLLM's, takes the body for an object; of moderate depth."""
    try:
        return isinstance(json.loads(body), dict) and body.count(b"[") + body.count(b"{") < 500
    except (ValueError, RecursionError):
        return False


def _is_plain(body: bytes) -> bool:
    """Whether the strictest reader takes the body for an object; of little depth."""
    try:
        return isinstance(orjson.loads(body), dict) and body.count(b"[") + body.count(b"{") < 12
    except ValueError:
        return False


def _check_prompt(read: Prompt, chars: int) -> list[str]:
    texts = [read.first_user_message(chars), read.head(chars)]
    assert all(len(text) <= chars for text in texts)
    longer = [read.first_user_message(2 * chars)[:chars], read.head(2 * chars)[:chars]]
    assert read.fault or texts == longer
    texts += [read.conversation(chars), read.model or "", read.cache_salt, read.field("user") or ""]
    assert read.is_single in {True, False}
    for text in texts:
        text.encode()
    chain = chain_of(read.turns(16 * chars), seed=1)
    assert [*chain.ends] == sorted(set(chain.ends)), "a block without text"
    assert all(
        end <= reach <= chain.size for end, reach in zip(chain.ends, chain.cached_ends, strict=True)
    )
    prefix = prefix_of(read, KEYS, chars, {})
    assert prefix != "", "an empty prefix is none"
    assert (
        0 <= routing_key(prefix or "", model=read.model or "", cache_salt=read.cache_salt) < 1 << 64
    )
    return texts


def _converse(
    picker: Picker, pools: list[Pool], story: Iterable[events.Event], choices: Choices
) -> None:
    pool = choices.one_of((None, None, "a", "x"))
    budget = Budget(200)
    stream = Session(picker, SessionOptions(lambda: "id", 300, budget=budget), pool)
    replies: list[events.Reply] = []
    sent = b""
    for event in story:
        sent += event.data if isinstance(event, events.RequestBody) else b""
        new = stream.on(event)
        assert not (new and any(isinstance(reply, events.Answer) for reply in replies)), (
            "a reply after the answer"
        )
        assert all(encode(reply) for reply in new)
        replies += new
        _check_response(event, new)
    decisions = [reply for reply in replies if isinstance(reply, events.Routed | events.Answer)]
    # What is not kept of a body, or of an answer, ends a request that was routed.
    lost = [
        reply
        for reply in decisions[1:]
        if isinstance(reply, events.Answer) and reply.outcome == "no_room"
    ]
    assert len(decisions) - len(lost) <= 1, "more than one decision"
    _check_request_pieces(sent, replies)
    assert sum(pool.book.total for pool in pools) <= 1, "more than one pick"
    for _ in range(2):
        stream.close()
    assert budget.used == 0, "bytes not given back"
    assert not any(count for pool in pools for count in pool.book.counts().values()), "not released"


def _check_request_pieces(sent: bytes, replies: list[events.Reply]) -> None:
    """What is given back is what came, in order, up to one end."""
    replied = [reply.piece if isinstance(reply, events.Routed) else reply for reply in replies]
    pieces = [
        piece
        for piece in replied
        if isinstance(piece, events.Piece) and piece.phase is events.Phase.REQUEST_BODY
    ]
    assert sent.startswith(b"".join(piece.data for piece in pieces))
    assert all(len(piece.data) <= PIECE_BYTES for piece in pieces)
    assert not any(piece.end_of_stream for piece in pieces[:-1])


def _check_response(event: events.Event, replies: list[events.Reply]) -> None:
    pieces = [reply for reply in replies if isinstance(reply, events.Piece)]
    if isinstance(event, events.ResponseBody) and pieces:
        *before, last = pieces
        assert b"".join(piece.data for piece in pieces) == event.data
        assert not any(piece.end_of_stream for piece in before)
        assert last.end_of_stream == event.end_of_stream


def _build_pool(name: str) -> Pool:
    pool = Pool(name, STRATEGY)
    pool.install(SNAPSHOTS[-1])
    return pool


def _build_picker(pools: list[Pool]) -> Picker:
    names = (("m", "llama-*"), ("other",)) if len(pools) > 1 else ((),)
    return Picker(Route(pool, models=models) for pool, models in zip(pools, names, strict=True))


def _decoded(choices: Choices, pools: list[Pool], wanted: frozenset[str]) -> Iterator[events.Event]:
    while choices:
        if not (message := choices.piece()):
            choices.one_of(pools).install(choices.one_of(SNAPSHOTS))
            continue
        try:
            yield decode(message, wanted)
        except ProtocolError:
            return

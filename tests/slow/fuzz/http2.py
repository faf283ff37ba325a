"""Our HTTP/2 against `h2`: a conversation of a client's frames and a server's replies, seen by both.

After every frame both must have the same calls, messages, half-closes and resets, and end the
connection at the same frame or not at all. Where they are meant to differ stands in `RULES`, with
the reason. Then the same bytes are cut elsewhere, and our side must do the same again. In the end
nothing is left: no call without its end, no byte of the budget.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from h2.exceptions import FlowControlError, InvalidBodyLengthError, ProtocolError

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Status
from extproc.grpc_server.connection import Connection
from extproc.grpc_server.frames import Code
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.streams import (
    Closed,
    Event,
    Failed,
    HalfClosed,
    Message,
    MessageSkipped,
    Opened,
)
from tests.slow.fuzz.choices import Choices
from tests.slow.fuzz.http2_client import Http2Client
from tests.slow.fuzz.http2_reference import Call, Fact, Reference, frames_of, head_of

# Small enough for short conversations to reach them.
TIGHT: Final = WireLimits(
    streams=3,
    message_bytes=40,
    header_bytes=400,
    continuations=2,
    stream_window_bytes=60,
    connection_window_bytes=frames.DEFAULT_WINDOW + 1,
)
ROOMY: Final = 1_000_000
WORLDS: Final = ((TIGHT, ROOMY), (TIGHT, ROOMY), (TIGHT, 15), (WireLimits(), ROOMY))
PASSING_S: Final = (1.0, 8.0, 11.0, 21.0, 40.0)
STATUSES: Final = (Status.OK, Status.OK, Status.INTERNAL, Status.NOT_FOUND)

# What the server's side does: a verb, a stream, and with what.
Act = tuple[str, int, float]


class OneSidedFrame(NamedTuple):
    """One frame on which only one of the two ended the connection."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    error: ProtocolError | None
    fault: Failed | None
    resets: dict[int, Code]
    is_used: bool

    @property
    def words(self) -> str:
        """What `h2` says."""
        return str(self.error or "")

    @property
    def reason(self) -> str:
        """What we say."""
        return self.fault.reason if self.fault else ""

    def is_reset(self, code: Code) -> bool:
        return self.resets == {self.stream_id: code}

    def opens_no_update(self) -> bool:
        is_nothing = int.from_bytes(self.payload, "big") & frames.MAX_WINDOW == 0
        return self.kind == frames.WINDOW_UPDATE and bool(self.stream_id) and is_nothing

    def has_malformed_status(self) -> bool:
        is_ended = self.is_reset(Code.PROTOCOL_ERROR) or self.is_reset(Code.STREAM_CLOSED)
        return "informational" in self.words.lower() and (
            is_ended or (self.is_used and not self.resets)
        )


BLOCKS: Final = (frames.HEADERS, frames.CONTINUATION)
# Differences that are meant: what each is about, what makes us right, and where exactly it applies.
RULES: Final[Mapping[str, Callable[[OneSidedFrame], bool]]] = {
    # `h2` ends the connection, we do not.
    "trailers without END_STREAM end their stream only (RFC 9113 §8.1, §8.1.1)": lambda step: (
        "Trailers must have END_STREAM" in step.words and step.is_reset(Code.PROTOCOL_ERROR)
    ),
    "headers with :status are malformed, a stream error (RFC 9113 §8.1.1, §8.3)": OneSidedFrame.has_malformed_status,
    "a content-length unlike the DATA ends the stream only (RFC 9113 §8.1.1)": lambda step: (
        isinstance(step.error, InvalidBodyLengthError) or "content-length" in step.words
    ),
    "a stream's WINDOW_UPDATE of 0 ends the stream only (RFC 9113 §6.9)": lambda step: (
        step.opens_no_update() and (step.is_reset(Code.PROTOCOL_ERROR) or not step.resets)
    ),
    "the reserved bit of a WINDOW_UPDATE is ignored (RFC 9113 §6.9)": lambda step: (
        step.kind == frames.WINDOW_UPDATE and step.payload[0] > 0x7F and bool(step.error)
    ),
    "DATA beyond a stream's window ends the stream only (RFC 9113 §6.9)": lambda step: (
        step.kind == frames.DATA
        and isinstance(step.error, FlowControlError)
        and step.is_reset(Code.FLOW_CONTROL_ERROR)
    ),
    "priorities are ignored, a stream's dependence on itself too (RFC 9113 §5.3.2)": lambda step: (
        "may not depend on itself" in step.words
    ),
    "HEADERS may be all padding (RFC 9113 §6.2)": lambda step: (
        "invalid padding" in step.words and step.payload[0] == len(step.payload) - 1
    ),
    "a setting that means nothing to a server is ignored (RFC 9113 §6.5.2; RFC 8441 §3)": lambda step: (
        step.words.startswith("Setting 8 has invalid value")
    ),
    "ALTSVC is a frame of an unknown type (RFC 9113 §5.5; RFC 7838 §4)": lambda step: (
        step.kind == 10 and step.error is not None
    ),
    # We end the connection, `h2` does not.
    "RST_STREAM of an idle stream is a connection error (RFC 9113 §5.1, §6.4)": lambda step: (
        step.kind == frames.RST_STREAM and not step.is_used and step.fault is not None
    ),
    "the preface is not over before SETTINGS (RFC 9113 §3.4)": lambda step: (
        step.reason == "no SETTINGS after the preface"
    ),
    "header blocks are bounded in bytes and frames (RFC 9113 §10.5; CVE-2024-27316)": lambda step: (
        step.kind == frames.CONTINUATION
        and step.fault is not None
        and step.fault.code is Code.ENHANCE_YOUR_CALM
    ),
    "a header block starts with two changes of the table's size at most (RFC 7541 §4.2)": lambda step: (
        step.kind in BLOCKS and step.reason == "a header block of more than two table sizes"
    ),
    "a frame that is too long is refused at its header (RFC 9113 §4.2)": lambda step: (
        step.reason == "a frame longer than allowed"
    ),
    "HEADERS never open a stream that was used, even a reset one (RFC 9113 §5.1, §5.1.1)": lambda step: (
        step.kind in BLOCKS
        and step.is_used
        and step.reason == "HEADERS of an even or a used stream"
    ),
    "CONTINUATION of nothing is a connection error on any stream (RFC 9113 §6.10)": lambda step: (
        step.is_used and step.reason == "CONTINUATION of nothing"
    ),
    "PUSH_PROMISE from a client is an error from its first frame on (RFC 9113 §8.4)": lambda step: (
        step.kind == frames.PUSH_PROMISE and step.fault is not None
    ),
    "padding may not reach into the priority of HEADERS (RFC 9113 §6.2)": lambda step: (
        step.reason == "HEADERS too short for its priority"
    ),
}


class Match:
    """One conversation, held by our connection and by the reference."""

    def __init__(self, limits: WireLimits, budget_bytes: int) -> None:
        self.limits = limits
        self.budget_bytes = budget_bytes
        self.budget = Budget(budget_bytes)
        self.ours = Connection(limits, self.budget, 0.0)
        self.reference = Reference(limits)
        self.now_s = self.heard_s = 0.0
        self.script: list[bytes | Act] = []
        self.waiting = b""  # part of a frame
        self.facts: list[Fact] = []
        self.output = b""
        self.rule: str | None = None
        self.is_over = False

    def receive(self, data: bytes) -> None:
        """Gives the bytes to both, frame by frame; a part of a frame waits for the rest."""
        self.waiting += data
        while self.waiting and not self.is_over:
            size = len(frames.PREFACE)
            if self.script:
                size = frames.HEADER_BYTES + int.from_bytes(self.waiting[:3], "big")
            is_too_long = size > frames.HEADER_BYTES + frames.MAX_FRAME_BYTES
            if len(self.waiting) < (frames.HEADER_BYTES if is_too_long else size):
                break
            frame, self.waiting = self.waiting[:size], self.waiting[size:]
            self._receive(frame)
        if self.is_over:
            self.waiting = b""

    def _receive(self, frame: bytes) -> None:
        self.script.append(frame)
        self.heard_s = self.now_s
        stream_id = head_of(frame)[2]
        is_used = stream_id & 1 == 1 and stream_id <= self.reference.last_id
        self.ours.receive(frame, self.now_s)
        error = self.reference.take(frame)
        self._compare(frame, error, is_used=is_used)

    def act(self, act: Act) -> None:
        """The service or the clock does something; both know."""
        self.script.append(act)
        verb, stream_id, what = act
        reference = self.reference
        reference.begin()
        perform(self.ours, act, self.now_s)
        match verb:
            case "send":
                reference.on_send(stream_id, bytes(int(what)))
            case "finish":
                reference.on_finish(stream_id, Status(int(what)))
            case "reset":
                reference.on_reset(stream_id)
            case "drain":
                reference.is_draining = True
            case "tick":
                self.now_s = reference.now_s = what
                self._expect_of_time()
        self._compare(b"", None, is_used=False)

    def end(self) -> None:
        """Ends it, and looks whether anything is left."""
        self.ours.abort()
        self.facts += map(_fact, self.ours.events)
        opened = [fact[1] for fact in self.facts if fact[0] == "opened"]
        closed = [fact[1] for fact in self.facts if fact[0] == "closed"]
        assert sorted(opened) == sorted(closed), "calls are told once as opened, once as closed"
        assert not self.ours.streams
        assert self.budget.used == 0, "bytes were not given back"

    def replay(self, cut_bytes: int) -> None:
        """The same bytes, cut elsewhere, make the same events and the same output."""
        ours = Connection(self.limits, Budget(self.budget_bytes), 0.0)
        now_s, waiting, events = 0.0, b"", list[Event | Failed]()
        if sum(len(item) for item in self.script) > 4_000:
            cut_bytes = max(cut_bytes, 100)  # or a run takes a hundred times as long
        for item in [*self.script, self.waiting, ("", 0, 0.0)]:
            if isinstance(item, bytes):
                waiting += item
                continue
            for place in range(0, len(waiting), cut_bytes):
                ours.receive(waiting[place : place + cut_bytes], now_s)
                events += (
                    ours.events
                )  # what is told is worked off, as a link does: else no more is read
                ours.events.clear()
                while ours.has_more:
                    ours.receive(b"", now_s)
                    events += ours.events
                    ours.events.clear()
            waiting = b""
            now_s = item[2] if item[0] == "tick" else now_s
            perform(ours, item, now_s)
        ours.abort()
        events += ours.events
        assert [_fact(event) for event in events if not isinstance(event, Failed)] == [
            fact for fact in self.facts if fact[0] != "failed"
        ]
        assert ours.take_output() == self.output + self.ours.take_output()

    def _compare(self, frame: bytes, error: ProtocolError | None, *, is_used: bool) -> None:
        output = self.ours.take_output()
        self.output += output
        fault = next((event for event in self.ours.events if isinstance(event, Failed)), None)
        events = [_fact(event) for event in self.ours.events if not isinstance(event, Failed)]
        self.ours.events.clear()
        self.facts += events
        if fault is not None or error is not None:
            self._end_of_comparison(frame, error, fault, output, is_used=is_used)
            return
        self.reference.sent(output)
        assert _sizes(events, self.budget_bytes) == _sizes(self.reference.facts, self.budget_bytes)
        self.is_over = self.ours.is_over

    def _end_of_comparison(
        self,
        frame: bytes,
        error: ProtocolError | None,
        fault: Failed | None,
        output: bytes,
        *,
        is_used: bool,
    ) -> None:
        self.is_over = True
        if fault is not None:
            self._check_last_words(output, fault)
        if (error is None) == (fault is None) or not frame:
            return
        resets = {
            stream_id: Code(int.from_bytes(payload, "big"))
            for kind, _, stream_id, payload in frames_of(output)
            if kind == frames.RST_STREAM
        }
        step = OneSidedFrame(*head_of(frame), error, fault, resets, is_used)
        self.rule = next((name for name, applies in RULES.items() if applies(step)), None)
        assert self.rule is not None, f"a difference that no rule knows: {step}"

    def _check_last_words(self, output: bytes, fault: Failed) -> None:
        """A connection ends with GOAWAY, if it got so far as to have a preface; with nothing after it."""
        sent = list(frames_of(output))
        assert not self.ours.streams
        if self.output:
            kind, _, _, payload = sent[-1]
            assert (kind, int.from_bytes(payload[4:8], "big")) == (frames.GOAWAY, fault.code)
            self.reference.sent_goaway(payload)

    def _expect_of_time(self) -> None:
        """Lets time reset what owes something for long, and end what is silent for long."""
        limits, reference = self.limits, self.reference
        if any(isinstance(event, Failed) for event in self.ours.events):
            assert self.now_s - self.heard_s > limits.answer_s
            return
        for stream_id, call in reference.calls.items():
            if stream_id not in self.ours.streams:
                assert _is_stalled(call, self.now_s, limits.stalled_s)
                reference.resets[stream_id] = Code.CANCEL


def http2(data: bytes) -> str | None:
    """Any conversation is understood as `h2` does, but for `RULES`; returns the one that ended it, if any."""
    choices = Choices(data)
    match = Match(*choices.one_of(WORLDS))
    cut_bytes = choices.one_of((1, 3, 7, 20, 100, 1_000_000, 1_000_000, 1_000_000))
    client = Http2Client(choices)
    match.receive(client.start())
    while choices and not match.is_over:
        if choices.byte() % 4 == 3:
            match.act(_choose(choices, match))
        else:
            match.receive(client.frames())
    match.end()
    match.replay(cut_bytes)
    return match.rule


def perform(ours: Connection, act: Act, now_s: float) -> None:
    """Drives the server's side."""
    verb, stream_id, what = act
    stream = ours.streams.get(stream_id)
    match verb:
        case "send" if stream:
            ours.send(stream, bytes(int(what)))
        case "finish" if stream:
            ours.finish(stream, Status(int(what)), "what a pity" if what else "")
        case "reset" if stream:
            ours.reset(stream, Code.CANCEL)
        case "drain":
            ours.drain()
        case "tick":
            ours.tick(what)


def _choose(choices: Choices, match: Match) -> Act:
    way = choices.byte()
    if way > 245:
        return ("drain", 0, 0.0)
    if way > 230:
        return ("tick", 0, match.now_s + choices.one_of(PASSING_S))
    stream_id = choices.one_of(list(match.reference.calls) or [1])
    if way > 220:
        return ("reset", stream_id, 0.0)
    if way > 150:
        return ("finish", stream_id, float(choices.one_of(STATUSES)))
    return ("send", stream_id, float(40_000 if way > 140 else way % 40))


def _fact(event: Event) -> Fact:
    match event:
        case Opened():
            head = event.stream.head
            return ("opened", event.stream.id, {":path": head.path} | dict(head.metadata))
        case Message():
            return ("message", event.stream.id, event.data)
        case MessageSkipped():
            return ("skipped", event.stream.id, event.size)
        case HalfClosed() | Closed():
            return ("closed" if isinstance(event, Closed) else "half-closed", event.stream.id, None)
        case Failed():
            return ("failed", 0, None)


def _sizes(facts: list[Fact], budget_bytes: int) -> list[Fact]:
    """Where the budget is small a message may be skipped: only sizes count then."""
    if budget_bytes == ROOMY:
        return facts
    sized = [
        (kind, where, len(what) if isinstance(what, bytes) else what) for kind, where, what in facts
    ]
    return [("message" if kind == "skipped" else kind, where, what) for kind, where, what in sized]


def _is_stalled(call: Call, now_s: float, stalled_s: float) -> bool:
    return (call.is_owing and now_s - call.heard_s > stalled_s) or (
        bool(call.to_send) and now_s - call.sent_s > stalled_s
    )

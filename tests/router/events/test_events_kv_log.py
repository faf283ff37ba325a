"""What is made of KV events: counts, gaps, restarts; and of bytes that are none."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.events.kv_log import MAX_BYTES, EventLog, describe_logs, read_events
from tests.router.events.publishing import CLEARED, payload, removed, stored
from tests.tables import table

STORED_ROW = ["BlockStored", [1, b"2", "3"], None, [7] * 48, 16, None, "GPU"]
CPU, GROUP = {"medium": "CPU"}, {"group_idx": 1}


def log_of(*messages: tuple[int, bytes]) -> EventLog:
    log = EventLog(0.0)
    for number, message in messages:
        take_message(log, number, message, 1.0)
    return log


def take_message(log: EventLog, number: int, message: bytes, now_s: float) -> bool:
    return any([*log.receive(number, message, now_s)])


@table(
    ("events", "tokens"),
    [
        ([STORED_ROW, ["BlockRemoved", [1], "GPU"]], 32),
        ([STORED_ROW[:5], ["AllBlocksCleared"], STORED_ROW], 48),
        (
            [
                stored(5),
                stored(70, **CPU),
                removed(3, **CPU),
                stored(9, **GROUP),
                removed(1, **GROUP),
            ],
            80,
        ),
        ([stored(5), {"type": "NewInAnotherRelease", "block_hashes": [1]}], 80),
        ([stored(2, session_id="x", block_hashes=[None, {"a": 1}])], 32),
        (
            [
                stored(3, block_hashes=[5, 5, -1.5], parent_block_hash=5),
                stored(1, parent_block_hash=[{}]),
            ],
            64,
        ),
    ],
)
def test_blocks_are_counted_in_each_form_of_a_message(events: list[Any], tokens: int) -> None:
    assert log_of((0, payload(*events))).cached_tokens == tokens


def test_twelve_million_blocks_are_a_count_whatever_the_engines_clock_says() -> None:
    blocks, clocks = (
        stored(0, block_hashes=[None] * 80_000),
        (0.0, float("nan"), float("-inf"), 1e300, -5.0),
    )
    messages = [msgspec.msgpack.encode([clock, [blocks] * 3, 0]) for clock in clocks * 10]

    assert log_of(*enumerate(messages)).cached_tokens == 12_000_000 * 16


LONG = {
    "numbers of one byte": [stored(1, token_ids=[7] * 65_000)] * 4,
    "arrays in arrays": [stored(1, token_ids=[[[]]] * 40_000)] * 3,
    "keys that are numbers": [{**stored(1), "x": dict(enumerate([""] * 20_000))}] * 3,
    "a full cache": [stored(1_024, token_ids=[40_000] * 16_384), *[removed(1)] * 2_048],
    "rows": [STORED_ROW] * 3_000,
    "long names": [stored(1, lora_name="x" * 30_000, extra_keys=[b"y" * 60_000])] * 2,
}


@table("events", LONG.values(), ids=LONG)
def test_a_long_message_is_read_as_a_short_one_a_little_in_each_turn(events: list[Any]) -> None:
    message, alone = payload(*events), log_of()
    for number, event in enumerate(events):
        take_message(alone, number, payload(event), 1.0)

    found = log_of((0, message))
    assert (found.stored, found.removed, found.why) == (alone.stored, alone.removed, "")
    assert len(list(read_events(message))) > 2


@table("number, size", [(2**64 - 1, 16), (-1, 16), (1, 2**63), (1, -16)])
def test_numbers_that_no_engine_has_are_garbled(number: int, size: int) -> None:
    log = log_of((0, payload(stored(1))))
    take_message(log, number, payload(stored(1) | {"block_size": size}), 1.0)

    assert (log.why, log.missed, log.block_tokens) == ("garbled", 0, 16)


def test_a_number_that_goes_back_and_a_clear_empty_the_cache() -> None:
    log = EventLog(0.0)
    story: Any = ((0, [stored(9)]), (1, [CLEARED]), (2, []), (0, [stored(2)]), (1, []))

    assert [take_message(log, at, payload(*events), 1.0) for at, events in story] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert (log.emptied, log.cached_tokens, log.why) == (2, 32, "")
    log = log_of((7, payload(stored(1))))
    assert (log.why, log.cached_tokens, log.emptied) == ("", None, 0)
    assert take_message(log, 3, payload(stored(1)), 2.0)
    assert (log.why, log.cached_tokens, log.emptied) == ("", None, 1)


def test_a_gap_is_reported_until_nothing_was_wrong_for_a_minute_and_a_clear_makes_the_count_known() -> (
    None
):
    log = log_of((0, payload(stored(4))), (1, payload()))
    assert [log.due(number) for number in (2, 5, 1, 0, -1)] == [None, 1, 0, None, None]

    take_message(log, 5, payload(stored(1)), 10.0)
    shown = describe_logs([log], 15.0, 1_600)
    assert (shown["state"], shown["why"], shown["for_s"], shown["missed"]) == (
        "degraded",
        "gap",
        5.0,
        3,
    )
    assert (shown["cached_tokens"], shown["cached_share"]) == (None, None)
    take_message(log, 6, payload(CLEARED, stored(5)), 60.0)
    assert (log.why, log.cached_tokens) == ("gap", 80)
    take_message(log, 7, payload(), 70.0)

    shown = describe_logs([log], 71.0, 1_600)
    assert (shown["state"], shown["cached_share"]) == ("confirmed", 0.05)


def test_ranks_are_one_endpoint_and_the_worst_of_them_is_reported() -> None:
    well, deaf = log_of((0, payload(stored(2)))), EventLog(0.5)

    assert describe_logs([], 9.0)["state"] == "inferred"
    assert describe_logs([well, well], 9.0)["cached_tokens"] == 64
    shown = describe_logs([well, deaf], 9.0)
    found = shown["state"], shown["why"], shown["for_s"], shown["cached_tokens"]
    assert found == ("degraded", "silent", 8.5, None)


TIME = msgspec.msgpack.encode(1.5)
BAD = [
    *(b"", b"\x93", b"\xc1" * 40, b"\x92" + TIME, payload(stored(3))[:-9], b"\x91" * 100_000),
    b"\x92" + TIME + b"\xdd\x00\x98\x96\x80" + b"\xc0" * 100_000,  # ten million events
    b"\x92"
    + TIME
    + b"\x91\x82\xa4type\xabBlockStored\xacblock_hashes\xdd\x00\x98\x96\x80",  # as many blocks
    *(
        payload(*[{"type": ""}] * 4_097),
        payload(stored(1, token_ids=[7] * MAX_BYTES)),
        payload(7, []),
    ),
    *(
        payload({"type": 1}),
        payload({"type": "BlockStored", "block_hashes": 7}),
        payload(["BlockStored", 7]),
    ),
    *(
        payload(["BlockStored", 7, None, [], 16]),
        payload({"block_hashes": [1]}),
        payload([[["x"]]]),
    ),
]


@table("message", BAD)
def test_a_message_that_is_not_vllms_is_noted_and_the_next_one_counts(message: bytes) -> None:
    log = log_of((0, message), (1, payload(CLEARED, stored(1))))

    assert None in read_events(message)
    assert (log.why, log.cached_tokens, log.next) == ("garbled", 16, 2)


EVENTS = st.lists(
    st.one_of(
        st.builds(stored, st.integers(0, 40)),
        st.builds(removed, st.integers(0, 40)),
        st.just(CLEARED),
    )
)


@given(st.lists(EVENTS, min_size=1), st.data())
def test_any_messages_cut_or_changed_anywhere_are_read_or_refused(
    messages: list[Any], data: st.DataObject
) -> None:
    log = EventLog(0.0)
    for number, events in enumerate(messages):
        message = bytearray(payload(*events))
        for _ in range(data.draw(st.integers(0, 3))):
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        take_message(log, number, bytes(message[: data.draw(st.integers(0, len(message)))]), 1.0)

    assert log.next == len(messages)
    assert (log.cached_tokens or 0) >= 0


@given(st.lists(EVENTS, min_size=1), st.sets(st.integers(0, 20)))
def test_the_count_is_the_engines_or_unknown(messages: list[Any], lost: set[int]) -> None:
    log, held, is_known = EventLog(0.0), 0, 0 not in lost
    for number, events in enumerate(messages):
        for event in events:
            blocks = len(event.get("block_hashes", ()))
            held = 0 if event is CLEARED else held + (blocks if "token_ids" in event else -blocks)
        if number in lost:
            is_known = False
        else:
            take_message(log, number, payload(*events), 1.0)
            is_known = is_known or CLEARED in events
            assert log.cached_tokens == (max(0, held) * log.block_tokens if is_known else None)

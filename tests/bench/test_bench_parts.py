"""What workers note, kept in parts and put together: nothing is lost, nothing counts twice."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.bench.load import messages
from extproc.bench.load.journal import Journal
from extproc.bench.load.parts import FolderStore, Spool, decode_lines, encode_lines, merge, name_part
from extproc.bench.measure.metrics import measure, whole_run
from extproc.bench.record import Record, RunResult
from extproc.bench.spec.tree import Slo
from tests.bench import synthetic


@st.composite
def whole_records(draw: st.DrawFn) -> list[Record]:
    made = []
    for index in range(draw(st.integers(1, 40))):
        started_s = draw(st.floats(0, 100))
        chunk_s = sorted(draw(st.lists(st.floats(started_s, 200), min_size=1, max_size=6)))
        made.append(
            synthetic.record(
                index,
                draw(st.floats(0, 100)),
                started_s=started_s,
                sent_s=started_s,
                chunk_s=chunk_s,
                first_token_s=chunk_s[0],
                end_s=chunk_s[-1],
                text=draw(st.text(max_size=5)),
                failure=draw(st.sampled_from([None, None, "http", "interrupted"])),
                cached_tokens=draw(st.none() | st.integers(0, 100)),
            )
        )
    return made


def deliver(records: Sequence[Record], folder: Path, part: str) -> None:
    """What a worker does with what its processes note, and the leader with what it is sent."""
    spool, store = Spool(folder / part, 1000), FolderStore(folder / "parts")
    journal = Journal(spool.path)
    for place in range(0, len(records), 7):
        journal.note(records[place : place + 7])
        for lines in spool.read_new():
            reply = messages.decode_reply(messages.encode(messages.Noted(lines)))
            assert isinstance(reply, messages.Noted)
            store.append(part, reply.lines)
    journal.close()
    assert spool.lines == len(records)


def test_request_that_comes_twice_counts_once_as_it_was_told_last() -> None:
    early = synthetic.record(1, 0.0, output_tokens=0)
    late = synthetic.record(1, 0.0, output_tokens=7)
    text = encode_lines([early, synthetic.record(0, 0.0), late])

    assert [(r.index, r.output_tokens) for r in merge([decode_lines(text)])] == [(0, 11), (1, 7)]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 300))
def test_lines_that_are_being_written_are_sent_whole_and_once(data: bytes, most: int) -> None:
    """However the writer's and the reader's steps fall."""
    lines = data.replace(b"\r", b"").replace(b"\n", b"") + b"\n"
    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "spool", most)
        sent: list[bytes] = []
        for byte in lines * 3:
            with spool.path.open("ab") as file:
                file.write(bytes([byte]))
            if byte % 3 == 0:
                sent += spool.read_new()
        sent += spool.read_new()

    assert b"".join(sent) == lines * 3
    assert all(each.endswith(b"\n") for each in sent)


@settings(max_examples=60, deadline=None)
@given(whole_records(), st.integers(1, 4))
def test_figures_of_merged_records_are_those_of_one_process(records: list[Record], workers: int) -> None:
    """Percentiles are of all records: merging percentiles would not give these."""
    info = synthetic.result(records).info
    with TemporaryDirectory() as folder:
        for i in range(workers):
            deliver(records[i::workers], Path(folder), name_part(i))
        store = FolderStore(Path(folder) / "parts")
        merged = merge(decode_lines(store.read(part)) for part in reversed(store.list_parts()))
    window = whole_run(RunResult(info, tuple(records)))
    limits = Slo(ttft_ms=5000)

    assert merged == records
    assert measure(merged, window, limits) == measure(records, window, limits)

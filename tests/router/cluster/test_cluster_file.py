import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import SettingsError
from extproc.router.cluster.file import FileSource, parse_endpoints
from extproc.router.routing.endpoint import Endpoint
from tests.router.cluster.harness import RecordingSink, running_source
from tests.tables import table

ONE = b"- {address: 10.0.0.1, port: 8000}\n"
TWO = ONE + b"- {address: 10.0.0.2, port: 8000, name: second}\n"
NEVER_S = 3600.0


def replace_file(path: Path, content: bytes) -> None:
    """Writes beside the file and renames, as careful writers do."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(content)
    draft.rename(path)


async def change_until_two(change: Callable[[], None], sink: RecordingSink) -> None:
    """Makes the change until it is seen: the watch of the directory starts in a thread, sometime."""
    for _ in range(20):
        change()
        with suppress(AssertionError):
            return await sink.until(lambda sink: len(sink.addresses) == 2, limit_s=1.0)
    raise AssertionError("no change was seen")


@pytest.fixture
def endpoints_file(tmp_path: Path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_bytes(ONE)
    return path


def test_entries_become_endpoints_named_by_their_name_or_address() -> None:
    content = TWO + b"- {address: 'fd00::1', port: 8000}\n"

    assert [
        Endpoint("10.0.0.1:8000", "10.0.0.1:8000"),
        Endpoint("second", "10.0.0.2:8000"),
        Endpoint("[fd00::1]:8000", "[fd00::1]:8000"),
    ] == parse_endpoints(content)
    assert parse_endpoints(b"[]") == [], "on purpose"


@table(
    ("content", "fault"),
    [
        (b"", "expected a list"),
        (b"- {address: 10.0.0.1, po", "endpoints:1: not YAML"),
        (ONE + b"\xff\xfe\x00", "endpoints:2: not UTF-8"),
        (b"[" * 500, "endpoints:1: nested too deeply"),
        (
            ONE + b"- {address: 10.0.0.1, port: 8000, name: 2026-13-45}",
            "endpoints:2: not YAML: month must",
        ),
        (
            ONE + b'- {address: 10.0.0.2, port: 8000, name: "a\\0b"}',
            "endpoints:2: 1: 'a\\x00b' holds NUL",
        ),
        (ONE + b"- {address: 10.0.0.2, port: 8000, name: a\0b}", "endpoints:2: not YAML"),
        (b"endpoints: []", "expected a list"),
        (b"- {address: 10.0.0.1}", "0.port: is missing"),
        (b"- {address: 10.0.0.1, port: '8000'}", "0.port: "),
        (b"- {address: 10.0.0.1, port: 8000, weight: 3}", "0.weight: "),
        (
            ONE + b"- {address: vllm-0.vllm, port: 8000}",
            "endpoints:2: 1: 'vllm-0.vllm' is not an IP address",
        ),
        (b"- {address: 10.0.0.1, port: 70000}", "is not a port"),
        (b"- {address: 10.0.0.1, port: 8000, name: ''}", "0.name: "),
        (ONE + ONE, "endpoints:2: name given twice: 10.0.0.1:8000"),
        (
            TWO + b"- {address: 10.0.0.2, port: 8000, name: third}",
            "address given twice: 10.0.0.2:8000",
        ),
    ],
)
def test_a_faulty_file_is_refused_and_the_fault_named(content: bytes, fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_endpoints(content)

    assert fault in str(caught.value)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_parse_or_raise_settings_error(content: bytes) -> None:
    try:
        endpoints = parse_endpoints(content)
    except SettingsError:
        return

    assert all(isinstance(endpoint, Endpoint) for endpoint in endpoints)


async def test_a_change_of_the_file_replaces_the_list(
    endpoints_file: Path, sink: RecordingSink
) -> None:
    async with running_source(FileSource(endpoints_file, poll_s=NEVER_S), sink):
        await sink.until(lambda sink: sink.addresses == ["10.0.0.1:8000"])
        await change_until_two(lambda: replace_file(endpoints_file, TWO), sink)

    assert sink.restarts == []


async def test_a_half_written_file_is_not_taken(endpoints_file: Path, sink: RecordingSink) -> None:
    """`port: 80` is a good port, and the first half of 8000."""

    def write_on(text: bytes) -> None:
        with endpoints_file.open("ab") as file:
            file.write(text)

    replace_file(endpoints_file, b"- address: 10.0.0.1\n  port: 80")
    async with running_source(FileSource(endpoints_file, poll_s=0.02, quiet_s=1.0), sink):
        for end in (b"00\n- address: 10.0.0.2\n  port: 80", b"01\n"):
            await asyncio.sleep(0.1)
            write_on(end)
        await sink.until(lambda sink: sink.lists)

    assert sink.addresses == ["10.0.0.1:8000", "10.0.0.2:8001"]
    assert (len(sink.lists), sink.restarts) == (1, [])


async def test_a_swapped_link_of_a_mounted_configmap_is_a_change(
    tmp_path: Path, sink: RecordingSink
) -> None:
    for version, content in (("v1", ONE), ("v2", TWO)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_bytes(content)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "endpoints.yaml").symlink_to("..data/endpoints.yaml")

    def swap() -> None:
        (tmp_path / "..data_tmp").symlink_to("v2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    async with running_source(FileSource(tmp_path / "endpoints.yaml", poll_s=NEVER_S), sink):
        await sink.until(lambda sink: sink.lists)
        await change_until_two(swap, sink)


async def test_polling_finds_what_the_directory_does_not_show(
    tmp_path: Path, sink: RecordingSink
) -> None:
    elsewhere = tmp_path / "elsewhere"
    here = tmp_path / "here"
    elsewhere.mkdir()
    here.mkdir()
    (elsewhere / "list").write_bytes(ONE)
    (here / "endpoints.yaml").symlink_to(elsewhere / "list")

    async with running_source(FileSource(here / "endpoints.yaml", poll_s=0.05), sink):
        await sink.until(lambda sink: sink.lists)
        (elsewhere / "list").write_bytes(TWO)
        await sink.until(lambda sink: len(sink.addresses) == 2)


async def test_a_bad_or_deleted_file_leaves_the_list_and_counts_once(
    endpoints_file: Path, sink: RecordingSink
) -> None:
    async with running_source(FileSource(endpoints_file, poll_s=0.02), sink):
        await sink.until(lambda sink: sink.lists)
        replace_file(endpoints_file, b"- {address: 10.0.0.1, po")
        await sink.until(lambda sink: sink.restarts)
        confirmed_total = sink.confirmed_total
        await sink.until(lambda sink: len(sink.lacking) > 2)

        assert sink.restarts == ["file_invalid"]
        assert confirmed_total == sink.confirmed_total
        assert len(sink.lists) == 1

        replace_file(endpoints_file, TWO)
        await sink.until(lambda sink: len(sink.addresses) == 2)
        await asyncio.to_thread(endpoints_file.unlink)
        await sink.until(lambda sink: len(sink.restarts) == 2)

    assert [len(listed) for listed in sink.lists] == [1, 2]
    assert f"{endpoints_file}:1: not YAML" in str(sink.reasons[0])


async def test_a_missing_file_is_waited_for_and_then_confirmed(
    tmp_path: Path, sink: RecordingSink
) -> None:
    path = tmp_path / "later" / "endpoints.yaml"
    async with running_source(FileSource(path, poll_s=0.02), sink):
        await sink.until(lambda sink: sink.restarts)
        path.parent.mkdir()
        replace_file(path, ONE)
        await sink.until(lambda sink: sink.addresses == ["10.0.0.1:8000"])
        await sink.until(lambda sink: sink.confirmed_total >= 2)

    assert len(sink.lists) == 1

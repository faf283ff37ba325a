"""The one reader: any bytes become a document or a fault with its file and line."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from extproc.cli import cli
from extproc.documents import parse_document, read_document
from extproc.errors import SettingsError
from tests.tables import table

BAD = {
    "a date that is none": (b"a: 1\nb: 2026-13-45\n", "2: not YAML: month must be in 1..12"),
    "a tag that lies": (b"a: 1\nb: !!bool maybe\n", "2: not YAML: "),
    "an empty number": (b"\na: !!int ''\n", "2: not YAML: "),
    "not UTF-8": (b"a: 1\n\nb: \xff\n", "3: not UTF-8"),
    "UTF-16": ("a: 1".encode("utf-16"), "1: not UTF-8"),
    "a control character": (b"a: 1\nb: \x07\n", "2: not YAML: special characters are not allowed"),
    "deep": (b"[" * 100_000, "1: nested too deeply"),
    "deep mappings": (b"{a: " * 10_000, "1: nested too deeply"),
    "a key given twice": (b"a: 1\nb: {c: 1,\n c: 2}\n", "3: b.c is given twice (line 2)"),
    "two keys given twice": (
        b"a: 1\na:\n b: 1\n b: 2\n",
        "2: a is given twice (line 1)\nf.yaml:4: a.b is given",
    ),
    "unfinished": (b"a: 1\nb: [1,\n", "3: not YAML: while parsing a flow node"),
    "two documents": (
        b"a: 1\n---\nb: 2\n",
        "2: not YAML: expected a single document in the stream",
    ),
    "an unknown alias": (b"a: *b\n", "1: not YAML: found undefined alias 'b'"),
    "an object of Python": (
        b"a: !!python/object:os.system {}\n",
        "1: not YAML: could not determine",
    ),
}


@table(("content", "fault"), BAD.values(), ids=BAD)
def test_a_fault_has_its_file_and_line(content: bytes, fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_document(content, "f.yaml")

    assert str(caught.value).startswith(f"f.yaml:{fault}")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_document_or_a_settings_error(content: bytes) -> None:
    fault = ""
    try:
        parse_document(content, "f")
    except SettingsError as error:
        fault = str(error)

    assert fault.startswith("f:" if fault else "")


def test_a_place_is_the_line_of_the_deepest_node_that_is_there() -> None:
    document = parse_document("a:\n  b-c:\n  - 1\n  - d: 2\n", "f")
    places = [(), ("a",), ("a", "b_c", 1), ("a", "union", "b-c", 1, "d", 9)]

    assert [document.at(place) for place in places] == ["f:1", "f:1", "f:4", "f:4"]


def test_a_key_may_replace_what_is_merged_into_its_mapping() -> None:
    document = parse_document("a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: {1: x, '1': y}\n", "f")

    assert document.tree == {"a": {"b": 1}, "c": {"b": 2}, "d": {1: "x", "1": "y"}}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.yaml: cannot be read: No such file"):
        read_document(tmp_path / "none.yaml")


COMMANDS = {
    "settings": ["check", "FILE"],
    "settings of a service": ["serve", "--config", "FILE"],
    "a spec": ["bench", "run", "FILE"],
    "a spec of a plan": ["bench", "plan", "FILE"],
    "a profile": ["simulate", "fleet", "--profile", "FILE"],
}


@pytest.mark.parametrize("bad", ["a date that is none", "not UTF-8", "deep"])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_reports_it_instead_of_a_traceback(
    tmp_path: Path, command: list[str], bad: str
) -> None:
    content, fault = BAD[bad]
    path = tmp_path / "f.yaml"
    path.write_bytes(content)

    result = CliRunner().invoke(cli, [str(path) if word == "FILE" else word for word in command])

    # A plan prints its faults itself; of the others `main` prints what they raise.
    told = str(result.exception) if isinstance(result.exception, SettingsError) else result.output
    assert isinstance(result.exception, SettingsError | SystemExit)
    assert _squeezed(f"{path}:{fault}") in _squeezed(told)


def _squeezed(text: str) -> str:
    """Without what a frame around the text and its line breaks add."""
    return re.sub(r"[\s\u2502]", "", text)

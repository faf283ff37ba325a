"""Conversations of the Responses API: what keeps one with `previous_response_id` at its endpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc.cli import cli

ENDPOINTS = [f"10.0.0.{i}:8000" for i in range(1, 9)]
# As the answer's id changes with every turn, and a turn brings its own text alone.
TURNS = [
    {"input": f"question number {turn} of this conversation", "previous_response_id": f"resp_{turn}"}
    for turn in range(1, 13)
]


def pick(directory: Path, key: list[str] | None, body: dict[str, Any], *headers: str) -> str:
    """The endpoint that a request would get, as `extproc explain` tells it."""
    strategy: dict[str, Any] = {"name": "prefix_hash"} | ({} if key is None else {"key": key})
    pool = {"name": "llama", "endpoints": {"static": ENDPOINTS}, "strategy": strategy}
    config = directory / "extproc.yaml"
    config.write_text(yaml.safe_dump({"pools": [pool]}))
    asked = [part for header in headers for part in ("--header", header)]
    done = CliRunner().invoke(
        cli,
        ["explain", "--config", str(config), "--path", "/v1/responses", *asked],
        input=json.dumps({"model": "llama", **body}),
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    told: str = json.loads(done.stdout)["endpoint"]
    return told


def test_previous_response_id_does_not_keep_a_conversation_at_its_endpoint(tmp_path: Path) -> None:
    assert len({pick(tmp_path, None, turn) for turn in TURNS}) > 1


@pytest.mark.parametrize("field", ["user", "prompt_cache_key"])
def test_field_that_stays_the_same_keeps_it_there(tmp_path: Path, field: str) -> None:
    key = ["field:prompt_cache_key", "field:user", "first_user_message"]

    assert len({pick(tmp_path, key, {**turn, field: "conversation-7"}) for turn in TURNS}) == 1


def test_header_that_stays_the_same_keeps_it_there(tmp_path: Path) -> None:
    key = ["header:x-session-id", "first_user_message"]

    assert len({pick(tmp_path, key, turn, "x-session-id: 7") for turn in TURNS}) == 1

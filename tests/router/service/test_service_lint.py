"""Where prompts part, where operators see it: the admin port, the page, the command, the doctor."""

import asyncio
import json
import logging
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from click.testing import CliRunner
from msgspec.json import decode

from extproc.cli import cli
from extproc.doctor.checks import judge_evidence
from extproc.doctor.collect import look_around
from extproc.router.routing.picker import Query
from tests.router.lint.planted import PATHS, plant_fault
from tests.router.service.live_service import live_events, next_state, serving_live
from tests.stack.service import pool
from tests.tables import table
from tests.waiting import until

POOLS = [pool(["127.0.0.1:1"], {"name": "prefix_cache"}, name="llama", probe=False, lint=True)]
SECRET = "QXJZQXJZ"


async def test_fault_is_told_everywhere_and_its_text_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving_live(tmp_path, POOLS) as live:
        for n in range(400):
            body = plant_fault("time", PATHS[0], n // 50).replace(b"You are", SECRET.encode())
            live.app.pools.picker.pick(Query("POST", PATHS[0], {}, body))
        doors = ["lint", "pools", "metrics", "config", "readyz", "metrics/llm-d", "shadow"]
        told = {}
        for door in doors:
            async with live.session.get(f"/{door}") as answer:
                told[door] = await answer.text()
        async with live.session.post("/explain", data=plant_fault("time", PATHS[0], 9)) as answer:
            told["explain"] = await answer.text()
        async with live.session.get("/live") as answer:
            told["page"] = str(await next_state(live_events(answer)))
        said = await asyncio.to_thread(CliRunner().invoke, cli, ["lint", "--url", live.url])
        seen = await look_around(live.url, None, None, None, 0.0)
        (finding,) = [each for each in judge_evidence(seen) if each["rule"] == "lost_hits"]
    sentence = "100% of 8 sampled prompts part at byte 27 of the system message, at a time of day"

    assert decode(told["lint"])[0]["partings"][0]["kind"] == "time"
    assert sentence in told["page"]
    assert said.output.startswith(f"pool llama: {sentence}")
    assert said.exit_code == 1
    assert sentence in finding["seen"]
    assert (
        SECRET not in f"{told}{said.output}{finding}{caplog.text}{live.app.pools['llama'].lint!r}"
    )


async def test_pool_without_it_keeps_nothing_and_a_reload_forgets(tmp_path: Path) -> None:
    async with serving_live(tmp_path, POOLS) as live, live.watching():
        running = live.app.pools["llama"]
        assert running.lint is not None
        live.configure([{**POOLS[0], "lint": False}])
        await until(lambda: running.lint is None)
        said = await asyncio.to_thread(CliRunner().invoke, cli, ["lint", "--url", live.url])

    assert running.pool.listeners == ()
    assert "no pool has `lint: true`" in str(said.exception)


def test_file_of_recorded_requests_is_read_and_its_text_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    bodies = [plant_fault("uuid", path, n) for n in range(3) for path in PATHS]
    batch = [
        {"custom_id": "a", "url": PATHS[0], "body": json.loads(plant_fault("uuid", PATHS[0], 7))}
    ]
    file.write_bytes(b"\n".join([*bodies, json.dumps(batch[0]).encode()]))

    said = CliRunner().invoke(cli, ["lint", str(file)])
    bare = CliRunner().invoke(cli, ["lint", "--json", str(file)])

    assert "100% of 10 sampled prompts part at byte 26 of the system message" in said.output
    assert said.output.count("careful helper.\\n >>> ") == 2
    assert "careful" not in bare.output
    assert json.loads(bare.output)[0]["partings"][0]["kind"] == "uuid"


@table(
    ("text", "said"),
    [
        ('{"messages": []}\n\n[1]\n', ":3: this line is no request's body in JSON"),
        ('{"messages": [], "tools": {"a": 1}}', ":1: this line is no request's body in JSON"),
        ('{"request": {"messages": []}}', ":1: this line is no request's body in JSON"),
        ("\n \n", ": no request in it"),
    ],
)
def test_line_that_is_no_request_is_named(text: str, said: str) -> None:
    with NamedTemporaryFile() as file:
        Path(file.name).write_text(text)
        got = CliRunner().invoke(cli, ["lint", file.name])

        assert str(got.exception) == f"{file.name}{said}"


def test_blank_lines_and_a_byte_order_mark_are_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes(
        b"\n\n".join([b"\xef\xbb\xbf", *(plant_fault("uuid", PATHS[0], n) for n in (0, 1))])
    )

    assert "    line 5: " in CliRunner().invoke(cli, ["lint", str(file)]).output

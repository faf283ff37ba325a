"""`extproc doctor` before a real Envoy: quiet where all is well, and what is wrong by the listener's name."""

import asyncio
from pathlib import Path

from extproc.doctor.checks import judge_evidence
from extproc.doctor.collect import look_around
from tests.stack.client import Chat, connect
from tests.stack.gateway import Tree, cluster_named, ext_proc_filter, find
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool
from tests.stack.stack import Stack

CACHE = {"name": "prefix_cache"}
PROFILE = """
small: {base_ms: 10, kv_us_per_ctx_token: 0.5, prefill_ms_per_token: 0.19, kv_tokens: 4096, block_size: 16,
  max_num_batched_tokens: 4096, max_num_seqs: 64, max_model_len: 4096}
"""


def hasty(tree: Tree) -> None:
    for routes in find(tree, "routes"):
        del routes[-1]["route"]["timeout"]


def deaf(tree: Tree) -> None:
    (logs,) = find(tree["static_resources"]["listeners"][0], "access_log")
    del logs[1]


def closed(tree: Tree) -> None:
    del ext_proc_filter(tree)["failure_mode_allow"]


def stubborn(tree: Tree) -> None:
    del ext_proc_filter(tree)["max_message_timeout"]


def off(tree: Tree) -> None:
    for filters in find(tree, "http_filters"):
        for each in filters:
            if each["name"] == "envoy.filters.http.ext_proc":
                each["disabled"] = True


def findings(stack: Stack) -> dict[str, str]:
    """What was seen, by its rule; each rule once."""
    look = look_around(stack.service.admin_url, stack.gateway.admin_url, None, None, 1.0)
    found = judge_evidence(asyncio.run(look))
    assert len({each["rule"] for each in found}) == len(found), found
    return {each["rule"]: each["seen"] for each in found}


async def hold_chats(stack: Stack, conversations: int) -> None:
    async with connect(stack.url) as session:
        talks = [Chat(number) for number in range(conversations)]
        for _ in range(6):
            await asyncio.gather(*(talk.take_turn(session) for talk in talks))


def test_a_healthy_stack_has_nothing_wrong(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    with stack.running(pool(stack.addresses, CACHE, hold={})):
        asyncio.run(hold_chats(stack, 10))
        assert findings(stack) == {}


def test_a_filter_that_is_there_and_off_is_found(tmp_path: Path) -> None:
    stack = Stack(tmp_path, edits=[off])
    with stack.running(pool(stack.addresses, CACHE)):
        found = findings(stack)

    assert "the ext_proc filter is off on all of" in found["not_asked_on_routes"]


def test_an_envoy_configured_otherwise_is_found_by_its_listener(tmp_path: Path) -> None:
    port, admin = free_ports(2)
    other = Service(tmp_path / "other", port=port, admin_port=admin)
    other.config.parent.mkdir()

    def second(tree: Tree) -> None:
        hosts = cluster_named(tree, "extproc")["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        hosts.append({"endpoint": {"address": address}})

    variants = {edit.__name__: edit for edit in (hasty, deaf, closed, stubborn, second)}
    stack = Stack(tmp_path, variants=variants)
    other.configure([pool(stack.addresses, CACHE)])
    with other, stack.running(pool(stack.addresses, CACHE, hold={})):
        stack.gateway.wait_until(lambda: "not_shared" in findings(stack))
        found = findings(stack)

    assert found == {
        "route_timeout": "Envoy, hasty_clients: 1 of 2 routes end an answer after 15 s: vllm, route 3",
        "fails_closed": "Envoy, closed_clients: failure_mode_allow is false; pool vllm is to be open "
        "while the service is away",
        "hold_cut": "pool vllm holds for 30 s, Envoy, stubborn_clients, allows 3 s",
        "outcomes_unheard": "Envoy, deaf_clients: no access log and no response headers reach the service",
        "not_shared": "2 replicas do not share their picks; pool vllm: gateways None",
    }


def test_conversations_beyond_the_caches_and_outcomes_unheard_of_are_found(tmp_path: Path) -> None:
    """Turns that come soon are found; of a hundred conversations that take turns nothing is."""
    profile = tmp_path / "small.yaml"
    profile.write_text(PROFILE)
    stack = Stack(tmp_path, edits=[deaf], simulate=["--speed", "10", "--profile", str(profile)])
    with stack.running(pool(stack.addresses, CACHE)):
        asyncio.run(hold_chats(stack, 10))
        asyncio.run(hold_chats(stack, 100))
        found = findings(stack)

    assert found.keys() == {"outcomes_unheard", "working_set"}
    assert "caches of 16384 tokens were filled" in found["working_set"]

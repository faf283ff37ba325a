"""What the leader of a run says while it goes: its Pod is asked, as it has no credentials to tell anybody."""

from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from extproc.bench.board import Notice, decode_notice
from extproc.operator.objects import BOARD_PORT

_ANSWER_S: Final = 2.0
_LONGEST: Final = 65_536


def find_address(pod: Mapping[str, Any]) -> str | None:
    """Where a leader's Pod tells how it stands, `None` if it is not there yet, or not any more."""
    status = pod.get("status", {})
    is_over = any("terminated" in each.get("state", {}) for each in status.get("containerStatuses", ()))
    ip = status.get("podIP")
    if is_over or not ip:
        return None
    return f"http://[{ip}]:{BOARD_PORT}/" if ":" in ip else f"http://{ip}:{BOARD_PORT}/"


async def ask_leader(url: str) -> Notice | None:
    """Returns what a leader says; `None` for one that says nothing, as before it begins."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as answer:
            return decode_notice(await answer.content.read(_LONGEST))
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None

"""A headless Chromium that opens one page and tells what the page did, over the DevTools protocol."""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find() -> str | None:
    return shutil.which("chromium")


@dataclass
class Visit:
    """URLs the page asked for, what its console said, and the text it shows."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    text: str = ""


async def visit(path: Path, profile: Path) -> Visit:
    """Opens a local file; the browser's own traffic is not the page's and does not count."""
    chromium = find()
    assert chromium
    process = await asyncio.create_subprocess_exec(
        chromium,
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        return await asyncio.wait_for(_watch(process, path), 60)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def _watch(process: asyncio.subprocess.Process, path: Path) -> Visit:
    assert process.stderr
    line = b""
    while b"DevTools listening on" not in line:
        line = await process.stderr.readline()
        assert line, "the browser ended"
    address = line.decode().split("ws://", 1)[1].split("/", 1)[0]
    seen = Visit()
    async with aiohttp.ClientSession() as http:
        async with http.get(f"http://{address}/json/list") as answer:
            pages = [target for target in await answer.json() if target["type"] == "page"]
        async with http.ws_connect(pages[0]["webSocketDebuggerUrl"]) as page:
            for number, method in enumerate(
                ("Page.enable", "Network.enable", "Runtime.enable", "Log.enable")
            ):
                await page.send_json({"id": number, "method": method})
            async for message in page:
                told = message.json()
                _note(seen, told)
                # Navigating before the last of the four is in force would miss the page's load event.
                if told.get("id") == 3:
                    params: dict[str, str] = {"url": path.as_uri()}
                    await page.send_json({"id": 10, "method": "Page.navigate", "params": params})
                if told.get("method") == "Page.loadEventFired":
                    params = {"expression": "document.body.innerText"}
                    await page.send_json({"id": 11, "method": "Runtime.evaluate", "params": params})
                if seen.text:
                    return seen
    return seen


def _note(seen: Visit, message: dict[str, Any]) -> None:
    method: str = message.get("method", "")
    params = message.get("params", {})
    if method == "Network.requestWillBeSent":
        seen.requests.append(params["request"]["url"])
    if method in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
        seen.complaints.append(str(params))
    if message.get("id") == 11:
        seen.text = message["result"]["result"]["value"]

"""The doctor as the command runs it, in this process; and a real endpoint that says one thing otherwise."""

import asyncio
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any

import yaml

from extproc.doctor.checks import judge_evidence
from extproc.doctor.collect import look_around
from extproc.doctor.evidence import Evidence
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings


def doctor_settings(
    *addresses: str, listen: str = "127.0.0.1:9002", tls: Any = None, **fields: Any
) -> Settings:
    share = {"share": fields.pop("share")} if "share" in fields else {}
    tree = {
        "server": {"listen": listen, "tls": tls},
        "pools": [pool_fields(*addresses, **fields)],
        **share,
    }
    return parse_settings(yaml.safe_dump(tree), {})


def pool_fields(*addresses: str, **fields: Any) -> Any:
    return {"name": "tiny", "endpoints": {"static": [*addresses]}, **fields}


NOWHERE = "http://127.0.0.1:1"


def look(given: Settings | None = None, url: str = NOWHERE, **options: Any) -> Evidence:
    """What is seen; where no service is asked for, that none answers is no fault."""
    options = {"envoy": None, "namespace": None, "window_s": 0.0} | options
    evidence = asyncio.run(look_around(url, given=given, **options))
    return replace(evidence, silence=None) if url == NOWHERE else evidence


def rules(evidence: Evidence) -> dict[str, str]:
    return {each["rule"]: each["seen"] for each in judge_evidence(evidence)}


@contextmanager
def altered(
    address: str, late_s: float = 0.0, was: str = "tiny", model: str = "tiny", **labels: str
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urllib.request.urlopen(f"http://{address}{self.path}", timeout=10) as answer:
                text = answer.read().decode()
            for name, value in labels.items():
                text = re.sub(f'{name}="[^"]*"', f'{name}="{value}"', text)
            self.send_response_only(200)
            self.send_header("date", formatdate(time() - late_s, usegmt=True))
            self.end_headers()
            self.wfile.write(text.replace(was, model).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()

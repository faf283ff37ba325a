"""A real endpoint that says one thing otherwise: an HTTP server in front of it."""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time


@contextmanager
def altered(address: str, *changes: tuple[str, str], late_s: float = 0.0) -> Iterator[str]:
    """Yields the address of one that answers as `address` does, but for these texts and its clock."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urllib.request.urlopen(f"http://{address}{self.path}", timeout=10) as answer:
                text = answer.read().decode()
            for before, after in changes:
                text = text.replace(before, after)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time() - late_s, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()

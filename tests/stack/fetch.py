"""Small synchronous requests to admin ports."""

import json
import urllib.error
import urllib.request
from typing import Any


def get(url: str, timeout_s: float = 10.0) -> str:
    """Returns the answer's body; raises `OSError` for anything but a 2xx answer, in time."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        body: bytes = answer.read()
    return body.decode()


def get_json(url: str) -> Any:
    return json.loads(get(url))


def answers(url: str) -> bool:
    """Whether a GET succeeds now."""
    try:
        get(url)
    except OSError:
        return False
    return True

"""A real vLLM server as a child process."""

import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STARTS_WITHIN_S = 400
DIRECTORY = Path(os.environ.get("REAL_VLLM", ""))
WORDS = (
    "import",
    "return",
    "class",
    "value",
    "yield",
    "except",
    "module",
    "string",
    "number",
    "object",
)
needs_vllm = [
    pytest.mark.real_vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DIRECTORY.name, reason="REAL_VLLM names no vLLM: run `make test-vllm`"),
]
OPTIONS = (
    *("--load-format", "dummy", "--dtype", "float32", "--served-model-name", "tiny"),
    *(
        "--max-model-len",
        "4096",
        "--enforce-eager",
        "--enable-prefix-caching",
        "--block-size",
        "32",
    ),
    *("--enable-prompt-tokens-details", "--host", "127.0.0.1"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",  # as the simulator does
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
}


class Talks:
    """Interleaved conversations that share system prompts, of which the `latest` so many go on.

    The models' own answers become part of them: three tokens each, for what random weights say does
    not become the same tokens when it is read again.
    """

    def __init__(self, seed: int) -> None:
        self.latest, self.rng = 8, random.Random(seed)
        self._systems = [self.write(20, 400) for _ in range(6)]
        self._talks: list[list[dict[str, str]]] = []

    def ask(self) -> list[dict[str, str]]:
        """A conversation, new or old, with one more question."""
        if is_new := self.rng.random() < 0.3 or not self._talks:
            self._talks.append([{"role": "system", "content": self.rng.choice(self._systems)}])
        talk = self._talks[-1] if is_new else self.rng.choice(self._talks[-self.latest :])
        talk.append({"role": "user", "content": self.write(5, 120)})
        return talk

    def write(self, least: int, most: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(least, most)))


@contextmanager
def run_vllm(port: int, log: Path, *options: str) -> Iterator[str]:
    """Runs the vLLM of `install.py`; yields its URL when it is ready, and ends it with its children."""
    command = [
        str((DIRECTORY / "venv/bin/vllm").absolute()),
        "serve",
        "model",
        *OPTIONS,
        "--port",
        str(port),
    ]
    command += options
    environment = os.environ | ENVIRONMENT
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, cwd=DIRECTORY, env=environment, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    ending = log.read_text(errors="replace").splitlines()[-20:]
    raise RuntimeError("vLLM does not start:\n" + "\n".join(ending))

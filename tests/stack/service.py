"""The ext_proc service under test: `extproc serve` with a configuration file of its own."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.stack.fetch import answers, get, get_json
from tests.stack.ports import free_ports
from tests.stack.process import Process

PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"

Pool = dict[str, Any]


def prefix_hash(**fields: Any) -> dict[str, Any]:
    return {"name": "prefix_hash", **fields}


def pool(addresses: Sequence[str], strategy: dict[str, Any] | None = None, **fields: Any) -> Pool:
    """Returns a pool of static endpoints for the configuration file."""
    return {
        "name": "vllm",
        "endpoints": {"static": list(addresses)},
        "strategy": strategy or prefix_hash(),
        "fallbacks": 2,
        **fields,
    }


def write_list(path: Path, addresses: Sequence[str]) -> None:
    """Writes the file of a pool's endpoints, in one step."""
    pairs = [address.rsplit(":", 1) for address in addresses]
    draft = path.with_suffix(".draft")
    draft.write_text(yaml.safe_dump([{"address": ip, "port": int(port)} for ip, port in pairs]))
    draft.replace(path)


def health_at(address: str, name: str = PROCESSOR) -> str:
    """The status by gRPC health, or why there is none."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        except grpc.RpcError as error:
            return str(error.code())
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


class Service(Process):
    """`extproc serve`, listening for Envoy on `port`, for its operator on `admin_port`: free ones if none.

    `transport` is how it serves gRPC.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        admin_port: int | None = None,
        listen: str | None = None,
        transport: str = "native",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        free, another = free_ports(2)
        port, admin_port = port or free, admin_port or another
        self.config = directory / "extproc.yaml"
        self._transport = {} if transport == "native" else {"transport": transport}
        command = [sys.executable, "-m", "extproc", "serve", "--config", str(self.config)]
        super().__init__("extproc", command, directory, environment)
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        self.port = port
        self.listen = listen or f"127.0.0.1:{port}"
        self.admin = f"127.0.0.1:{admin_port}"
        self._health = self.listen
        self._fixed: tuple[Any, Any] | None = None  # what no reload changes

    def configure(self, pools: Sequence[Pool], *, share: Any = None, **server: Any) -> None:
        """Writes the configuration file, in one step as an editor or a ConfigMap would."""
        fields = {
            "listen": self.listen,
            "admin": self.admin,
            "drain_s": 5,
            **self._transport,
            **server,
        }
        self._health = fields.get("health", self.listen)
        shared = {} if share is None else {"share": share}
        self._fixed = (fields, share)
        self.write(yaml.safe_dump({"server": fields, "pools": list(pools), **shared}))

    def apply(self, pools: Sequence[Pool], *, share: Any = None, **server: Any) -> None:
        """As `configure`, of a service that may run: returns when what it says is in force."""
        before, earlier = self.config.read_text() if self.config.exists() else "", self._fixed
        is_running = self.is_running
        applied = self._applied() if is_running else 0
        self.configure(pools, share=share, **server)
        if not is_running or self._fixed != earlier:
            self.kill()
            self.start()
            self.wait_ready()
        elif self.config.read_text() != before:
            self.wait_until(lambda: self._applied() > applied)

    def _applied(self) -> float:
        return self.metric("extproc_config_reloads_total", result="applied")

    def write(self, text: str) -> None:
        """Replaces the configuration file by any text."""
        draft = self.config.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.config)

    def is_ready(self) -> bool:
        """Whether an operator and a proxy can see it: Envoy passes by a service that says no."""
        return answers(f"{self.admin_url}/readyz") and self.health() == "SERVING"

    def health(self, name: str = PROCESSOR) -> str:
        return health_at(self._health, name)

    def metrics(self) -> dict[str, float]:
        """Returns the samples by name and labels, as Prometheus writes them."""
        lines = get(f"{self.admin_url}/metrics").splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric's samples that carry `labels`."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def pools(self) -> Any:
        return get_json(f"{self.admin_url}/pools")

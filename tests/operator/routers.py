"""A router of several replicas: each an `extproc serve` whose file is the ConfigMap's text, a while later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.operator.cluster import ServedCluster
from tests.stack.ports import free_ports
from tests.stack.service import Service

Object = dict[str, Any]
NAME = "extproc"
_KEY = "extproc.yaml"


@dataclass
class RouterReplicas:
    """Its replicas, their admin address, and every text that the kubelet gave them."""

    replicas: list[Service]
    admin: str
    served: ServedCluster
    texts: list[str] = field(default_factory=list)

    def text(self) -> str:
        found = self.served.cluster.find("v1/configmaps", NAME)
        assert found is not None
        return str(found["data"][_KEY])

    def metadata(self) -> Object:
        found = self.served.cluster.find("v1/configmaps", NAME)
        assert found is not None
        return {name: found["metadata"].get(name) for name in ("labels", "annotations")}

    async def strategies(self) -> list[str]:
        pools = [await asyncio.to_thread(replica.pools) for replica in self.replicas]
        return [pool[0]["strategy"] for pool in pools]

    async def project(self) -> None:
        """What kubelets do: each replica gets a change after a while of its own."""
        last = self.text()
        while True:
            await asyncio.sleep(0.05)
            if (text := self.text()) != last:
                last = text
                self.texts.append(text)
                for replica in self.replicas:
                    await asyncio.sleep(0.3)
                    _write(replica, text)


def _write(replica: Service, text: str) -> None:
    draft = replica.config.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(replica.config)


@asynccontextmanager
async def routing(
    served: ServedCluster, folder: Path, text: str, replicas: int = 2
) -> AsyncIterator[RouterReplicas]:
    """Runs a router with a ConfigMap of that text."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "data": {_KEY: text},
    }
    served.cluster.add(body)
    made, ports = [], free_ports(2 * replicas)
    for i in range(replicas):
        (place := folder / f"router-{i}").mkdir()
        listen, admin = ports[2 * i], ports[2 * i + 1]
        environment = {
            "EXTPROC_SERVER__LISTEN": f"127.0.0.1:{listen}",
            "EXTPROC_SERVER__ADMIN": f"127.0.0.1:{admin}",
        }
        made.append(Service(place, port=listen, admin_port=admin, environment=environment))
        _write(made[-1], text)
    admin_text = ",".join(replica.admin_url.removeprefix("http://") for replica in made)
    with ExitStack() as stack:
        for replica in made:
            stack.enter_context(replica)
        for replica in made:
            await asyncio.to_thread(replica.wait_ready)
        router = RouterReplicas(made, admin_text, served)
        kubelet = asyncio.create_task(router.project())
        try:
            yield router
        finally:
            kubelet.cancel()

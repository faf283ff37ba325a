"""As much of a cluster as a Benchmark needs: the scripted API server with every verb, Jobs, and a collector.

A Pod of a Job is a process on this machine: what its volumes hold is in folders.
"""

import asyncio
import copy
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from extproc.operator.resource import API_VERSION
from tests.hosting import Handler, hosting
from tests.operator.pods import translate
from tests.operator.roles import Use, find_use, read_rules
from tests.router.cluster import api_server
from tests.router.cluster.api_server import ApiServer, Collection, status, write_access
from tests.waiting import until

Object = dict[str, Any]
BENCHMARKS, JOBS, PODS = f"{API_VERSION}/benchmarks", "batch/v1/jobs", "v1/pods"
_PLURALS = {
    "Benchmark": "benchmarks",
    "ConfigMap": "configmaps",
    "Job": "jobs",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
}


class OperatorApiServer(ApiServer):
    """The server, and its writes: `asked` holds verb and kind of every write.

    It allows what the Role of the manifests does; `used` holds what was: API group, resource, verb.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.asked: list[str] = []
        self.pods: dict[str, list[asyncio.Task[None]]] = {}
        self.processes: list[asyncio.subprocess.Process] = []
        self.uids = 0
        # Answers writes of a kind with a status instead, once each: (verb, plural) -> statuses.
        self.faults: dict[tuple[str, str], list[int]] = {}
        # Answers every write of a kind so: (verb, plural) -> status, message.
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        # Whether Jobs have Pods.
        self.has_nodes = True
        self.rules = read_rules()
        self.used: set[Use] = set()
        self.denied: set[Use] = set()

    def find(self, kind: str, name: str) -> Object | None:
        return self.of(kind).objects.get(name)

    def store(self, made: Object) -> Object:
        self.put(made)
        collection = self.of(api_server.kind_of(made))
        return collection.objects[made["metadata"]["name"]]

    @web.middleware
    async def authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        use = find_use(request)
        if use is None:
            return await handler(request)
        names = self.rules.get(use)
        if names is None or (names and request.match_info.get("name") not in names):
            self.denied.add(use)
            return status(403, f"{use} is not allowed")
        self.used.add(use)
        return await handler(request)

    async def list_objects(self, request: web.Request) -> web.StreamResponse:
        """Of the objects of a list no one says what it is."""
        answer = await super().list_objects(request)
        if not isinstance(answer, web.Response) or answer.status != 200 or not answer.text:
            return answer
        tree = json.loads(answer.text)
        items = [
            {k: v for k, v in each.items() if k not in {"kind", "apiVersion"}}
            for each in tree["items"]
        ]
        return web.json_response(tree | {"items": items})

    async def write(self, request: web.Request) -> web.StreamResponse:
        """Every verb but list and watch."""
        plural, name = request.match_info["plural"], request.match_info.get("name")
        collection = self._collection(request)
        if request.method != "GET":
            self.asked.append(f"{request.method} {plural}")
        if (scripted := self._script(request.method, plural)) is not None:
            return scripted
        if request.method == "POST":
            return await self._create(request, collection)
        if name is None or name not in collection.objects:
            return status(404)
        if request.method == "PUT":
            return await self._replace(request, collection.objects[name])
        if request.method == "DELETE":
            return await self._delete(request, collection.objects[name])
        return web.json_response(collection.objects[name])

    def _script(self, method: str, plural: str) -> web.Response | None:
        if self.faults.get((method, plural)):
            return status(self.faults[method, plural].pop(0))
        refusal = self.refusals.get((method, plural))
        return None if refusal is None else status(*refusal)

    async def _create(self, request: web.Request, collection: Collection) -> web.Response:
        made = await request.json()
        if made["metadata"]["name"] in collection.objects:
            return status(409, "already exists")
        stored = self.add(made)
        if made["kind"] == "Job" and self.has_nodes:
            self.start(stored)
        return web.json_response(stored, status=201)

    def add(self, made: Object) -> Object:
        """What the server adds to a new object."""
        self.uids += 1
        metadata = {
            "namespace": "default",
            "uid": f"uid-{self.uids}",
            "generation": 1,
            "creationTimestamp": stamp(),
            **made["metadata"],
        }
        return self.store({**made, "metadata": metadata})

    async def _delete(self, request: web.Request, found: Object) -> web.Response:
        uid = (await request.json()).get("preconditions", {}).get("uid")
        if uid not in {None, found["metadata"]["uid"]}:
            return status(409, "the UID in the precondition does not match")
        match = request.match_info
        await self.remove(f"{match['api']}/{match['plural']}", match["name"])
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _replace(self, request: web.Request, before: Object) -> web.Response:
        wanted = await request.json()
        version = wanted["metadata"].get("resourceVersion")
        if version is not None and version != before["metadata"]["resourceVersion"]:
            return status(409, "the object has been modified")
        if request.path.endswith("/status"):
            return web.json_response(self.store({**before, "status": wanted["status"]}))
        return web.json_response(self.store(wanted))

    def apply(self, name: str, spec: Object) -> Object:
        """What `kubectl apply` does."""
        before = self.find(BENCHMARKS, name)
        if before is None:
            body = {
                "apiVersion": API_VERSION,
                "kind": "Benchmark",
                "metadata": {"name": name},
                "spec": spec,
            }
            return self.add(body)
        metadata = {**before["metadata"], "generation": before["metadata"]["generation"] + 1}
        return self.store({**before, "metadata": metadata, "spec": spec})

    async def remove(self, kind: str, name: str) -> None:
        """Deletes an object and, as the garbage collector does, whatever belongs to it."""
        found = self.of(kind).objects[name]
        if kind == JOBS:
            self.store({**found, "metadata": {**found["metadata"], "deletionTimestamp": stamp()}})
            self.stop(name)
            return
        self.delete(name, kind)
        uid = found["metadata"]["uid"]
        for other, collection in list(self.collections.items()):
            for each in list(collection.objects.values()):
                owners = each["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == uid for owner in owners):
                    await self.remove(other, each["metadata"]["name"])

    def start(self, job: Object) -> None:
        """Starts a Job's Pods."""
        name, count = job["metadata"]["name"], job["spec"].get("completions", 1)
        self.store({**job, "status": {"startTime": stamp()}})
        self.pods[name] = [asyncio.create_task(self._run_job(name, job, count))]

    def stop(self, name: str) -> None:
        """Ends a Job's Pods; the Job goes when they are gone, which those of one that ended are."""
        for task in self.pods.get(name, ()):
            if task.done():
                self._collect(name)
            task.cancel()

    def _collect(self, name: str) -> None:
        self.delete(name, JOBS)
        for pod in list(self.of(PODS).objects.values()):
            if pod["metadata"]["labels"].get("job-name") == name:
                self.delete(pod["metadata"]["name"], PODS)

    async def _run_job(self, name: str, job: Object, count: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(self._run_pod(job, index)) for index in range(count)]
            codes = [run.result() for run in runs]
            kind = "Complete" if not any(codes) else "Failed"
            condition = {"type": kind, "status": "True", "lastTransitionTime": stamp()}
            if kind == "Failed":
                condition["reason"] = "BackoffLimitExceeded"
            there = self.find(JOBS, name)
            if there is not None:
                self.store({**there, "status": {**there["status"], "conditions": [condition]}})
        except asyncio.CancelledError:
            self._collect(name)

    async def _run_pod(self, job: Object, index: int) -> int:
        """Runs a Pod as a process; deleted, it gets SIGTERM and the time to end."""
        template, name = job["spec"]["template"], job["metadata"]["name"]
        words = self.folder / f"{name}-{index}.words"
        words.touch()
        # Every address of 127/8 is this machine's: a Pod has one of its own.
        ip = f"127.{random.randrange(1, 255)}.{random.randrange(255)}.{random.randrange(1, 255)}"
        command = translate(self, self.folder, job, index, words)
        command = [word.replace("0.0.0.0:9201", f"{ip}:9201") for word in command]
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{index}",
                "labels": {**template["metadata"]["labels"], "job-name": name},
            },
            "status": {"phase": "Running", "podIP": ip},
        }
        self.add(pod)
        with (self.folder / f"{name}-{index}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, stdout=log, stderr=asyncio.subprocess.STDOUT
            )
        self.processes.append(process)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()
            raise
        message = words.read_text() or (self.folder / f"{name}-{index}.log").read_text()[-2000:]
        ended = {
            "exitCode": code,
            "message": message,
            "reason": "Completed" if code == 0 else "Error",
        }
        self.add(
            {
                **pod,
                "status": {"podIP": ip, "containerStatuses": [{"state": {"terminated": ended}}]},
            }
        )
        return code


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class ServedCluster:
    """A cluster that serves, and the kubeconfig to reach it."""

    cluster: OperatorApiServer
    kubeconfig: Path

    def benchmark(self, name: str) -> Object:
        found = self.cluster.find(BENCHMARKS, name)
        assert found is not None
        return copy.deepcopy(found)

    async def wait(self, claim: Callable[[], bool], limit_s: float = 240) -> None:
        """Fails with the Benchmarks' statuses."""
        await until(claim, self.statuses, limit_s)

    def statuses(self) -> list[object]:
        return [found.get("status") for found in self.cluster.of(BENCHMARKS).objects.values()]

    async def until(self, name: str, phase: str, limit_s: float = 240) -> Object:
        """Waits for a phase; returns the status."""
        await self.wait(
            lambda: self.benchmark(name).get("status", {}).get("phase") == phase, limit_s
        )
        status: Object = self.benchmark(name)["status"]
        return status


@asynccontextmanager
async def serving_cluster(folder: Path) -> AsyncIterator[ServedCluster]:
    """Serves a cluster; at the end no process of it is left."""
    cluster = OperatorApiServer(folder)
    for kind, plural in _PLURALS.items():
        api_server.PLURALS.setdefault(kind, plural)
    app = web.Application(middlewares=[cluster.authorize])
    for root in ("/apis/{api:[^/]+/[^/]+}", "/api/{api:v1}"):
        many = f"{root}/namespaces/{{namespace}}/{{plural}}"
        app.router.add_get(many, cluster.answer)
        app.router.add_post(many, cluster.write)
        for one in (f"{many}/{{name}}", f"{many}/{{name}}/status"):
            for method in ("GET", "PUT", "DELETE"):
                app.router.add_route(method, one, cluster.write)
    async with hosting(app) as address:
        cluster.url = f"http://{address}"
        try:
            yield ServedCluster(cluster, write_access(folder, cluster.url))
            assert cluster.denied == set()
        finally:
            for tasks in list(cluster.pods.values()):
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            for process in cluster.processes:
                if process.returncode is None:
                    process.kill()

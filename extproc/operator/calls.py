"""The calls of the Kubernetes API that the operator makes besides watching: small, and raw JSON."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import ClientError
from kubernetes.aio.client import ApiClient

from extproc.errors import ExtprocError
from extproc.operator.objects import Object
from extproc.operator.resource import GROUP, PLURAL, VERSION
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.reason import describe_error, shorten

_ANSWER_S: Final = 30.0
_PLURALS: Final = {
    "ConfigMap": ("api/v1", "configmaps"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "Job": ("apis/batch/v1", "jobs"),
    "Benchmark": (f"apis/{GROUP}/{VERSION}", PLURAL),
}


class ApiRefusal(ExtprocError):
    """The API server refused a call; `status` is 0 if there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class KubeCalls:
    """Calls with one client, whose credentials are those of its opening."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Returns an object, `None` if there is none."""
        try:
            found: Object = await self._call("GET", _path(kind, namespace, name))
        except ApiRefusal as refusal:
            if refusal.status == 404:
                return None
            raise
        return found

    async def list(
        self, kind: str, namespace: str, selector: str = "", name: str = ""
    ) -> list[Object]:
        """Returns the objects of a label selector; `name` needs no more rights than a list does."""
        query = {"labelSelector": selector} if selector else {}
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        found: list[Object] = (await self._call("GET", _path(kind, namespace), query))["items"]
        return found

    async def create(self, body: Object) -> None:
        await self._call("POST", _path(body["kind"], body["metadata"]["namespace"]), body=body)

    async def replace(self, body: Object, part: str = "") -> Object:
        """Replaces an object, or a `part` of it such as `status`, if it is still the one that was read."""
        metadata = body["metadata"]
        path = _path(body["kind"], metadata["namespace"], metadata["name"])
        written: Object = await self._call("PUT", f"{path}/{part}" if part else path, body=body)
        return written

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Deletes an object once all that belongs to it is gone; one that is not there is as good.

        It has to be the one that was seen: another of its name is not what somebody late wants
        gone.
        """
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", _path(kind, namespace, name), body=options)
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
    ) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            request = await self._client.param_serialize(
                method=method,
                resource_path=path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(
                *request, _preload_content=False, _request_timeout=_ANSWER_S
            )
            async with answer.response as response:
                text = await response.read()
                if response.status >= 300:
                    raise ApiRefusal(response.status, _read_reason(text))
                return json.loads(text)
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            raise ApiRefusal(0, describe_error(error)) from error


def _path(kind: str, namespace: str, name: str = "") -> str:
    root, plural = _PLURALS[kind]
    path = f"/{root}/namespaces/{namespace}/{plural}" if namespace else f"/{root}/{plural}"
    return f"{path}/{name}" if name else path


def _read_reason(text: bytes) -> str:
    try:
        return shorten(str(json.loads(text)["message"]))
    except (ValueError, LookupError, TypeError):
        return "no reason given"


@asynccontextmanager
async def opening(clients: KubeClients) -> AsyncIterator[KubeCalls]:
    """Opens a client with the credentials as they are now."""
    client = await clients.open()
    try:
        yield KubeCalls(client)
    finally:
        await client.close()

"""A few requests to a cluster's API server, with the standard library alone.

Bringing a cluster up polls and applies a handful of objects; a kubectl process for each would cost more than the
rest, and kubectl's discovery hangs while an aggregated API is not up yet.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devcluster.errors import DevclusterError

Object = dict[str, Any]

_PLURALS = {
    "APIService": "apiservices",
    "CertificateSigningRequest": "certificatesigningrequests",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "EndpointSlice": "endpointslices",
    "Namespace": "namespaces",
    "Node": "nodes",
    "Pod": "pods",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StorageClass": "storageclasses",
}


class ApiError(DevclusterError):
    """The API server's own refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One cluster's API, with the credentials of a kubeconfig that devcluster wrote."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        self._host, self._port = str(address.hostname), address.port or 443
        self._headers = {"Accept": "application/json"}
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        else:
            # the ssl module only reads a client certificate from a file
            with tempfile.NamedTemporaryFile() as file:
                file.write(base64.b64decode(user["client-certificate-data"]))
                file.write(base64.b64decode(user["client-key-data"]))
                file.flush()
                self._context.load_cert_chain(file.name)

    def text(self, path: str, *, timeout: float = 10.0) -> str:
        """GET a path that does not answer with an object, such as ``/readyz``."""
        return self._send("GET", path, None, "", timeout).decode()

    def get(self, path: str) -> Object:
        return self._object("GET", path)

    def items(self, path: str) -> list[Object]:
        found = self.get(path)["items"]
        assert isinstance(found, list)
        return found

    def post(self, path: str, body: Object) -> Object:
        return self._object("POST", path, body)

    def put(self, path: str, body: Object) -> Object:
        return self._object("PUT", path, body)

    def delete(self, path: str, body: Object | None = None) -> Object:
        return self._object("DELETE", path, body)

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def apply(self, objects: Iterable[Object]) -> None:
        """Server-side apply of objects, in their order."""
        for item in objects:
            path = f"{object_path(item)}?fieldManager=devcluster&force=true"
            self._send("PATCH", path, json.dumps(item).encode(), "application/apply-patch+yaml", 30)

    def connection(self, *, timeout: float) -> http.client.HTTPSConnection:
        """A connection for whoever sends many requests; only with a client certificate is it authenticated."""
        return http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=timeout)

    def _object(self, method: str, path: str, body: Object | None = None) -> Object:
        data = None if body is None else json.dumps(body).encode()
        answer = json.loads(self._send(method, path, data, "application/json", 30))
        assert isinstance(answer, dict)
        return answer

    def _send(self, method: str, path: str, body: bytes | None, kind: str, timeout: float) -> bytes:
        headers = {**self._headers, "Content-Type": kind} if body is not None else self._headers
        # a connection for each request: these are few, and nothing is left open whoever holds this object
        connection = self.connection(timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(response.status, _message(content) or f"{method} {path}: HTTP {response.status}")
        return content


def object_path(item: Object) -> str:
    """The URL path of an object."""
    metadata = item["metadata"]
    return f"{collection_path(item['apiVersion'], item['kind'], metadata.get('namespace'))}/{metadata['name']}"


def collection_path(api_version: str, kind: str, namespace: str | None = None) -> str:
    """The URL path of all objects of a kind."""
    group = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{group}{scope}/{_PLURALS[kind]}"


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        return content.decode(errors="replace")[:300]

"""A watch in a thread of its own, for tests that must not miss what was there for a moment only."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable

from devcluster.api import Object
from devcluster.cluster import Cluster

_TIMEOUT = 900


class Following:
    """Hands every event of a watch, from all there is on, to a function; ``broken`` says when it ended too early."""

    def __init__(self, cluster: Cluster, path: str, selector: str, take: Callable[[str, Object], None]) -> None:
        self.broken = False
        self._take = take
        self._ending = False
        self._connection = cluster.api.connection(timeout=_TIMEOUT)
        self._path = f"{path}?watch=1&resourceVersion=0&timeoutSeconds={_TIMEOUT}&{selector}"
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Following:
        self._connection.request("GET", self._path)
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)  # ends the read in the other thread
        self._thread.join(60)
        self._connection.close()

    def _follow(self) -> None:
        assert self._response is not None
        try:
            for line in self._response:
                event = json.loads(line)
                self._take(event["type"], event["object"])
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self.broken = not self._ending

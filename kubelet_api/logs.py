"""The log of a container, as it comes from the remote API server.

The remote sends its head as soon as its kubelet has found the container, with or without output; so whoever gets a
stream here may answer at once, and whoever gets an error can still say so with a status.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from kubelet_api import refusal
from kubelet_api.call import Call, CallError
from kubelet_api.query import log_query
from kubelet_api.upstream import Answer, Upstream


class LogStream:
    """The bytes of a log, in pieces as they come; CallError in the middle if the remote breaks off.

    Whoever stops reading closes it, which ends the request at the remote. While nobody reads, the remote waits.
    """

    def __init__(self, answer: Answer) -> None:
        self.wire = answer.channel.wire
        self._channel = answer.channel
        self._channel.gathers = True
        self._content = answer.content()

    def __aiter__(self) -> LogStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._content.__anext__()
        except BaseException:  # its end too
            self._channel.abort()
            raise

    async def aclose(self) -> None:
        self._channel.abort()
        if isinstance(self._content, AsyncGenerator):
            await self._content.aclose()


async def open_log(upstream: Upstream, call: Call) -> LogStream:
    assert call.container is not None
    query = log_query(call.query, call.container)
    path = f"/api/v1/namespaces/{call.twin.namespace}/pods/{call.twin.pod}/log"
    answer = await upstream.ask("GET", path, query, ((b"Connection", b"close"),))
    try:
        if answer.head.status == 200:
            return LogStream(answer)
        body = await answer.refusal()
    except BaseException:
        answer.channel.abort()
        raise
    if answer.head.status == 204:  # the remote pod is on no node yet
        raise CallError(400, f'container "{call.container}" in pod "{call.pod}" is waiting to start: ContainerCreating')
    stream = dict(query).get("stream")
    if answer.head.status == 422 and stream is not None:
        raise CallError(
            400,
            f'unable to return the given log stream: "{stream}". '
            "Please enable PodLogsQuerySplitStreams feature gate in kubelet",
        )
    raise refusal.of_answer(call, answer.head, body)

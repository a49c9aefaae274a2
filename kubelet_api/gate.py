"""The one way in: who asks, may they, is there such a route. Plain requests and upgrades pass it alike.

What is not served is refused after authorization, so that nobody without rights learns what is.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from kubelet_api import authz, routes
from kubelet_api.authn import Authenticator
from kubelet_api.authz import Authorizer
from kubelet_api.call import CallError
from kubelet_api.metrics import Metrics
from kubelet_api.request import Head, Request

_REASONS = {400: "bad-request", 401: "unauthenticated", 403: "forbidden", 404: "no-route", 405: "method", 500: "review"}


class Gate:
    """Lets requests in, or says why not as the kubelet would."""

    def __init__(self, authenticator: Authenticator, authorizer: Authorizer, metrics: Metrics) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._metrics = metrics

    async def admit(self, head: Head, found: routes.Found) -> Request:
        """The request, if it may pass."""
        try:
            return await self._admit(head, found)
        except CallError as error:
            self._metrics.refusals.labels(_REASONS.get(error.status, "bad-request")).inc()
            raise

    async def _admit(self, head: Head, found: routes.Found) -> Request:
        try:
            if head.error is not None:
                raise head.error
            user, headers = await self._authenticator.authenticate(head.headers, head.tls)
        except CallError as error:  # connections are few, and not for keeping by somebody who is not known
            raise CallError(error.status, error.message, (*error.headers, ("Connection", "close"))) from None
        verb = authz.verb(head.method, creates=found.creates)
        await self._authorizer.authorize(user, verb, found.subresources)
        route = found.route
        if route is None:
            raise CallError(404, "404: Page Not Found")
        if route.methods and head.method not in route.methods:
            raise CallError(405, "405: Method Not Allowed", (("Allow", ", ".join(route.methods)),))
        return Request(route, found.names, user, head.method, _query(head.query), headers)

    async def close(self) -> None:
        await self._authenticator.close()
        await self._authorizer.close()


def _query(text: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse_qsl(text, keep_blank_values=True, errors="strict"))
    except ValueError:
        # replaced by another character, an argument of a command would be another argument
        raise CallError(400, "the query is not UTF-8") from None

"""The FastAPI application: the table of routes, behind the gate.

FastAPI's own pages, its redirects and its way to answer errors are off: everything is as the kubelet's.
"""

from __future__ import annotations

import asyncio
import logging

from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kubelet_api import routes
from kubelet_api.call import CallError
from kubelet_api.request import Head, Request, Route
from kubelet_api.service import Service
from kubelet_api.sessions import SessionEnded

log = logging.getLogger(__name__)


def application(service: Service) -> FastAPI:
    """All routes of the table, none of which is reached but through the gate."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for route in routes.TABLE:
        # not functions: those would have a set of methods, and some of the kubelet's routes take any
        app.router.routes.append(StarletteRoute(route.template, _Endpoint(service, route)))
        if route.template.endswith("/{rest:path}"):
            bare = route.template.removesuffix("/{rest:path}")
            app.router.routes.append(StarletteRoute(bare, _Endpoint(service, route)))
    app.add_middleware(_Gated, service=service)
    return app


class _Endpoint:
    """One row of the table as ASGI."""

    def __init__(self, service: Service, route: Route) -> None:
        self._service = service
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope["state"]["request"]
        if request.route is not self._route:  # the permission that was asked for is another row's
            raise CallError(404, "404: Page Not Found")
        response = await self._route.handler(self._service, request)
        await response(scope, receive, send)


class _Gated:
    """Lets requests through the gate, and answers whatever goes wrong with them."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        state = scope["state"]
        head: Head = state["head"]
        found: routes.Found = state["found"]
        code: int | None = None

        async def sending(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            state["request"] = await self._service.gate.admit(head, found)
            scope["path"] = found.path
            await self._app(scope, receive, sending)
        except CallError as error:
            if code is None:
                await _answer(error)(scope, receive, sending)
            else:
                log.info("%s %s broke off: %s", head.method, found.path, error)
                state["abort"]()
        except (SessionEnded, ConnectionError, asyncio.CancelledError):
            state["abort"]()
        except Exception:
            log.exception("%s %s failed", head.method, found.path)
            if code is None:
                await _answer(CallError(500, "Internal Server Error"))(scope, receive, sending)
            else:
                state["abort"]()
        finally:
            self._service.count(found, head.method, code or 499)


def _answer(error: CallError) -> Response:
    return Response(error.message, error.status, dict(error.headers), "text/plain; charset=utf-8")

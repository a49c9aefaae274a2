"""What can go wrong between us and an API server, as one small hierarchy.

Callers decide by class (missing, refused, not reachable, configured wrongly) and show the text to people, so the text
holds what was tried and the server's own words, and never a header, a body that was sent, or a query.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping
from typing import Any

import msgspec

_OTHER_UID = re.compile(r"\bUID in (the )?precondition")
"""The registry and the storage below it say it in different words, and neither in the details."""

_UNCALLED = "failed calling webhook"
"""How the API server says that admission could not ask somebody, and so was not passed."""

_FOREIGN_TEXT = 200
"""Characters shown of an answer that is not a Kubernetes Status, such as a gateway's page."""


class KubeError(Exception):
    """Anything that goes wrong with an API server."""

    def may_be_done(self) -> bool:
        """Whether a write that failed so may have been done all the same; False only where that is certain."""
        return True


class ConfigError(KubeError):
    """The kubeconfig, or what it refers to, cannot be used; trying again changes nothing until somebody mends it."""

    def may_be_done(self) -> bool:
        return False


class Unreachable(KubeError):
    """No whole answer came: the connection failed, broke or was silent. Whether a write was done is not known."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether anything was sent; False where no connection was made."""

    def may_be_done(self) -> bool:
        return self.sent


class ApiError(KubeError):
    """The API server's own refusal."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
        *,
        request: str = "",
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        """The HTTP status."""
        self.reason = reason
        """The machine's word for it, such as ``AlreadyExists``; empty if the answer was not from Kubernetes."""
        self.message = message
        """The server's own words."""
        self.details = details
        self.retry_after = retry_after
        """Seconds after which the server wants to be asked again, if it said so."""
        self.request = request
        """What was asked: method and path, without the query."""

    def __str__(self) -> str:
        where = f"{self.request}: " if self.request else ""
        return f"{where}{self.status} {self.reason}: {self.message}" if self.reason else f"{where}{self.message}"

    def may_be_done(self) -> bool:
        """A refusal is certain. What fails inside the server is not: etcd may have it, and answer too late.

        Webhooks are called before that. 408 is a gateway's, which has waited for whom is not known.
        """
        if self.status >= 500:
            uncalled = any(str(cause.get("message")).startswith(_UNCALLED) for cause in self._causes())
            return not (self.is_not_processed() or (self.reason == "InternalError" and uncalled))
        return self.status == 408

    def is_not_processed(self) -> bool:
        """Whether the server says that it has done nothing and may be asked again."""
        # An eviction that a disruption budget forbids has the same status, but nothing to do with our pace.
        braked = self.status == 429 and not self.has_cause("DisruptionBudget")
        return braked or (self.status == 503 and self.retry_after is not None)

    def has_cause(self, reason: str) -> bool:
        """Whether the details name this cause, such as ``DisruptionBudget``."""
        return any(cause.get("reason") == reason for cause in self._causes())

    def has_no_namespace(self) -> bool:
        """Whether an object could not be made because its namespace is not there, or is being deleted."""
        return self.status == 404 or self.has_cause("NamespaceTerminating")

    def is_another_object(self) -> bool:
        """Whether a write was refused because the object is not the one with the given UID.

        The API server says 409 for PUT and DELETE, and 422 for a PATCH that names a UID.
        """
        if self.status == 422:
            return any(cause.get("field") == "metadata.uid" for cause in self._causes())
        return self.status == 409 and _OTHER_UID.search(self.message) is not None

    def _causes(self) -> list[Mapping[str, Any]]:
        causes = (self.details or {}).get("causes") or ()
        return [cause for cause in causes if isinstance(cause, dict)]


class NotFound(ApiError):
    """404: the object, its namespace or its kind is not there."""


class Conflict(ApiError):
    """409: a precondition (resourceVersion, UID) or another field manager stands against the write."""


class AlreadyExists(ApiError):
    """409: an object of that name is there."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object is not valid."""


class Forbidden(ApiError):
    """403: RBAC, a quota or an admission webhook refuses."""


class Unauthorized(ApiError):
    """401: the server does not know who we are."""


class TooManyRequests(ApiError):
    """429: the server's brake, or a disruption budget's."""


class ServerError(ApiError):
    """5xx: the server could not do it."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def api_error(
    status: Mapping[str, Any], request: str, *, code: int | None = None, retry_after: float | None = None
) -> ApiError:
    """The error that a Kubernetes Status object stands for, as in an answer or in a watch's ERROR event."""
    number = code if code is not None else _integer(status.get("code")) or 500
    reason = str(status.get("reason") or "")
    details = status.get("details")
    if not isinstance(details, dict):
        details = None
    if retry_after is None and details:
        seconds = _integer(details.get("retryAfterSeconds"))
        retry_after = float(seconds) if seconds else None
    message = str(status.get("message") or reason or f"HTTP status {number}")
    return _class_of(number, reason)(number, reason, message, details, retry_after, request=request)


def error_of_answer(request: str, code: int, phrase: str, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error that an HTTP answer other than 2xx stands for, whoever gave it."""
    seconds = parse_retry_after(retry_after)
    try:
        status = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return api_error(status, request, code=code, retry_after=seconds)
    text = " ".join(body[: 4 * _FOREIGN_TEXT].decode(errors="replace").split())[:_FOREIGN_TEXT]
    message = f"{code} {phrase}".strip() + (f": {text}" if text else "")
    return _class_of(code, "")(code, "", message, None, seconds, request=request)


def parse_retry_after(header: str | None) -> float | None:
    """Seconds in a ``Retry-After`` header, which holds a number or, from a gateway, a date."""
    if not header:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        when = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds())


def _class_of(code: int, reason: str) -> type[ApiError]:
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists
    return _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None

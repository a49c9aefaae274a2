"""What the client is told when the remote API server, or something on the way to it, says no.

The local API server shows people the plain text of a kubelet's error, and of a log's error only some statuses
(400, 403, 500 and those of gateways); so a Status object is unwrapped, and a status that would hide its text is
changed to one that shows it.
"""

from __future__ import annotations

import re

import msgspec

from kubelet_api.call import Call, CallError, Kind
from kubelet_api.http1 import Head

_SHOWN = 2000
"""Characters of a text that is passed on."""

_LOG_STATUS = {401: 502, 404: 400, 405: 400, 409: 400, 422: 400, 503: 500, 504: 500}


def of_answer(call: Call, head: Head, body: bytes) -> CallError:
    """The refusal that an answer other than the one hoped for stands for."""
    status = _status_object(body)
    text = str(status.get("message") or status.get("reason") or "") if status is not None else plain_text(head, body)
    if head.status < 400:
        return CallError(502, f"the remote API server gave an unexpected answer: {head.status} {head.phrase}".strip())
    if head.status == 401:
        return CallError(502, "the remote API server refuses Farlet's credentials")
    if head.status == 403 and status is not None:
        text = f"the remote cluster refuses: {text}"
    elif head.status == 404 and status is not None and _is_about_pod(status, call):
        text = "pod does not exist" if call.kind is not Kind.LOGS else f'pod "{call.pod}" does not exist'
    elif not text:
        text = f"the remote API server answered {head.status} {head.phrase}".strip()
    code = _LOG_STATUS.get(head.status, head.status) if call.kind is Kind.LOGS else head.status
    return CallError(code, in_local_words(call, text), _retry_after(head))


def refuses_spdy(head: Head, body: bytes) -> bool:
    """Whether an answer shows that something on the way cannot carry SPDY, rather than that the cluster says no.

    What the cluster says is a Status object, or a kubelet's plain text that the API server passed on. If the upgrade
    was taken out on the way, the API server itself complains about its absence.
    """
    if head.status == 101 or head.status < 400:
        return True
    status = _status_object(body)
    if status is not None:
        return "upgrade request required" in str(status.get("message")).lower()
    if head.first(b"x-accepted-stream-protocol-versions") is not None or head.status in (401, 429):
        return False
    kubelets = (head.first(b"content-type") or b"").startswith(b"text/plain") and head.status in (400, 404, 500)
    return not (kubelets and body.strip())


def in_local_words(call: Call, text: str) -> str:
    """The same text about the local pod."""
    if call.twin.pod == call.pod:
        return text
    return re.sub(rf"(?<![a-z0-9.-]){re.escape(call.twin.pod)}(?![a-z0-9-]|\.[a-z0-9])", lambda _: call.pod, text)


def plain_text(head: Head, body: bytes) -> str:
    """What a person can read of a body that is no Status object: nothing of a gateway's HTML."""
    text = body.decode(errors="replace").strip()[:_SHOWN]
    is_page = (head.first(b"content-type") or b"").startswith(b"text/html") or text[:1] == "<"
    return "" if is_page else text


def _status_object(body: bytes) -> dict[str, object] | None:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == "Status" else None


def _is_about_pod(status: dict[str, object], call: Call) -> bool:
    details = status.get("details")
    return isinstance(details, dict) and details.get("kind") == "pods" and details.get("name") == call.twin.pod


def _retry_after(head: Head) -> tuple[tuple[str, str], ...]:
    value = (head.first(b"retry-after") or b"").decode("latin-1")
    return (("Retry-After", value),) if value.isdecimal() and value.isascii() else ()

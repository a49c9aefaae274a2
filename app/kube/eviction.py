"""Evicting pods: asking that they go, so that disruption budgets have their say."""

from __future__ import annotations

from app.kube.client import Client
from app.kube.errors import ApiError, Conflict, Forbidden, NotFound, ServerError, TooManyRequests
from app.kube.objects import Object
from app.kube.resources import PODS

ASK_AGAIN = 5.0
"""Seconds until an eviction that a budget forbade is tried again, as kubectl does."""


class NotNow(Exception):
    """A budget, or several, forbid an eviction at this moment; the message is the server's."""


async def evict(client: Client, namespace: str, name: str, uid: str) -> bool:
    """Ask that a pod goes, if it is still the one with that UID; False if it is gone, or going anyway."""
    wish: Object = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    try:
        await client.create(PODS.path(namespace, name, "eviction"), wish)
    except (NotFound, Conflict):
        return False  # gone, or changed meanwhile: the next look sees which
    except (TooManyRequests, ServerError) as error:
        # 500: more than one budget, which Kubernetes cannot weigh; it helps to see that
        raise NotNow(_reason(error)) from error
    except Forbidden as error:
        if error.has_cause("NamespaceTerminating"):
            return False  # it goes with its namespace
        raise
    return True


def _reason(error: ApiError) -> str:
    """The server's words, which for a disruption budget are in the details."""
    causes = (error.details or {}).get("causes") or []
    said = [cause["message"] for cause in causes if cause.get("message")]
    return "; ".join(said) or error.message

"""What a twin is called, and what its pod believes to be called.

A twin outlives no local pod, so its name holds a hash of that pod's UID: the next pod of a StatefulSet has the same
name and must not meet the twin of the one before. Everything here is stable: after a restart the same names come out.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from app.kube.objects import Object

MAX_LABEL: Final = 63
"""The longest DNS label, label value and hostname."""

HOSTNAME_OVERRIDE_SINCE: Final = 35
"""The minor version of Kubernetes whose pods may have a hostname with dots."""

# The API server cuts a generated pod name's stem to 58 characters, the dash included, before it adds five of its own.
_MAX_TWIN_NAME: Final = 57
_HASH_LENGTH: Final = 10


def short_hash(text: str, length: int = _HASH_LENGTH) -> str:
    """A few characters, at most 16, that stand for a text and are valid in every name: five bits each."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest()[:10]).decode()[:length].lower()


def twin_name(pod: Object) -> str:
    """The name of a local pod's twin: readable, unique to the pod's UID, and whole in the names of its pods."""
    metadata = pod["metadata"]
    suffix = short_hash(metadata["uid"])
    stem = metadata["name"].replace(".", "-")[: _MAX_TWIN_NAME - len(suffix) - 1].rstrip("-")
    return f"{stem}-{suffix}"


def hostname_fields(pod: Object, remote_minor: int) -> Object:
    """The fields of the remote spec that give its containers the hostname that they would have locally.

    A pod's hostname is its name unless its spec says otherwise, and the remote pod's name is another one.
    """
    spec = pod["spec"]
    has_override = remote_minor >= HOSTNAME_OVERRIDE_SINCE
    if spec.get("hostNetwork") or spec.get("hostname") or (spec.get("hostnameOverride") and has_override):
        return {}
    wanted = (spec.get("hostnameOverride") or pod["metadata"]["name"])[:MAX_LABEL].rstrip("-.")  # as the kubelet cuts
    if "." not in wanted:
        return {"hostname": wanted}
    if has_override and not spec.get("setHostnameAsFQDN"):  # the API server refuses the two together
        return {"hostnameOverride": wanted}
    return {"hostname": wanted.replace(".", "-")}

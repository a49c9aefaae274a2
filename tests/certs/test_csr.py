"""Signing requests as objects. With a real signer: tests/cluster/test_certificates.py."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from certs.csr import Outcome, approved, outcome_of, request_object

PEM = b"a certificate"


def condition(kind: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": "True", **more}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (None, Outcome()),
        ({}, Outcome()),
        ({"conditions": [condition("Approved")]}, Outcome(approved=True)),
        (
            {"conditions": [condition("Approved")], "certificate": base64.b64encode(PEM).decode()},
            Outcome(certificate=PEM, approved=True),
        ),
        (
            {"conditions": [condition("Denied", reason="KubectlDeny", message="no")]},
            Outcome(refusal="was denied (KubectlDeny: no)"),
        ),
        ({"conditions": [condition("Denied")]}, Outcome(refusal="was denied")),
        (
            {"conditions": [condition("Approved"), condition("Failed", reason="SignerValidationFailure")]},
            Outcome(refusal="cannot be signed (SignerValidationFailure)"),
        ),
        (
            {"conditions": [condition("Approved")], "certificate": "%%%"},
            Outcome(refusal="was answered with something that is no certificate"),
        ),
    ],
)
def test_outcome(status: dict[str, Any] | None, outcome: Outcome) -> None:
    assert outcome_of({"status": status}) == outcome


def test_request() -> None:
    made = request_object("far", b"request", 600)
    assert made["metadata"] == {"generateName": "farlet-far-"}
    assert made["spec"] == {
        "request": base64.b64encode(b"request").decode(),
        "signerName": "kubernetes.io/kubelet-serving",
        "usages": ["digital signature", "server auth"],
        "expirationSeconds": 600,
    }
    assert "expirationSeconds" not in request_object("far", b"request")["spec"]


def test_approval_keeps_what_is_there() -> None:
    request: dict[str, Any] = {
        "metadata": {"name": "x", "resourceVersion": "7"},
        "status": {"conditions": [condition("Other")]},
    }
    made = approved(request)
    assert [entry["type"] for entry in made["status"]["conditions"]] == ["Other", "Approved"]
    assert made["metadata"] == request["metadata"]
    assert len(request["status"]["conditions"]) == 1

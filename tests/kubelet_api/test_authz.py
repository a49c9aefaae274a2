"""What is asked before somebody may do something."""

from __future__ import annotations

import pytest

from app.kube.errors import ApiError, ConfigError, KubeError, Unreachable
from kubelet_api.authz import allows, review, verb
from kubelet_api.call import User
from kubelet_api.reviews import worth_another_try


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        ("GET", "get"),
        ("POST", "create"),
        ("PUT", "update"),
        ("PATCH", "patch"),
        ("DELETE", "delete"),
        ("HEAD", ""),
        ("OPTIONS", ""),
        ("get", ""),
    ],
)
def test_verbs(method: str, plain: str) -> None:
    assert verb(method, creates=False) == plain
    assert verb(method, creates=True) == "create"


def test_a_review() -> None:
    user = User("jane", "uid-1", ("a", "b"), (("key", ("v",)),))
    assert review(user, "get", "metrics", "node-1") == {
        "user": "jane",
        "uid": "uid-1",
        "groups": ["a", "b"],
        "extra": {"key": ["v"]},
        "resourceAttributes": {
            "verb": "get",
            "version": "v1",
            "resource": "nodes",
            "subresource": "metrics",
            "name": "node-1",
        },
    }


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        ({"allowed": True}, True),
        ({"allowed": False}, False),
        ({}, False),
        ({"allowed": "yes"}, False),
        ({"denied": True}, False),
    ],
)
def test_answers(status: dict[str, object], allowed: bool) -> None:
    assert allows(status) is allowed


def test_an_answer_that_contradicts_itself() -> None:
    with pytest.raises(KubeError):
        allows({"allowed": True, "denied": True})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ApiError(429, "", ""), True),
        (ApiError(500, "", ""), True),
        (ApiError(504, "", ""), True),
        (ApiError(503, "", ""), False),
        (ApiError(503, "", "", retry_after=1.0), True),
        (ApiError(403, "", ""), False),
        (Unreachable("reset"), True),
        (ConfigError("no token"), False),
    ],
)
def test_what_is_asked_again(error: KubeError, again: bool) -> None:
    assert worth_another_try(error) is again

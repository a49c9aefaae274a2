"""``farlet remove`` goes on where the next round may be better, and ends where it will not be."""

from __future__ import annotations

import asyncio

import pytest

from app import remover
from app.kube.client import Client
from app.kube.config import Connection
from app.kube.election import NotLeading
from app.kube.errors import KubeError, Unreachable, api_error
from app.removal import View
from app.remover import RemovalOptions, Remover


def drain(monkeypatch: pytest.MonkeyPatch, trouble: KubeError) -> list[str]:
    """What is said where the first look at the clusters ends so, and the second finds nothing left to do."""
    said: list[str] = []
    client = Client(Connection("https://127.0.0.1:1", "nowhere"))
    removing = Remover(client, None, "0a1b2c3d", RemovalOptions(node="far"), said.append)
    looks = iter([trouble])

    async def view() -> View:
        for failure in looks:
            raise failure
        return View(pods=[], remote=None, leading=True)

    monkeypatch.setattr(removing, "_view", view)
    monkeypatch.setattr(remover, "_ROUND", 0.0)
    asyncio.run(removing._drain())
    return said


@pytest.mark.parametrize(
    "trouble",
    [
        Unreachable("no answer"),
        NotLeading("not ours"),
        api_error({"code": 410, "reason": "Expired", "message": "the continue token is too old"}, "GET /x"),
        api_error({"code": 429, "reason": "TooManyRequests", "message": "slow down"}, "GET /x"),
        api_error({"code": 500, "message": "etcd"}, "GET /x"),
    ],
)
def test_trouble_that_passes_is_said_and_waited_for(monkeypatch: pytest.MonkeyPatch, trouble: KubeError) -> None:
    assert drain(monkeypatch, trouble) == [str(trouble)]


def test_a_refusal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KubeError, match="you may not"):
        drain(monkeypatch, api_error({"code": 403, "reason": "Forbidden", "message": "you may not"}, "GET /x"))

"""How long it is waited for caches, and for which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from app import caches
from app.facts import StartError
from app.kube.errors import ApiError, Forbidden, ServerError, Unauthorized, Unreachable
from app.kube.informers import Cache
from app.kube.resources import PODS


class Late:
    """A cache that is complete when it has been looked at a few times."""

    resource = PODS

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self._looks = 0

    @property
    def synced(self) -> bool:
        self._looks += 1
        return self._looks > 3


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None, bool], None]:
    """Wait for one, where time is over at once."""
    monkeypatch.setattr(caches, "_SYNC_TIMEOUT", -1.0)

    def waited(error: Exception | None, patient: bool) -> None:
        asyncio.run(caches.all_synced([cast(Cache, Late(error))], patient=patient))

    return waited


AWAY = [None, Unreachable("refused"), ServerError(503, "ServiceUnavailable", "bad gateway")]
REFUSED = Unauthorized(401, "Unauthorized", "who are you")


@pytest.mark.parametrize("error", AWAY)
def test_for_a_cluster_that_is_away_only_who_is_patient_waits(
    error: Exception | None, wait: Callable[[Exception | None, bool], None]
) -> None:
    wait(error, True)
    with pytest.raises(StartError, match=f"could not read everything .* pods: {error or 'no answer'}"):
        wait(error, False)


@pytest.mark.parametrize("error", [REFUSED, Forbidden(403, "Forbidden", "you may not")])
@pytest.mark.parametrize("patient", [True, False])
def test_for_one_that_refuses_nobody_does(
    error: ApiError, patient: bool, wait: Callable[[Exception | None, bool], None]
) -> None:
    with pytest.raises(StartError, match=error.message):
        wait(error, patient)

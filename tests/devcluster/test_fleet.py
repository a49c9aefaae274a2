"""What a fleet refuses before it starts anything."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from devcluster import fleet
from devcluster.errors import DevclusterError
from devcluster.process import watches_in_use

LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")

pytestmark = pytest.mark.skipif(not LIMIT.exists(), reason="inotify is Linux's")


def test_an_inotify_instance_is_counted() -> None:
    descriptors = [ctypes.CDLL(None).inotify_init() for _ in range(3)]
    links = [Path(f"/proc/self/fd/{descriptor}").readlink() for descriptor in descriptors]
    try:
        assert [str(link) for link in links] == ["anon_inode:inotify"] * 3
        assert watches_in_use() >= 3
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_too_few_inotify_instances_are_said_before_a_kubelet_dies_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = int(LIMIT.read_text())
    cluster = SimpleNamespace(spec=SimpleNamespace(real=True))
    monkeypatch.setattr(fleet, "watches_in_use", lambda: limit - 17)
    with pytest.raises(DevclusterError, match=r"1 more clusters need about 18 .*sysctl -w fs.inotify"):
        fleet._check_watches([cluster])  # type: ignore[list-item]
    monkeypatch.setattr(fleet, "watches_in_use", lambda: limit - 18)
    fleet._check_watches([cluster])  # type: ignore[list-item]
    fleet._check_watches([])

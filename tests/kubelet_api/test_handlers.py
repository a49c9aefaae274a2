"""Answers that are written piece by piece."""

from __future__ import annotations

import pytest

from kubelet_api.handlers import _gathered


@pytest.mark.parametrize(("size", "count"), [(10, 2000), (5_000, 200), (200_000, 3)])
def test_pieces_are_of_few_parts_and_not_long(size: int, count: int) -> None:
    """Whoever waits meanwhile waits for one piece."""
    pieces = list(_gathered([bytes(size)] * count))
    assert sum(map(len, pieces)) == size * count
    assert max(map(len, pieces)) <= max(64 * size, 64 << 10)
    assert max(map(len, pieces)) < (64 << 10) + size
    assert len(pieces) > min(count, count // 100)

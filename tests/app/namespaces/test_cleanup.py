"""What the cleaner remembers."""

from __future__ import annotations

from app.namespaces.cleanup import Recent


def test_only_the_latest_are_remembered() -> None:
    recent = Recent(3)
    for name in ("a", "b", "c", "a", "d"):
        recent.add(name)
    assert [name for name in "abcd" if name in recent] == ["a", "c", "d"]
    recent.discard("a")
    recent.discard("a")
    assert "a" not in recent

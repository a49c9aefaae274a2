"""Tables for people: columns as wide as what is in them, numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is a text and stands to the left."""
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    print(f"\n{title}")
    for row in (columns, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        print("  " + "  ".join(cells).rstrip())
    print(end="", flush=True)


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def milliseconds(value: float) -> str:
    """Of seconds."""
    return f"{value * 1000:.1f} ms"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

"""Capacity as a person states it in a flag, or a program of theirs prints it.

It is checked here, where it can still be said what is wrong and on which line; the API server would only refuse the
node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from app import quantity
from app.node.capacity import NATIVE, Capacity, CapacityError

_RESOURCE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def parse_flag(text: str) -> Capacity:
    """Capacity as a flag states it: ``cpu=100,memory=256Gi,nvidia.com/gpu=8``."""
    entries = [entry.strip() for entry in text.split(",")]
    return _stated([(f"in {text!r}", *_split(entry, f"in {text!r}")) for entry in entries if entry], f"{text!r}")


def parse_output(text: str) -> Capacity:
    """Capacity as a program prints it: a JSON object, or lines of ``name=quantity`` (``#`` begins a comment).

    Printing nothing is an error: a program that fails quietly must not take the node's capacity away.
    """
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if entry:
            entries.append((f"line {number}", *_split(entry, f"line {number}")))
    return _stated(entries, "the output")


def _parse_json(text: str) -> Capacity:
    def pairs(items: list[tuple[str, object]]) -> list[tuple[str, object]]:
        return items  # a dict would hide what is stated twice

    try:
        # numbers stay texts: 0.1 is no float here, and 1e3 is a quantity
        document = json.loads(text, object_pairs_hook=pairs, parse_float=str, parse_int=str)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise CapacityError(f"the output is not valid JSON: {where}") from error
    entries = []
    for name, value in document:
        if not isinstance(value, str):
            raise CapacityError(f"the output: {name!r} is no quantity: one text or number is expected")
        entries.append(("the output", name, value.strip()))
    return _stated(entries, "the output")


def _split(entry: str, where: str) -> tuple[str, str]:
    name, equals, text = entry.partition("=")
    if not equals or not name.strip() or not text.strip():
        raise CapacityError(f"{where}: {entry[:100]!r} is not name=quantity, such as cpu=100 or memory=256Gi")
    return name.strip(), text.strip()


def _stated(entries: Iterable[tuple[str, str, str]], source: str) -> Capacity:
    """Validated entries of (where, resource, quantity)."""
    result: Capacity = {}
    for where, resource, text in entries:
        if resource in result:
            raise CapacityError(f"{where}: {resource} is stated twice")
        result[resource] = _stated_quantity(where, resource, text)
    if not result:
        raise CapacityError(f"{source} states no capacity; expected is name=quantity, such as cpu=100")
    return dict(sorted(result.items()))


def _stated_quantity(where: str, resource: str, text: str) -> str:
    if not _is_node_resource(resource):
        known = ", ".join(NATIVE)
        raise CapacityError(
            f"{where}: unknown resource {resource[:100]!r}; known are {known}, hugepages-SIZE, "
            "and names with a domain, such as nvidia.com/gpu"
        )
    try:
        value = quantity.nano(text)
        if value < 0:
            raise CapacityError(f"{where}: {resource}={text} is negative")
        unit = quantity.quantum(resource)
        rounded = value if quantity.is_count(resource) else value // unit * unit
        return quantity.format_nano(rounded, resource)
    except quantity.QuantityError as error:
        raise CapacityError(f"{where}: {resource}: {error}") from error


def _is_node_resource(resource: str) -> bool:
    if resource in NATIVE:
        return True
    prefix, _, size = resource.partition("-")
    if prefix == "hugepages" and size:
        try:
            return quantity.nano(size) >= quantity.NANO
        except quantity.QuantityError:
            return False
    return len(resource) <= 316 and _RESOURCE_NAME.fullmatch(resource) is not None

"""Quantities as Kubernetes writes them (``1500m``, ``2Gi``, ``3e6``): read exactly, written in its canonical form.

Everything is counted in whole billionths. That is the finest that Kubernetes can say, so sums are exact integers, and
what we write is, character for character, what the API server would answer: an object that did not change compares
equal to what is stored, and nothing is written.
"""

from __future__ import annotations

import contextlib
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

CPU: Final = "cpu"

NANO: Final = 10**9
"""Billionths in one."""

_TEXT = re.compile(r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))([A-Za-z]*|[eE][+-]?[0-9]+)")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {power: suffix for suffix, power in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {power: suffix for suffix, power in _BINARY.items()}

LARGEST: Final = (2**63 - 1) * NANO
"""The largest amount, in billionths, that Kubernetes can count; it caps quantities with a binary suffix here."""

_LONGEST, _LARGEST_EXPONENT = 100, 100
"""No sensible quantity comes near; the bounds keep a hostile one from costing memory."""

_BYTES: Final = ("memory", "ephemeral-storage", "storage")
_HUGEPAGES: Final = "hugepages-"


class QuantityError(ValueError):
    """A text that is no quantity, or a value that a resource cannot have."""


def parse(text: str) -> Fraction:
    """The value of a quantity, exact to a billionth; what is finer is rounded away from zero, as Kubernetes does."""
    return Fraction(nano(text), NANO)


@lru_cache(maxsize=4096)
def nano(text: str) -> int:
    """A quantity in billionths."""
    match = _TEXT.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise QuantityError(f"{text[:_LONGEST]!r} is not a quantity such as 2, 1500m, 0.5 or 256Gi")
    sign, integer, fraction, bare_fraction, suffix = match.groups()
    decimals = fraction or bare_fraction or ""
    digits = int((integer or "") + decimals)
    if suffix in _BINARY:
        value = min(_divide_away((digits * NANO) << _BINARY[suffix], 10 ** len(decimals)), LARGEST)
    else:
        power = _power_of_ten(text, suffix) - len(decimals)
        value = _divide_away(digits * NANO * 10 ** max(power, 0), 10 ** max(-power, 0))
    return -value if sign == "-" else value


def milli(text: str) -> int:
    """A quantity in thousandths, rounded away from zero: of a little, some remains."""
    return _divide_away(nano(text), NANO // 1000)


def whole(text: str) -> int:
    """A quantity in whole units, rounded away from zero."""
    return _divide_away(nano(text), NANO)


def is_bytes(resource: str) -> bool:
    """Whether a resource is measured in bytes."""
    name = _unprefixed(resource)
    return name in _BYTES or name.startswith(_HUGEPAGES)


def is_count(resource: str) -> bool:
    """Whether a resource comes in whole pieces: pods, GPUs, and everything else that is neither CPU nor bytes."""
    return _unprefixed(resource) != CPU and not is_bytes(resource)


def quantum(resource: str) -> int:
    """The smallest useful amount of a resource, in billionths: 1m of CPU, a byte, a whole huge page, one piece."""
    name = _unprefixed(resource)
    if name == CPU:
        return NANO // 1000
    if name.startswith(_HUGEPAGES):
        with contextlib.suppress(QuantityError):  # no API server checks the size in a node's resource names
            return max(nano(name.removeprefix(_HUGEPAGES)), NANO)
    return NANO


def format_quantity(value: int | Fraction, resource: str) -> str:
    """A value in the unit of its resource (cores, bytes, pieces), as the API server would answer it."""
    scaled = value * NANO
    if scaled != int(scaled):
        raise QuantityError(f"{value} of {resource} is finer than a billionth, which no quantity can say")
    return format_nano(int(scaled), resource)


def format_nano(value: int, resource: str) -> str:
    """As :func:`format_quantity`, of a value in billionths."""
    if abs(value) > LARGEST:  # the API server reads 1000E as 1
        raise QuantityError(f"{value // NANO} of {resource} is more than Kubernetes can count")
    if _unprefixed(resource) != CPU and value % NANO:
        raise QuantityError(f"{_decimal(value)} of {resource}: it comes in whole units only")
    return _bytes(value // NANO) if is_bytes(resource) else _decimal(value)


def readable(text: str, resource: str) -> str:
    """A quantity for people: bytes in a unit that leaves few digits, everything else as it is."""
    value = nano(text) // NANO
    if not is_bytes(resource) or value < 1024:
        return text
    power = max(power for power in _BINARY_SUFFIX if value >= 1 << power)
    scaled = value / (1 << power)
    return f"{scaled:.0f}{_BINARY_SUFFIX[power]}" if scaled >= 100 else f"{scaled:.3g}{_BINARY_SUFFIX[power]}"


def _unprefixed(resource: str) -> str:
    """Quotas say ``requests.cpu`` and ``limits.memory`` for what nodes and pods call ``cpu`` and ``memory``."""
    return resource.removeprefix("requests.").removeprefix("limits.")


def _power_of_ten(text: str, suffix: str) -> int:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    if len(suffix) > 1 and suffix[0] in "eE" and not suffix[1:].isalpha():
        power = int(suffix[1:])
        if abs(power) > _LARGEST_EXPONENT:
            raise QuantityError(f"{text!r}: an exponent beyond ±{_LARGEST_EXPONENT} is no quantity")
        return power
    known = ", ".join([*filter(None, _DECIMAL), *_BINARY])
    raise QuantityError(f"{text!r}: unknown suffix {suffix!r}; quantities end in one of {known}, or an exponent")


def _divide_away(numerator: int, denominator: int) -> int:
    """Division by a positive number, rounded away from zero."""
    return -(-numerator // denominator) if numerator > 0 else numerator // denominator


def _decimal(value: int) -> str:
    """The shortest mantissa with a power of 1,000, of a value in billionths."""
    power = -9
    while value % 1000 == 0 and power < 18 and value:
        value //= 1000
        power += 3
    return f"{value}{_DECIMAL_SUFFIX[power]}" if value else "0"


def _bytes(value: int) -> str:
    """The shortest mantissa with a power of 1,024; whatever has none comes back from the server as a decimal."""
    if value == 0 or value % 1024:
        return _decimal(value * NANO)
    power = 0
    while value % 1024 == 0 and power < 60:
        value //= 1024
        power += 10
    return f"{value}{_BINARY_SUFFIX[power]}"

"""Node selector terms, judged as the scheduler judges them: terms are ORed, what is in a term is ANDed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from app.kube.objects import Object


def any_term_allows(terms: Iterable[Object], name: str, labels: Mapping[str, str]) -> bool:
    """Whether one of the terms selects a node of this name with these labels."""
    return any(_term_allows(term, name, labels) for term in terms)


def _term_allows(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False  # an empty term selects nothing
    return all(_matches(e, labels) for e in expressions) and all(_matches(f, {"metadata.name": name}) for f in fields)


def _matches(expression: Object, labels: Mapping[str, str]) -> bool:
    values, actual = expression.get("values") or [], labels.get(expression["key"])
    match expression.get("operator"):
        case "In":
            return actual in values
        case "NotIn":
            return actual not in values
        case "Exists":
            return actual is not None
        case "DoesNotExist":
            return actual is None
        case "Gt":
            return _is_integer(actual) and int(str(actual)) > int(values[0])
        case "Lt":
            return _is_integer(actual) and int(str(actual)) < int(values[0])
    return False


def _is_integer(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) is not None

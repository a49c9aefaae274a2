"""The affinity that every remote pod gets: checked when Farlet starts, not when the first pod is refused.

The shape is checked, and what Farlet itself reads to know which remote nodes count; the rest is the API server's to
judge, and its refusal is told on the pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from app.kube.objects import Object

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WITH_VALUES: Final = frozenset({"In", "NotIn"})
_WITHOUT_VALUES: Final = frozenset({"Exists", "DoesNotExist"})
_COMPARING: Final = frozenset({"Gt", "Lt"})
_OPERATORS: Final = _WITH_VALUES | _WITHOUT_VALUES | _COMPARING


def checked(content: Any) -> Object:
    """The content of a pod's ``affinity``; ValueError says where it is none."""
    sections = _mapping(content, "the affinity", ("nodeAffinity", "podAffinity", "podAntiAffinity"))
    for kind, rules in sections.items():
        _mapping(rules, kind, (_REQUIRED, _PREFERRED))
        node = kind == "nodeAffinity"
        check: Callable[[Any, str], None] = _check_node_term if node else _check_pod_term
        if _REQUIRED in rules:
            where, required = f"{kind}.{_REQUIRED}", rules[_REQUIRED]
            if node:
                terms = _mapping(required, where, ("nodeSelectorTerms",)).get("nodeSelectorTerms")
                required, where = terms, f"{where}.nodeSelectorTerms"
            for term, place in _items(required, where):
                check(term, place)
        for weighted, place in _items(rules.get(_PREFERRED, ()), f"{kind}.{_PREFERRED}", may_be_empty=True):
            name = "preference" if node else "podAffinityTerm"
            weight = _mapping(weighted, place, ("weight", name)).get("weight")
            if not isinstance(weight, int) or not 1 <= weight <= 100:
                raise ValueError(f"{place}.weight: a number from 1 to 100 is needed")
            check(weighted.get(name), f"{place}.{name}")
    return sections


def _check_node_term(term: Any, where: str) -> None:
    for name, expressions in _mapping(term, where, ("matchExpressions", "matchFields")).items():
        for expression, place in _items(expressions, f"{where}.{name}"):
            _check_expression(expression, place)


def _check_expression(expression: Any, where: str) -> None:
    fields = _mapping(expression, where, ("key", "operator", "values"))
    operator, values = fields.get("operator"), fields.get("values") or []
    if not isinstance(fields.get("key"), str) or not fields["key"]:
        raise ValueError(f"{where}.key: a label is needed")
    if operator not in _OPERATORS:
        raise ValueError(f"{where}.operator: one of {', '.join(sorted(_OPERATORS))} is needed")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{where}.values: a list of texts is needed (numbers in quotes)")
    if operator in _WITH_VALUES and not values:
        raise ValueError(f"{where}.values: {operator} needs at least one")
    if operator in _WITHOUT_VALUES and values:
        raise ValueError(f"{where}.values: {operator} has none")
    if operator in _COMPARING and (len(values) != 1 or not re.fullmatch(r"-?[0-9]{1,18}", values[0])):
        raise ValueError(f"{where}.values: {operator} needs one whole number, in quotes")


def _check_pod_term(term: Any, where: str) -> None:
    if not isinstance(term, dict) or not isinstance(term.get("topologyKey"), str) or not term["topologyKey"]:
        raise ValueError(f"{where}.topologyKey: a label of nodes is needed")


def _mapping(value: Any, where: str, known: tuple[str, ...]) -> Object:
    if not isinstance(value, dict) or not value.keys() <= set(known):
        raise ValueError(f"{where}: {' and '.join(known)} are what can be in it")
    return value


def _items(value: Any, where: str, *, may_be_empty: bool = False) -> list[tuple[Any, str]]:
    if not isinstance(value, list | tuple) or not (value or may_be_empty):
        raise ValueError(f"{where}: a list is needed")
    return [(item, f"{where}[{index}]") for index, item in enumerate(value)]

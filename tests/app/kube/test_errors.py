"""Answers become errors that callers can tell apart and people can read."""

from __future__ import annotations

import datetime
import email.utils
import json

import pytest

from app.kube import errors
from app.kube.errors import ApiError, api_error, error_of_answer, parse_retry_after


def _status(code: int, reason: str, message: str = "no", **more: object) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message, **more}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
def test_class_by_status_and_reason(code: int, reason: str, expected: type[ApiError]) -> None:
    error = error_of_answer("GET /x", code, "", _status(code, reason))
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (code, reason, "no")


def test_text_holds_what_was_asked_and_the_servers_words() -> None:
    error = error_of_answer("GET /api/v1/pods", 403, "Forbidden", _status(403, "Forbidden", "you may not"))
    assert str(error) == "GET /api/v1/pods: 403 Forbidden: you may not"


def test_an_answer_that_is_not_from_kubernetes_is_shown_in_short() -> None:
    page = b"<html>\n<h1>Bad   gateway</h1>" + b"x" * 10_000
    error = error_of_answer("GET /x", 502, "Bad Gateway", page)
    assert isinstance(error, errors.ServerError)
    assert str(error).startswith("GET /x: 502 Bad Gateway: <html> <h1>Bad gateway</h1>xxx")
    assert len(str(error)) < 300


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"kind":"Pod"}', b"\xff\xfe"])
def test_any_body_gives_an_error(body: bytes) -> None:
    assert error_of_answer("GET /x", 404, "Not Found", body).status == 404


def test_a_watch_error_event_is_an_error_too() -> None:
    error = api_error({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}, "GET /api/v1/pods")
    assert isinstance(error, errors.Gone)
    assert str(error) == "GET /api/v1/pods: 410 Expired: too old"


def test_details_of_the_wrong_shape_do_no_harm() -> None:
    error = api_error({"code": "what", "details": [1], "message": None}, "GET /x")
    assert (error.status, error.details, error.retry_after) == (500, None, None)


def test_retry_after_from_header_wins_over_details() -> None:
    body = _status(429, "TooManyRequests", details={"retryAfterSeconds": 10})
    assert error_of_answer("GET /x", 429, "", body).retry_after == 10
    assert error_of_answer("GET /x", 429, "", body, "2").retry_after == 2


def test_retry_after_may_be_a_date() -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=60)
    assert parse_retry_after(email.utils.format_datetime(soon, usegmt=True)) == pytest.approx(60, abs=2)
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert parse_retry_after("soon") is None
    assert parse_retry_after(None) is None


def test_causes() -> None:
    details = {"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}]}
    error = api_error({"code": 429, "details": details}, "POST /x")
    assert error.has_cause("DisruptionBudget")
    assert not error.has_cause("FieldValueInvalid")
    assert not api_error({"code": 429}, "POST /x").has_cause("DisruptionBudget")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"code": 404, "reason": "NotFound"}, True),
        ({"code": 403, "reason": "Forbidden", "details": {"causes": [{"reason": "NamespaceTerminating"}]}}, True),
        ({"code": 403, "reason": "Forbidden"}, False),
        ({"code": 409, "reason": "AlreadyExists"}, False),
    ],
)
def test_a_namespace_that_is_not_there_or_going(status: dict[str, object], expected: bool) -> None:
    assert api_error(status, "POST /x").has_no_namespace() is expected


WEBHOOK = 'failed calling webhook "deny.example.com": failed to call webhook: Post "https://x": connection refused'


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *(({"code": code}, False) for code in (400, 401, 403, 404, 409, 410, 413, 422, 429)),
        ({"code": 408}, True),
        ({"code": 500, "reason": "InternalError", "message": "etcdserver: request timed out"}, True),
        ({"code": 500, "reason": "InternalError", "details": {"causes": [{"message": WEBHOOK}]}}, False),
        ({"code": 502, "details": {"causes": [{"message": WEBHOOK}]}}, True),
        ({"code": 503}, True),
        ({"code": 503, "details": {"retryAfterSeconds": 1}}, False),
        ({"code": 504, "reason": "Timeout"}, True),
    ],
)
def test_whether_a_write_that_failed_may_be_done(status: dict[str, object], expected: bool) -> None:
    assert api_error(status, "POST /x").may_be_done() is expected


def test_what_was_not_sent_is_not_done() -> None:
    assert errors.Unreachable("x").may_be_done()
    assert not errors.Unreachable("x", sent=False).may_be_done()
    assert not errors.ConfigError("x").may_be_done()
    assert errors.KubeError("x").may_be_done(), "unless it is certain"

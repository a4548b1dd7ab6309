"""The document at /openapi.json tells of every route; no request made after it breaks a handler."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftman.gateway.app import ROUTES
from ftman.gateway.errors import internal_error
from ftman.gateway.openapi import document
from tests.ftman.gateway.serving import Manager

# Ends the manager; these measure for a minute.
LEFT_OUT = ("/api/ft/shutdown", "/api/ft/calibrate", "/api/ft/bench")
# The models of the fixture must survive.
KEEPS_NAMES = ("/api/delete", "/api/create", "/api/copy")


def fuzzable() -> dict[str, Any]:
    """The document, with model names that exist."""
    made = copy.deepcopy(document(ROUTES))
    for path in LEFT_OUT:
        del made["paths"][path]
    for path, operations in made["paths"].items():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            if "model" in schema.get("properties", {}) and path not in KEEPS_NAMES:
                schema["properties"]["model"] = {"enum": ["tiny", "tools", "nope", ""]}
    return made


def cases() -> st.SearchStrategy[Any]:
    """Any request that the document allows."""
    schema = schemathesis.openapi.from_dict(fuzzable())
    return st.one_of([found.ok().as_strategy() for found in schema.get_all_operations()])


def check(manager: Manager, case: Any) -> None:
    """Send it; a fault of ours has one text, every error on purpose has another."""
    case.headers.pop("Host", None)
    reply = case.call(base_url=manager.url, timeout=30)
    assert internal_error().message.encode() not in reply.content, reply.content


def test_every_route_is_in_the_document(manager: Manager) -> None:
    made = manager.http.get("/openapi.json").json()
    for route in ROUTES:
        path = route.path.replace("*", "{tail}")
        operation = made["paths"][path][route.method.lower()]
        assert operation["summary"]
        assert ("requestBody" in operation) == (route.body != "none")
    assert made["paths"]["/v1/messages"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["required"] == ["model", "messages", "max_tokens"]


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=100, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(case=cases())
def test_a_hundred_requests_are_no_fault_of_ours(manager: Manager, case: Any) -> None:
    check(manager, case)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_two_thousand_requests_are_no_fault_of_ours(manager: Manager, case: Any) -> None:
    check(manager, case)

"""instructor: a type comes out, in each of its modes that our dialects serve."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from pydantic import BaseModel

from tests.clients.suites.stage import (
    REAL_TOOLS,
    REAL_URL,
    URL,
    needs_real,
)

MODEL = "caller"
ADA = {"name": "Ada", "age": 36}


class Person(BaseModel):
    """A name and an age."""

    name: str
    age: int


def client(mode: instructor.Mode, url: str = URL) -> Any:
    """A client of ours in a mode."""
    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(plain, mode=mode)


def ask(client: Any, words: str, model: str = MODEL, **options: Any) -> Any:
    """One question with a type for an answer."""
    return client.chat.completions.create(
        model=model,
        response_model=Person,
        messages=[{"role": "user", "content": words}],
        **options,
    )


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (instructor.Mode.TOOLS, "NAMED"),
        (instructor.Mode.JSON, "PERSON"),
        (instructor.Mode.JSON_SCHEMA, "PERSON"),
        (instructor.Mode.MD_JSON, "FENCED"),
    ],
)
def test_a_type_comes_out(mode: instructor.Mode, words: str) -> None:
    assert ask(client(mode), words).model_dump() == ADA


def test_it_comes_out_in_pieces() -> None:
    found = list(
        client(instructor.Mode.TOOLS).chat.completions.create_partial(
            model=MODEL, response_model=Person, messages=[{"role": "user", "content": "NAMED"}]
        )
    )
    assert found[-1].model_dump() == ADA


def test_responses_mode() -> None:
    found = client(instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=MODEL, response_model=Person, input="NAMED"
    )
    assert found.model_dump() == ADA


def test_a_wrong_answer_is_asked_for_again_and_told() -> None:
    with pytest.raises(InstructorRetryException, match="age"):
        ask(client(instructor.Mode.TOOLS), "WRONG", max_retries=2)


def test_errors() -> None:
    with pytest.raises(InstructorRetryException, match="nope"):
        ask(client(instructor.Mode.TOOLS), "Hi", "nope", max_retries=1)


@needs_real
@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_the_real_model_is_kept_to_the_type(mode: instructor.Mode) -> None:
    words = "Ada is 36 years old. Answer with name and age as JSON."
    found = ask(client(mode, REAL_URL), words, REAL_TOOLS, max_tokens=300, max_retries=1)
    assert isinstance(found.age, int)

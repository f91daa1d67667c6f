"""A person answers questions at a terminal: keys in, answers out."""

from __future__ import annotations

from typing import Any

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from roundgate.cli.dialogue import Person, Prompts
from roundgate.client import CANCEL, DECLINE, Question

ENTER, DOWN, NEW_LINE, END = "\r", "\x1b[B", "\x1b\r", "\x04"
CLEAR = "\x15"  # Ctrl-U


def form(required: list[str] | None = None, **properties: Any) -> Question:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    params = {"message": "Please say", "requestedSchema": schema}
    return Question.read("order", {"method": "elicitation/create", "params": params}, "book")


async def answer(question: Question, keys: str) -> Any:
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        return await Person(Prompts(pipe, DummyOutput()))(question)


@pytest.mark.parametrize(
    ("schema", "keys", "expected"),
    [
        ({"type": "string"}, "Paris", "Paris"),
        ({"type": "string"}, f"one{NEW_LINE}two", "one\ntwo"),
        ({"type": "string", "default": "Rome"}, "", "Rome"),
        ({"type": "integer", "maximum": 9}, "3", 3),
        ({"type": "integer", "maximum": 9}, f"10{ENTER}{CLEAR}4", 4),
        ({"type": "integer"}, f"three{ENTER}{CLEAR}3", 3),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "boolean"}, "", True),
        ({"type": "boolean"}, DOWN, False),
        ({"type": "boolean", "default": False}, "", False),
        ({"type": "string", "enum": ["a", "b"]}, DOWN, "b"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["Ah", "Be"]}, DOWN, "b"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "Ah"}, {"const": "b"}]}, DOWN, "b"),
        ({"type": "string", "minLength": 2}, f"x{ENTER}y", "xy"),
    ],
)
async def test_a_field_is_asked_in_the_way_of_its_schema(
    schema: dict[str, Any], keys: str, expected: Any
) -> None:
    assert await answer(form(field=schema), keys + ENTER + ENTER) == {"field": expected}


async def test_several_of_several() -> None:
    several = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1}
    keys = DOWN * 3 + ENTER + "\x1b[A" * 3 + ENTER + DOWN * 2 + ENTER + DOWN + ENTER
    assert await answer(form(field=several), keys + ENTER) == {"field": ["a", "c"]}


async def test_what_is_optional_may_be_left_out() -> None:
    question = form(
        [],
        text={"type": "string"},
        choice={"enum": ["a"]},
        flags={"type": "array", "items": {"enum": [1]}},
    )
    assert await answer(question, ENTER + DOWN + ENTER + DOWN + ENTER + ENTER) == {}


async def test_an_answer_can_be_changed_before_it_is_sent() -> None:
    keys = f"Pris{ENTER}{DOWN}{ENTER}{ENTER}{CLEAR}Paris{ENTER}{ENTER}"
    assert await answer(form(city={"type": "string"}), keys) == {"city": "Paris"}


@pytest.mark.parametrize(("steps", "expected"), [(2, DECLINE), (3, CANCEL)])
async def test_a_form_can_be_declined_and_dismissed(steps: int, expected: object) -> None:
    assert await answer(form(city={"type": "string"}), f"x{ENTER}{DOWN * steps}{ENTER}") is expected


async def test_the_end_of_input_dismisses_a_question() -> None:
    assert await answer(form(city={"type": "string"}), END) is CANCEL


async def test_ctrl_c_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        await answer(form(city={"type": "string"}), "\x03")


def visit(url: str = "https://bank.example/pay?x=1") -> Question:
    params = {"mode": "url", "message": "Pay", "url": url, "elicitationId": "1"}
    return Question.read("pay", {"method": "elicitation/create", "params": params}, "buy")


def opening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A browser that notes what it is asked to open."""
    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    return opened


async def test_nothing_is_opened_without_consent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = opening(monkeypatch)
    assert await answer(visit("https://Evil.example/bank.example"), ENTER) is DECLINE
    assert not opened
    assert "host:        evil.example" in capsys.readouterr().err


async def test_a_url_is_opened_with_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opening(monkeypatch)
    assert await answer(visit(), "\x1b[A" * 2 + ENTER) is True
    assert opened == ["https://bank.example/pay?x=1"]


async def test_a_person_stands_in_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    message = {"role": "user", "content": {"type": "text", "text": "Capital of \x1b[31mFrance?"}}
    params = {"messages": [message], "systemPrompt": "Be brief", "maxTokens": 10}
    question = Question.read("ask", {"method": "sampling/createMessage", "params": params}, "quiz")
    assert await answer(question, f"Paris{ENTER}") == "Paris"
    assert "user: Capital of \\u001b[31mFrance?" in capsys.readouterr().err


async def test_folders_are_given_one_by_one(tmp_path: Any) -> None:
    question = Question.read("roots", {"method": "roots/list"}, "index")
    keys = f"{CLEAR}/no/such/folder{ENTER}{CLEAR}{tmp_path}{ENTER}{ENTER}"
    assert await answer(question, keys) == [tmp_path.as_uri()]

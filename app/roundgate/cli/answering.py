"""Where the answers of a command come from: a file, a command, a person at the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from roundgate.cli.output import say
from roundgate.client import Answerer, Answers, Kind, Question
from roundgate.errors import ConfigError, UsageError
from roundgate.settings import yaml_file

SAMPLE_S: Final = 600.0
"""How long a command may take to write a sample."""


def sources(arguments: argparse.Namespace, before_asking: Callable[[], None]) -> Answers:
    """What answers, in this order: the file, the command, the person.

    Args:
        before_asking: called before a person is asked, to clear the line
            that prompts are written on.

    Raises:
        UsageError: the file cannot be read.
    """
    found: list[Any] = []
    if arguments.answers is not None:
        found.append(_by_key(arguments.answers))
    if arguments.sample_command is not None:
        found.append(_Command(arguments.sample_command))
    if not arguments.no_input and sys.stdin.isatty() and sys.stderr.isatty():
        found.append(_AtTheTerminal(before_asking))
    return Answers(*found)


def report_unused(answers: Answers) -> None:
    """Say which answers nobody asked for: a misspelt key must not pass in silence."""
    if answers.unused:
        say(f"no question asked for these answers: {', '.join(answers.unused)}", to=sys.stderr)


def _by_key(path: Path) -> Mapping[str, Any]:
    try:
        found = yaml_file.read(path).value
    except ConfigError as error:
        raise UsageError(f"--answers: {path} cannot be read: {error.problems[0].message}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UsageError(f"--answers: {path} has to be a mapping from keys of questions to answers")
    return found


class _Command:
    """A command that writes samples, one process each."""

    def __init__(self, command: str) -> None:
        self._words = shlex.split(command)
        if not self._words:
            raise UsageError("--sample-command: give a command")

    async def __call__(self, question: Question) -> str | None:
        if question.kind is not Kind.SAMPLING:
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise UsageError(f"--sample-command: {self._words[0]} cannot be run: {error}") from None
        try:
            async with asyncio.timeout(SAMPLE_S):
                output, _ = await process.communicate(json.dumps(question.params).encode())
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            raise UsageError(
                f"--sample-command: {self._words[0]} ended with status {process.returncode}"
            )
        return output.decode(errors="replace").removesuffix("\n")


class _AtTheTerminal:
    """Asks the person at the terminal; what asks is imported when there is a question."""

    def __init__(self, before_asking: Callable[[], None]) -> None:
        self._before_asking = before_asking
        self._person: Answerer | None = None

    async def __call__(self, question: Question) -> Any:
        if self._person is None:
            try:
                from roundgate.cli.dialogue import Person
            except ImportError:
                raise UsageError(
                    "To be asked on a terminal: pip install 'roundgate[cli]', or give --answers "
                    "FILE"
                ) from None
            self._person = Person()
        self._before_asking()
        return await self._person(question)

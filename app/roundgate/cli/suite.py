"""`roundgate test SUITE …`: cases against a server, a report for people, JUnit XML or JSON for programs.

The exit status is 0 if nothing failed, 1 if something did, 2 if a suite or an option cannot be
used, 5 if the server that was to be started does not come up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO

from roundgate import suites
from roundgate.cli import output, remote
from roundgate.cli.output import Status, escaped_lines, say
from roundgate.client import VERSIONS, Client
from roundgate.clock import Clock
from roundgate.errors import ConfigError, GatewayError, UsageError
from roundgate.observability import Style, escaped
from roundgate.suites import (
    Case,
    CaseResult,
    Difference,
    Failure,
    Run,
    Secrets,
    Snapshots,
    SuiteFile,
    SuiteResult,
    Target,
    Variables,
    Verdict,
)


def run(arguments: argparse.Namespace) -> int:
    """Run suites."""
    try:
        return asyncio.run(_Session(arguments).run())
    except KeyboardInterrupt:
        return remote.INTERRUPTED
    except ConfigError as error:
        say(f"{len(error.problems)} problem(s):", to=sys.stderr)
        for problem in error.problems:
            print(escaped_lines(str(problem)), file=sys.stderr)
        return remote.USAGE
    except GatewayError as error:
        return remote.refused(error, has_lines=True)


class _Session:
    """One run of the command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._clock = Clock()
        self._report = Report(sys.stdout)
        self._is_quiet = arguments.json
        self._stopped = False

    async def run(self) -> int:
        """Everything; returns the exit status.

        Raises:
            ConfigError: what is wrong with the suites, all of it.
            UsageError, ConnectionLost: the run cannot begin.
        """
        chosen = [(file, self._chosen(file)) for file in _loaded(self._arguments.suites)]
        if self._arguments.list:
            for file, indexes in chosen:
                for index in indexes:
                    output.show_text(f"{file.path}\t{file.suite.cases[index].name}")
            return remote.DONE
        if not any(indexes for _, indexes in chosen):
            raise UsageError("--filter: no case has this in its name or its tags; --list has them")
        begun = self._clock.monotonic_ms()
        results: list[SuiteResult] = []
        with ExitStack() as files:
            options = remote.client_options(self._arguments, files)
            for file, indexes in chosen:
                if indexes and not self._stopped:
                    results.append(await self._suite(file, indexes, options))
        self._write(results, self._clock.monotonic_ms() - begun)
        failed = any(suite.count(Verdict.FAILED) for suite in results)
        return remote.FAILED if failed else remote.DONE

    def _chosen(self, file: SuiteFile) -> list[int]:
        wanted = [text.casefold() for text in self._arguments.filter]

        def fits(case: Case) -> bool:
            said = [case.name.casefold(), *(tag.casefold() for tag in case.tags)]
            return not wanted or any(text in one for text in wanted for one in said)

        return [index for index, case in enumerate(file.suite.cases) if fits(case)]

    async def _suite(
        self, file: SuiteFile, indexes: Sequence[int], options: Mapping[str, Any]
    ) -> SuiteResult:
        begun = self._clock.monotonic_ms()
        secrets = Secrets([os.environ.get(self._arguments.token_env, "")])
        own = _Own(file, self._arguments, secrets)
        snapshots = Snapshots.beside(file.path, updates=self._arguments.update)
        async with suites.started(own.target()) as target:
            client = own.client_options(options)
            run = Run(file, lambda: Client(target.url, **client), snapshots, secrets)
            if not self._is_quiet:
                self._report.suite(file.name, secrets.hidden(str(own)))
            with Status(sys.stderr) as status:
                cases = await run.cases(
                    indexes,
                    jobs=self._arguments.jobs,
                    begun=lambda case: status.show(f"running: {case.name}"),
                    done=lambda result: self._done(file, result, status),
                    stops=self._stops,
                )
        is_whole = len(cases) == len(file.suite.cases) and not any(
            case.verdict is not Verdict.PASSED for case in cases
        )
        snapshots.save(drop_unused=is_whole)
        if is_whole and snapshots.unused and not self._is_quiet:
            self._report.note(
                f"snapshots that no step uses: {', '.join(snapshots.unused)}; --update drops them"
            )
        return SuiteResult(
            file.name,
            str(file.path),
            secrets.hidden(str(own)),
            cases,
            self._clock.monotonic_ms() - begun,
        )

    def _done(self, file: SuiteFile, result: CaseResult, status: Status) -> None:
        status.hide()
        if not self._is_quiet:
            self._report.case(str(file.path), result)

    def _stops(self, result: CaseResult) -> bool:
        if self._arguments.fail_fast and result.verdict is Verdict.FAILED:
            self._stopped = True
        return self._stopped

    def _write(self, results: Sequence[SuiteResult], duration_ms: float) -> None:
        if self._arguments.junit is not None:
            try:
                self._arguments.junit.write_text(suites.junit(results), encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"--junit: {self._arguments.junit} cannot be written: {error}"
                ) from None
        if self._arguments.json:
            output.show_json([asdict(suite) for suite in results])
        else:
            self._report.total(results, duration_ms)


def _loaded(paths: Sequence[Path]) -> list[SuiteFile]:
    """All suites.

    Raises:
        ConfigError: what is wrong with any of them.
    """
    files: list[SuiteFile] = []
    problems: list[Any] = []
    for path in paths:
        try:
            files.append(suites.load(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return files


class _Own:
    """What a suite says of the server that it tests, and what the command line says instead."""

    def __init__(self, file: SuiteFile, arguments: argparse.Namespace, secrets: Secrets) -> None:
        self._file = file
        self._arguments = arguments
        self._server = file.suite.server
        environ = dict(os.environ)
        self._variables = Variables(
            {"port": "${port}", "unique": ""}, file.folder, environ, secrets
        )
        try:
            self._variables.define(file.suite.variables)
        except ValueError as error:
            raise UsageError(f"{file.path}: variables: {error}") from None
        self._secrets = secrets

    def __str__(self) -> str:
        if self._arguments.url is not None:
            return str(self._arguments.url)
        if self._arguments.serve is not None:
            return str(self._arguments.serve)
        return str(self.target())

    def target(self) -> Target:
        """What is tested.

        Raises:
            UsageError: nobody says what.
        """
        server, filled = self._server, self._filled
        environment = {} if server is None else filled(server.environment)
        timeout_s = 60.0 if server is None else server.start_timeout_s
        if self._arguments.url is not None:
            return Target(self._arguments.url)
        if self._arguments.serve is not None:
            return Target.of_gateway(
                self._arguments.serve, environment, timeout_s, str(self._arguments.serve)
            )
        if server is None or not (server.url or server.gateway):
            raise UsageError(
                f"{self._file.path} does not say what it tests: give --url, --serve, or `server` "
                "in the suite"
            )
        if server.gateway:
            config = self._file.folder / filled(server.gateway)
            return Target.of_gateway(config, environment, timeout_s, server.gateway)
        return Target(
            filled(server.url),
            tuple(filled(server.command or [])),
            environment,
            self._file.folder,
            timeout_s,
            "" if server.command is None else " ".join(server.command),
        )

    def client_options(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the command line, and where it says nothing, those of the suite.

        The token and the headers are for the server that the suite names:
        another gets none of them.
        """
        options = dict(said)
        server = self._server
        if server is None:
            return options
        if not self._arguments.revision:
            options["versions"] = server.revisions or VERSIONS
        if self._arguments.url is not None:
            return options
        headers = self._filled(server.headers)
        self._secrets.add(list(headers.values()))
        options["headers"] = {**headers, **options["headers"]}
        if options["auth"] is None and server.token is not None:
            options["auth"] = self._filled(server.token)
            self._secrets.add(options["auth"])
        return options

    def _filled(self, value: Any) -> Any:
        try:
            return self._variables.filled(value)
        except ValueError as error:
            raise UsageError(f"{self._file.path}: server: {error}") from None


_SIGNS: Final = {
    Verdict.PASSED: ("✓", "pass", "green"),
    Verdict.FAILED: ("✗", "FAIL", "red"),
    Verdict.SKIPPED: ("–", "skip", "yellow"),
}
_SLOW_MS: Final = 1_000


class Report:
    """Prints results as they come."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._style = Style(to)

    def suite(self, name: str, target: str) -> None:
        """The head of a suite."""
        self._print(f"{self._style(escaped(name), 'bold')} {self._dim(f'({escaped(target)})')}")

    def case(self, path: str, result: CaseResult) -> None:
        """One case, with what is wrong with it."""
        drawn, plain, colour = _SIGNS[result.verdict]
        sign = self._style.sign(drawn, plain) if self._style.is_on else plain
        beside = (
            f"  {escaped(result.reason)}"
            if result.verdict is Verdict.SKIPPED
            else f"  {_duration(result.duration_ms)}"
        )
        self._print(f"  {self._style(sign, colour)} {escaped(result.name)}{self._dim(beside)}")
        if result.failure is not None:
            for line in self._failure(path, result.failure):
                self._print(f"      {line}")

    def total(self, suites: Sequence[SuiteResult], duration_ms: float) -> None:
        """The last line."""
        counts = {verdict: sum(suite.count(verdict) for suite in suites) for verdict in Verdict}
        parts = [
            self._style(f"{count} {verdict}", _SIGNS[verdict][2])
            for verdict, count in counts.items()
            if count
        ]
        self._print(f"{', '.join(parts) or 'nothing was run'} in {_duration(duration_ms)}")

    def note(self, text: str) -> None:
        """A line about a suite."""
        self._print(f"  {self._style(escaped(text), 'yellow')}")

    def _failure(self, path: str, failure: Failure) -> Iterator[str]:
        place = f"{path}:{failure.line}" if failure.line else path
        yield self._dim(escaped(f"{place}: step {failure.step}: {failure.title}"))
        for line in failure.message.split("\n"):
            yield escaped(line)
        for one in failure.differences:
            yield from self._difference(one)

    def _difference(self, one: Difference) -> Iterator[str]:
        yield self._style(escaped(one.path), "cyan")
        for line in one.lines:
            colour = {"-": "green", "+": "red"}.get(line[:1])
            text = escaped(line)
            yield f"  {self._style(text, colour) if colour else text}"
        if one.lines:
            yield self._dim("  (- expected, + actual)")
            return
        yield f"  expected  {self._style(escaped(one.expected), 'green')}"
        yield f"  actual    {self._style(escaped(one.actual), 'red')}"

    def _dim(self, text: str) -> str:
        return self._style(text, "dim")

    def _print(self, line: str) -> None:
        print(line, file=self._to, flush=True)


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < _SLOW_MS else f"{ms / 1_000:.1f} s"

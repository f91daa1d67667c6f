"""`roundgate test SUITE …`: test cases against a server, with a report as text, JUnit XML or JSON.

The exit status is 0 if no case failed, 1 if a case failed, 2 if a suite or an option is invalid,
and 5 if the server under test cannot be started.
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

from roundgate.cli import output, remote
from roundgate.cli.arguments import Commands, command, flag, number, repeated
from roundgate.cli.output import OutputStatus, escaped_lines, say
from roundgate.client import VERSIONS, Client
from roundgate.clock import Clock
from roundgate.errors import ConfigError, GatewayError, Problem, UsageError
from roundgate.observability import Style, escaped
from roundgate_testing import suites
from roundgate_testing.suites import (
    CaseResult,
    Failure,
    Mismatch,
    Secrets,
    Snapshots,
    SuiteFile,
    SuiteResult,
    SuiteRun,
    SuiteTarget,
    Variables,
    Verdict,
)


def declare(commands: Commands) -> None:
    """Add `roundgate test`."""
    test = command(
        commands, "test", "run suites of cases against a server",
        "roundgate test suite.yaml --jobs 4 --junit results.xml",
        "roundgate test suite.yaml --serve gateway.yaml --filter refund",
        "roundgate test suite.yaml --url https://staging.example/mcp --update", run=run,
    )  # fmt: skip
    test.add_argument(
        "suites", nargs="+", type=Path, metavar="SUITE", help="file of a suite, such as suite.yaml"
    )
    against = test.add_mutually_exclusive_group()
    against.add_argument("--url", help="test this server instead of the suites' servers")
    about = "serve this gateway.yaml, and test it"
    against.add_argument("--serve", type=Path, metavar="CONFIG", help=about)
    about = "only cases with this text in their name or tags; may be repeated"
    repeated(test, "--filter", "TEXT", about)
    jobs, about = number(int, 1, 64), "number of cases to run concurrently (default: %(default)s)"
    test.add_argument("--jobs", type=jobs, default=1, metavar="N", help=about)
    flag(test, "--fail-fast", "stop after the first failure")
    flag(test, "--update", "store snapshots instead of comparing them")
    flag(test, "--list", "print the cases without running them")
    test.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML to a file")
    remote.add_connection(test)


def run(arguments: argparse.Namespace) -> int:
    """Run suites and return the exit status."""
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
        self._report = SuiteReport(sys.stdout, is_quiet=arguments.json)
        self._stopped = False

    async def run(self) -> int:
        """Run the suites, or list their cases; return the exit status.

        Raises:
            ConfigError: a suite is invalid; lists the problems of all suites.
            UsageError: an option is invalid, or no case matches `--filter`.
            ConnectionLost: a server under test cannot be started.
        """
        chosen = [(file, self._chosen(file)) for file in _loaded(self._arguments.suites)]
        if self._arguments.list:
            for file, indexes in chosen:
                for index in indexes:
                    output.show_text(f"{file.path}\t{file.suite.cases[index].name}")
            return remote.DONE
        if not any(indexes for _, indexes in chosen):
            raise UsageError(
                "--filter: no case has this text in its name or tags; use --list to print all cases"
            )
        begun_ms = self._clock.monotonic_ms()
        results: list[SuiteResult] = []
        with ExitStack() as files:
            options = remote.client_options(self._arguments, files)
            for file, indexes in chosen:
                if indexes and not self._stopped:
                    results.append(await self._suite(file, indexes, options))
        self._write_junit(results)
        if self._arguments.json:
            output.show_json([asdict(suite) for suite in results])
        self._report.total(results, self._clock.monotonic_ms() - begun_ms)
        failed = any(suite.count(Verdict.FAILED) for suite in results)
        return remote.FAILED if failed else remote.DONE

    def _chosen(self, file: SuiteFile) -> list[int]:
        texts = [text.casefold() for text in self._arguments.filter]
        names = [[name.casefold() for name in (case.name, *case.tags)] for case in file.suite.cases]
        return [
            index
            for index, of_case in enumerate(names)
            if not texts or any(text in name for text in texts for name in of_case)
        ]

    async def _suite(
        self, file: SuiteFile, indexes: Sequence[int], options: Mapping[str, Any]
    ) -> SuiteResult:
        begun_ms = self._clock.monotonic_ms()
        secrets = Secrets([os.environ.get(self._arguments.token_env, "")])
        server = _ServerOptions(file, self._arguments, secrets)
        snapshots = Snapshots.beside(file.path, updates=self._arguments.update)
        target = server.target()
        shown = secrets.hidden(str(target))
        async with suites.started(target) as target:
            client = server.client_options(options)
            run = SuiteRun(file, lambda: Client(target.url, **client), snapshots, secrets)
            self._report.suite(file.name, shown)
            with OutputStatus(sys.stderr) as status:

                def done(result: CaseResult) -> None:
                    status.hide()
                    self._report.case(str(file.path), result)

                cases = await run.cases(
                    indexes,
                    jobs=self._arguments.jobs,
                    begun=lambda case: status.show(f"running: {case.name}"),
                    done=done,
                    stops=self._stops,
                )
        all_passed = len(cases) == len(file.suite.cases) and all(
            case.verdict is Verdict.PASSED for case in cases
        )
        snapshots.save(drop_unused=all_passed)
        if all_passed and snapshots.unused:
            unused = ", ".join(snapshots.unused)
            self._report.note(f"unused snapshots: {unused}; --update removes them")
        duration_ms = self._clock.monotonic_ms() - begun_ms
        return SuiteResult(file.name, str(file.path), shown, cases, duration_ms)

    def _stops(self, result: CaseResult) -> bool:
        if self._arguments.fail_fast and result.verdict is Verdict.FAILED:
            self._stopped = True
        return self._stopped

    def _write_junit(self, results: Sequence[SuiteResult]) -> None:
        path = self._arguments.junit
        if path is not None:
            try:
                path.write_text(suites.junit(results), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"--junit: {path} cannot be written: {error}") from None


def _loaded(paths: Sequence[Path]) -> list[SuiteFile]:
    files: list[SuiteFile] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            files.append(suites.load(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return files


class _ServerOptions:
    """The server under test and the options of its client. The command line overrides the suite."""

    def __init__(self, file: SuiteFile, arguments: argparse.Namespace, secrets: Secrets) -> None:
        self._file = file
        self._arguments = arguments
        self._server = file.suite.server
        self._secrets = secrets
        built_in = {"port": "${port}", "unique": ""}
        self._variables = Variables(built_in, file.folder, dict(os.environ), secrets)
        try:
            self._variables.define(file.suite.variables)
        except ValueError as error:
            raise UsageError(f"{file.path}: variables: {error}") from None

    def target(self) -> SuiteTarget:
        """Return the server under test.

        Raises:
            UsageError: neither the command line nor the suite names a server.
        """
        server, filled = self._server, self._filled
        environment = {} if server is None else filled(server.environment)
        timeout_s = 60.0 if server is None else server.start_timeout_s
        if self._arguments.url is not None:
            return SuiteTarget(self._arguments.url)
        if (config := self._arguments.serve) is not None:
            return SuiteTarget.of_gateway(config, environment, timeout_s, str(config))
        if server is None or not (server.url or server.gateway):
            raise UsageError(
                f"{self._file.path} does not name a server: pass --url or --serve, or set `server` "
                "in the suite"
            )
        if server.gateway:
            config = self._file.folder / filled(server.gateway)
            return SuiteTarget.of_gateway(config, environment, timeout_s, server.gateway)
        command = tuple(filled(server.command or []))
        shown = " ".join(server.command or [])
        folder = self._file.folder
        return SuiteTarget(filled(server.url), command, environment, folder, timeout_s, shown)

    def client_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client options of the command line, completed by the suite's options.

        The suite's token and headers are not sent to a server set by `--url` or `--serve`.
        """
        options = dict(options)
        server = self._server
        if server is None:
            return options
        if not self._arguments.revision:
            options["versions"] = server.revisions or VERSIONS
        if self._arguments.url is not None or self._arguments.serve is not None:
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


class SuiteReport:
    """The report for people, printed as results arrive; `is_quiet` suppresses it."""

    def __init__(self, to: TextIO, *, is_quiet: bool) -> None:
        self._to = to
        self._is_quiet = is_quiet
        self._style = Style(to)

    def suite(self, name: str, target: str) -> None:
        """Print the heading of a suite."""
        self._print(f"{self._style(escaped(name), 'bold')} {self._dim(f'({escaped(target)})')}")

    def case(self, path: str, result: CaseResult) -> None:
        """Print the result of a case, with its failure."""
        drawn, plain, colour = _SIGNS[result.verdict]
        sign = self._style.sign(drawn, plain) if self._style.is_on else plain
        is_skipped = result.verdict is Verdict.SKIPPED
        note = escaped(result.reason) if is_skipped else _duration(result.duration_ms)
        self._print(f"  {self._style(sign, colour)} {escaped(result.name)}{self._dim(f'  {note}')}")
        if result.failure is not None:
            for line in self._failure(path, result.failure):
                self._print(f"      {line}")

    def total(self, suites: Sequence[SuiteResult], duration_ms: float) -> None:
        """Print the counts of all suites and the duration of the run."""
        counts = {verdict: sum(suite.count(verdict) for suite in suites) for verdict in Verdict}
        parts = [
            self._style(f"{count} {verdict}", _SIGNS[verdict][2])
            for verdict, count in counts.items()
            if count
        ]
        self._print(f"{', '.join(parts) or 'no cases were run'} in {_duration(duration_ms)}")

    def note(self, text: str) -> None:
        """Print a remark about a suite."""
        self._print(f"  {self._style(escaped(text), 'yellow')}")

    def _failure(self, path: str, failure: Failure) -> Iterator[str]:
        place = f"{path}:{failure.line}" if failure.line else path
        yield self._dim(escaped(f"{place}: step {failure.step}: {failure.title}"))
        yield from map(escaped, failure.message.split("\n"))
        for difference in failure.differences:
            yield from self._difference(difference)

    def _difference(self, difference: Mismatch) -> Iterator[str]:
        yield self._style(escaped(difference.path), "cyan")
        for line in difference.lines:
            colour = {"-": "green", "+": "red"}.get(line[:1])
            yield f"  {self._style(escaped(line), colour) if colour else escaped(line)}"
        if difference.lines:
            yield self._dim("  (- expected, + actual)")
        else:
            yield f"  expected  {self._style(escaped(difference.expected), 'green')}"
            yield f"  actual    {self._style(escaped(difference.actual), 'red')}"

    def _dim(self, text: str) -> str:
        return self._style(text, "dim")

    def _print(self, line: str) -> None:
        if not self._is_quiet:
            print(line, file=self._to, flush=True)


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1_000:.1f} s"

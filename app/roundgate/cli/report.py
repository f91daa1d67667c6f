"""What people read of a run: a line a case, and under each that failed what was
expected and what came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from roundgate.observability import Style, escaped
from roundgate.suites import CaseResult, Difference, Failure, SuiteResult, Verdict

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

"""Alarms of `template.yaml`, judged as CloudWatch judges them, on metrics as AWS publishes them.

A metric is what was told of it, minute by minute. An alarm looks at its last `EvaluationPeriods`
periods: each is a statistic of the points in it, or missing, and missing ones count as
`TreatMissingData` says. It fires when all breach; with `missing`, when those with points do, and
when there are none any more and `InsufficientDataActions` tells it.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/AlarmThatSendsEmail.html#alarms-and-missing-data
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from roundgate_aws.template import StackTemplate

Minutes: TypeAlias = Sequence[float | None]
"""The value of a metric in each minute, the latest last; `None` without points."""
Told: TypeAlias = Minutes | Mapping[str, Minutes]
"""The minutes of the metric of an alarm, or of each metric of its expression, by id."""

STATISTICS: Mapping[str, Callable[[list[float]], float]] = {
    "Maximum": max,
    "Minimum": min,
    "Sum": sum,
    "p99": max,  # the values are the percentiles of each minute
}
ALONE = "alone"
"""The id of the metric of an alarm without an expression."""


@dataclass(frozen=True)
class Metric:
    """A metric that an alarm looks at."""

    namespace: str
    name: str
    dimensions: Mapping[str, str]
    statistic: str


@dataclass(frozen=True)
class Alarm:
    """An alarm of the template."""

    name: str
    terms: Mapping[str, Metric]
    """The metrics by their ids in the expression."""
    expression: str
    minutes: int
    """The minutes of a period."""
    periods: int
    threshold: float
    missing_breaches: bool | None
    """`None` if missing periods do not count."""
    tells_no_data: bool = False

    @property
    def metrics(self) -> list[Metric]:
        return [*self.terms.values()]

    def fires(self, told: Told) -> bool:
        """Whether it has told its topic that it is in the state ALARM, or has no data any more, after
        these minutes; before them nothing was told."""
        by_id = told if isinstance(told, Mapping) else {ALONE: told}
        assert by_id.keys() == self.terms.keys()
        wanted = self.minutes * self.periods
        last = {name: [*([None] * wanted), *minutes][-wanted:] for name, minutes in by_id.items()}
        breaches = [
            self._breaches(
                {name: minutes[at : at + self.minutes] for name, minutes in last.items()}
            )
            for at in range(0, wanted, self.minutes)
        ]
        known = [one for one in breaches if one is not None]
        had_data = any(point is not None for minutes in by_id.values() for point in minutes)
        return all(known) if known else self.tells_no_data and had_data

    def _breaches(self, period: Mapping[str, Minutes]) -> bool | None:
        value = _evaluated(
            self.expression,
            {name: _point(self.terms[name], minutes) for name, minutes in period.items()},
        )
        return self.missing_breaches if value is None else value >= self.threshold


def _point(metric: Metric, minutes: Minutes) -> float | None:
    """The statistic of a metric in a period; `None` without points."""
    points = [point for point in minutes if point is not None]
    return STATISTICS[metric.statistic](points) if points else None


def _evaluated(expression: str, points: Mapping[str, float | None]) -> float | None:
    """The value of an expression of CloudWatch's metric math; `None` if a point is missing or a
    divisor is 0. FILL and IF are all that the template uses beside arithmetic."""
    functions = {
        "FILL": lambda point, other: other if point is None else point,
        "IF": lambda condition, yes, no: yes if condition else no,
    }
    try:
        value: float | None = eval(expression, {"__builtins__": {}}, {**functions, **points})
    except (TypeError, ZeroDivisionError):
        return None
    return value


def alarms(template: StackTemplate) -> dict[str, Alarm]:
    """All of them, by name."""
    return {
        name: _alarm(name, template.properties(name))
        for name in template.named("AWS::CloudWatch::Alarm")
    }


def _alarm(name: str, properties: Mapping[str, Any]) -> Alarm:
    assert properties["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
    terms, expression, period_s = _looked_at(properties)
    assert period_s % 60 == 0
    return Alarm(
        name,
        terms,
        expression,
        period_s // 60,
        properties["EvaluationPeriods"],
        float(properties["Threshold"]),
        {"breaching": True, "notBreaching": False, "missing": None}[properties["TreatMissingData"]],
        "InsufficientDataActions" in properties,
    )


def _looked_at(properties: Mapping[str, Any]) -> tuple[dict[str, Metric], str, int]:
    """The metrics of an alarm, their expression, and the seconds of its periods."""
    if "Metrics" not in properties:
        metric = _metric(properties, properties["Statistic"])
        return {ALONE: metric}, ALONE, properties["Period"]
    (formula,) = (one for one in properties["Metrics"] if "Expression" in one)
    stats = {one["Id"]: one for one in properties["Metrics"] if one is not formula}
    assert formula.get("ReturnData", True)
    assert not any(one["ReturnData"] for one in stats.values())
    (period_s,) = {one["MetricStat"]["Period"] for one in stats.values()}
    terms = {
        name: _metric(one["MetricStat"]["Metric"], one["MetricStat"]["Stat"])
        for name, one in stats.items()
    }
    return terms, formula["Expression"], period_s


def _metric(properties: Mapping[str, Any], statistic: str) -> Metric:
    dimensions = {one["Name"]: one["Value"] for one in properties["Dimensions"]}
    return Metric(properties["Namespace"], properties["MetricName"], dimensions, statistic)

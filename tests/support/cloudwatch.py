"""Alarms of `template.yaml`, judged as CloudWatch judges them, on metrics as AWS publishes them.

A metric is what was told of it, minute by minute. An alarm looks at its last `EvaluationPeriods`
periods: each is a statistic of the points in it, or missing, and missing ones count as
`TreatMissingData` says. It fires when all breach.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/AlarmThatSendsEmail.html#alarms-and-missing-data
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from roundgate.deployment.template import Template

Minutes: TypeAlias = Sequence[float | None]
"""The value of a metric in each minute, the latest last; `None` where nothing was told."""

STATISTICS: Mapping[str, Callable[[list[float]], float]] = {
    "Maximum": max,
    "Minimum": min,
    "Sum": sum,
}


@dataclass(frozen=True)
class Metric:
    """A metric that an alarm looks at."""

    namespace: str
    name: str
    dimensions: Mapping[str, str]


@dataclass(frozen=True)
class Alarm:
    """One of the template's."""

    name: str
    metrics: Sequence[Metric]
    """Of several, the first less the others, each 0 in a period without points."""
    statistic: str
    minutes: int
    """Of a period."""
    periods: int
    threshold: float
    missing_breaches: bool

    def fires(self, told: Minutes) -> bool:
        """Whether it is in the state ALARM after these minutes; before them nothing was told."""
        wanted = self.minutes * self.periods
        last = [*([None] * wanted), *told][-wanted:]
        return all(
            self._breaches(last[start : start + self.minutes])
            for start in range(0, wanted, self.minutes)
        )

    def _breaches(self, period: Minutes) -> bool:
        points = [point for point in period if point is not None]
        return (
            STATISTICS[self.statistic](points) >= self.threshold
            if points
            else self.missing_breaches
        )


def alarms(template: Template) -> dict[str, Alarm]:
    """All of them, by name."""
    return {
        name: _alarm(name, template.properties(name))
        for name in template.named("AWS::CloudWatch::Alarm")
    }


def _alarm(name: str, properties: Mapping[str, Any]) -> Alarm:
    assert properties["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
    assert properties["TreatMissingData"] in ("breaching", "notBreaching")
    metrics, statistic, period_s = _looked_at(properties)
    assert period_s % 60 == 0
    return Alarm(
        name,
        metrics,
        statistic,
        period_s // 60,
        properties["EvaluationPeriods"],
        float(properties["Threshold"]),
        properties["TreatMissingData"] == "breaching",
    )


def _looked_at(properties: Mapping[str, Any]) -> tuple[list[Metric], str, int]:
    """The metrics of an alarm, their statistic, and the seconds of its periods."""
    if "Metrics" not in properties:
        return [_metric(properties)], properties["Statistic"], properties["Period"]
    (formula,) = (one for one in properties["Metrics"] if "Expression" in one)
    stats = {one["Id"]: one for one in properties["Metrics"] if one is not formula}
    assert formula.get("ReturnData", True)
    assert not any(one["ReturnData"] for one in stats.values())
    assert formula["Expression"] == " - ".join(f"FILL({name}, 0)" for name in stats)
    ((statistic, period_s),) = {
        (one["MetricStat"]["Stat"], one["MetricStat"]["Period"]) for one in stats.values()
    }
    metrics = [_metric(one["MetricStat"]["Metric"]) for one in stats.values()]
    return metrics, statistic, period_s


def _metric(properties: Mapping[str, Any]) -> Metric:
    dimensions = {one["Name"]: one["Value"] for one in properties["Dimensions"]}
    return Metric(properties["Namespace"], properties["MetricName"], dimensions)

"""Medians of the samples, as text tables and as JSON."""

import datetime
import json
import os
import platform
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measurements import Column, Measurement, Sample
from bench.paired import Ratio, ratio
from bench.subjects import SUBJECTS

REFERENCE = "gateway"
_CPU = "server_cpu_us"


@dataclass(frozen=True, slots=True)
class Row:
    """One subject in one case: the medians over the samples, and the spread of the compared value.

    `spread` is (largest - smallest) / median. `reference_is` is the factor by which the gateway is
    better in the measurement's first column (3.0: three times the requests, or a third of the
    time), and `by_cpu` the factor in processor time per request, if measured. Both are medians over
    the rounds, each of which measured both subjects one after the other, with an interval
    (`bench.paired`); `None` without a gateway.
    """

    subject: str
    medians: dict[str, float]
    samples: int
    spread: float
    reference_is: Ratio | None
    by_cpu: Ratio | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A table of the report."""

    name: str
    rows: tuple[Row, ...]


def cases(measurement: Measurement, samples: Iterable[Sample]) -> list[Case]:
    """Return the samples as cases, in order of appearance, with the medians of each subject."""
    grouped: dict[str, dict[str, list[dict[str, float]]]] = {}
    for sample in filter(lambda sample: sample.values, samples):
        grouped.setdefault(sample.case, {}).setdefault(sample.subject, []).append(sample.values)
    return [Case(case, _rows(measurement, by_subject)) for case, by_subject in grouped.items()]


def _rows(
    measurement: Measurement, by_subject: Mapping[str, Sequence[dict[str, float]]]
) -> tuple[Row, ...]:
    key = _columns(measurement, [next(iter(by_subject.values()))[0]])[0].key
    medians = {subject: _medians(values) for subject, values in by_subject.items()}
    reference = by_subject.get(REFERENCE)
    rows = []
    for subject in _in_order(by_subject):
        values = by_subject[subject]
        own = medians[subject][key]
        better = by_cpu = None
        if reference is not None:
            better = _better(values, reference, key, is_more_better=measurement.is_more_better)
            if _CPU in values[0]:
                by_cpu = _better(values, reference, _CPU, is_more_better=False)
        observed = [each[key] for each in values]
        spread = (max(observed) - min(observed)) / own if own else 0.0
        rows.append(Row(subject, medians[subject], len(values), spread, better, by_cpu))
    return tuple(rows)


def _better(
    values: Sequence[dict[str, float]],
    reference: Sequence[dict[str, float]],
    key: str,
    *,
    is_more_better: bool,
) -> Ratio:
    """Return the reference's ratio to a subject. Samples with the same index belong to one
    round."""
    own, its = [each[key] for each in values], [each[key] for each in reference]
    return ratio(its, own) if is_more_better else ratio(own, its)


def _in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of `SUBJECTS`, then all other names in order of appearance."""
    listed = [each.name for each in SUBJECTS]
    return sorted(names, key=lambda name: listed.index(name) if name in listed else len(listed))


def _columns(measurement: Measurement, values: Sequence[Mapping[str, float]]) -> list[Column]:
    """Return the columns for which a row has a value."""
    return [
        column for column in measurement.columns if any(column.key in value for value in values)
    ]


def _medians(values: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in values) for key in values[0]}


def table(measurement: Measurement, case: Case) -> str:
    """Return a case as aligned text."""
    columns = _columns(measurement, [row.medians for row in case.rows])
    headings = ["", *(column.heading for column in columns), "spread", f"{REFERENCE} is", "by CPU"]
    lines = [headings, *(list(_cells(columns, row)) for row in case.rows)]
    for shown in (  # from right to left
        any(row.by_cpu is not None for row in case.rows),
        any(row.reference_is is not None for row in case.rows),
    ):
        if not shown:
            lines = [line[:-1] for line in lines]
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    text = [f"{measurement.title}: {case.name} (median of {max(row.samples for row in case.rows)})"]
    for first, *rest in lines:
        cells = [
            first.ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)),
        ]
        text.append("  " + "  ".join(cells).rstrip())
    return "\n".join(text)


def _cells(columns: Sequence[Column], row: Row) -> Iterator[str]:
    yield row.subject
    for column in columns:
        value = row.medians.get(column.key)
        yield "" if value is None else f"{value:,.{column.decimals}f}"
    yield f"{row.spread:.0%}"
    is_compared = row.reference_is is not None and row.subject != REFERENCE
    yield str(row.reference_is) if is_compared else ""
    yield str(row.by_cpu) if is_compared and row.by_cpu is not None else ""


def as_json(
    measured: Mapping[Measurement, Sequence[Case]],
    versions: Mapping[str, Mapping[str, str]],
    notes: Sequence[str],
    *,
    is_quick: bool,
) -> dict[str, Any]:
    """Return all data needed to compare two runs, without names of machines or paths."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": is_quick,
        "python": platform.python_version(),
        "machine": {"cores": len(os.sched_getaffinity(0)), "architecture": platform.machine()},
        "versions": versions,
        "notes": notes,
        "measurements": [
            {
                "name": measurement.name,
                "title": measurement.title,
                "compared_by": measurement.columns[0].key,
                "cases": {
                    case.name: {row.subject: _row_as_json(row) for row in case.rows}
                    for case in its_cases
                },
            }
            for measurement, its_cases in measured.items()
        ],
    }


def _row_as_json(row: Row) -> dict[str, float | None]:
    medians = {key: float(f"{value:.4g}") for key, value in row.medians.items()}
    compared = {f"{REFERENCE}_is": row.reference_is, f"{REFERENCE}_is_by_cpu": row.by_cpu}
    intervals = {
        f"{name}_{end}": round(getattr(comparison, end), 3)
        for name, comparison in compared.items()
        if comparison is not None
        for end in ("low", "high")
    }
    medians_of = {
        name: None if comparison is None else round(comparison.median, 2)
        for name, comparison in compared.items()
    }
    return {
        **medians,
        "samples": row.samples,
        "spread": round(row.spread, 3),
        **medians_of,
        **intervals,
    }


def write(results: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    rows = re.sub(r"\{[^{}]+\}", lambda row: " ".join(row[0].split()), text)  # one line each
    path.write_text(rows + "\n")

"""A picture of one call over several processes, of the spans that OpenTelemetry's SDK has exported.

    python -m bench.trace SPANS.jsonl PICTURE.svg

SPANS has a line of JSON for each span (`span.to_json()`). A span is drawn below its parent, or below
the span to which it links. The positions of the bars are the order of beginnings and ends, not time:
a worker takes a call over after a second, and most spans last milliseconds.
`tests/scenarios/test_one_trace.py` makes such a file.
"""

import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

COLOURS = {"client": "#7a5195", "gateway": "#1f77b4", "worker": "#2a8c5a", "bank": "#c8553d"}
"""The colour of each process; other processes are grey."""
ROW, TEXT, WIDTH = 26, 430, 960
"""The height of a row, the width of the names, and the width of the picture, in pixels."""


@dataclass
class Span:
    """One span of a trace."""

    service: str
    name: str
    kind: str
    id: str
    parent: str | None
    links: list[str]
    start: datetime
    end: datetime
    children: list["Span"] = field(default_factory=list)
    is_linked: bool = False
    """Whether the span is below another because it links to it."""

    @property
    def ms(self) -> float:
        """The duration in milliseconds."""
        return (self.end - self.start).total_seconds() * 1000


def span_from_json(value: dict[str, Any]) -> Span:
    """Return a span of the SDK's JSON."""
    return Span(
        value["resource"]["attributes"]["service.name"],
        value["name"],
        value["kind"].removeprefix("SpanKind."),
        value["context"]["span_id"],
        value["parent_id"],
        [link["context"]["span_id"] for link in value["links"]],
        datetime.fromisoformat(value["start_time"]),
        datetime.fromisoformat(value["end_time"]),
    )


def tree(
    spans: list[Span], root: str, without: frozenset[str] = frozenset()
) -> list[tuple[int, Span]]:
    """Return the spans of one call with their depths, in the order of the picture.

    Args:
        spans: the spans of all processes.
        root: the name of the first span.
        without: names of spans to leave out, such as polls.
    """
    known = {span.id: span for span in spans}
    for span in sorted(spans, key=lambda span: span.start):
        above = known.get(span.parent or "")
        if above is None and span.parent is None:
            above = next((known[link] for link in span.links if link in known), None)
            span.is_linked = above is not None
        if above is not None and span.name not in without:
            above.children.append(span)

    def below(span: Span, depth: int) -> list[tuple[int, Span]]:
        rows = [below(child, depth + 1) for child in span.children]
        return [(depth, span), *(row for each in rows for row in each)]

    return below(next(span for span in spans if span.name == root), 0)


def picture(rows: list[tuple[int, Span]]) -> str:
    """Return an SVG image of spans."""
    times = sorted({time for _, span in rows for time in (span.start, span.end)})
    place = {time: index / (len(times) - 1) for index, time in enumerate(times)}
    height = ROW * (len(rows) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" font-family="sans-serif" font-size="13" role="img">',
        "<title>One call as spans of four processes</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for index, (depth, span) in enumerate(rows):
        y, colour = ROW // 2 + index * ROW, COLOURS.get(span.service, "#777")
        x = TEXT + place[span.start] * (WIDTH - TEXT - 90)
        width = max(3.0, (place[span.end] - place[span.start]) * (WIDTH - TEXT - 90))
        link = " ⇠ links to the first round" if span.is_linked or span.links else ""
        label = f"{span.name}  {span.kind}{link}"
        lines += [
            f'<text x="{8 + depth * 16}" y="{y + 14}" fill="{colour}">{escape(span.service)}</text>',
            f'<text x="{72 + depth * 16}" y="{y + 14}" fill="#222">{escape(label)}</text>',
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 10}" rx="2"'
            f' fill="{colour}"/>',
            f'<text x="{x + width + 4:.1f}" y="{y + 14}" fill="#555" font-size="11">'
            f"{span.ms:.0f} ms</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def main(source: str, target: str) -> None:
    """Draw the spans of a file."""
    spans = [span_from_json(json.loads(line)) for line in Path(source).read_text().splitlines()]
    rows = tree(spans, "refund order 7", frozenset({"tasks/get", "server/discover", "tools/list"}))
    Path(target).write_text(picture(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The program `scripts/bench [--quick] [--only NAME]…`, which needs only the standard library. See
`bench/README.md`."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence

from bench import environments, report
from bench.measurements import MEASUREMENTS, LoadFailedError, Measurement, Sample, Settings
from bench.servers import Cores, ServerFailedError
from bench.subjects import GENERATOR, ROOT, SUBJECTS, Subject

RESULTS = ROOT / "bench" / "results.json"
PARTIAL_RESULTS = ROOT / ".cache" / "bench" / "partial-results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write its results; return 0 if all answers were correct."""
    options = _parser().parse_args(arguments)
    measurements = [each for each in MEASUREMENTS if each.name in options.only] or MEASUREMENTS
    subjects = [each for each in SUBJECTS if each.name in options.only] or SUBJECTS
    try:
        _run(measurements, subjects, is_quick=options.quick, is_partial=bool(options.only))
    except (environments.EnvironmentMissingError, ServerFailedError, LoadFailedError) as reason:
        print(f"bench: {reason}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure the gateway beside its peers."
    )
    names = [each.name for each in (*MEASUREMENTS, *SUBJECTS)]
    parser.add_argument("--quick", action="store_true", help="measure in fewer, shorter rounds")
    parser.add_argument(
        "--only", action="append", default=[], choices=names, metavar="NAME",
        help=f"name of a measurement or a subject; may be repeated: {', '.join(names)}",
    )  # fmt: skip
    return parser


def _run(
    measurements: Sequence[Measurement],
    subjects: Sequence[Subject],
    *,
    is_quick: bool,
    is_partial: bool,
) -> None:
    began = time.monotonic()
    environments.make([GENERATOR, *(subject.environment for subject in subjects)])
    versions = {subject.name: environments.versions(subject) for subject in subjects}
    cores = Cores.of_this_process()
    settings = Settings.quick(cores) if is_quick else Settings(cores)
    notes = (
        ["one core only: server and generator shared it"] if cores.server == cores.generator else []
    )
    measured: dict[Measurement, list[report.Case]] = {}
    for measurement in measurements:
        samples = list(_with_progress(measurement, settings, subjects))
        measured[measurement] = report.cases(measurement, samples)
        notes += [note for sample in samples for note in sample.notes]
        # write the results now, so a later failure does not lose them
        report.write(report.as_json(measured, versions, notes, is_quick=is_quick), PARTIAL_RESULTS)
        for case in measured[measurement]:
            print(report.table(measurement, case), end="\n\n", flush=True)
    notes = list(dict.fromkeys(notes))
    for note in notes:
        print(f"note: {note}")
    path = PARTIAL_RESULTS if is_partial else RESULTS
    report.write(report.as_json(measured, versions, notes, is_quick=is_quick), path)
    print(f"{time.monotonic() - began:.0f} s; written to {path.relative_to(ROOT)}")


def _with_progress(
    measurement: Measurement, settings: Settings, subjects: Sequence[Subject]
) -> Iterator[Sample]:
    """Yield the samples. On a terminal, show the latest one on a status line."""
    is_shown = sys.stderr.isatty()
    concerned = [subject for subject in subjects if subject.name in measurement.subjects]
    if not concerned:
        return
    # This process only waits, on the generator's core, so the server has its core to itself.
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {settings.cores.generator})
    try:
        for sample in measurement.sample(settings, concerned):
            if is_shown:
                print(
                    f"\r\033[K{measurement.name}: {sample.case}: {sample.subject}",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
            yield sample
    finally:
        os.sched_setaffinity(0, everywhere)
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

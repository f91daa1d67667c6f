"""`scripts/servers`: the client library and the command against servers that other people
wrote, in their revisions; with `--through`, a gateway in front of them."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence

from roundgate.client import Client
from roundgate.errors import ClientError
from tests.servers import through
from tests.servers.subjects import CALL_S, SUBJECTS, Check, Subject, served

COLUMNS = ("list", "call", "stream", "question", "task", "task that asks")


async def main(names: Sequence[str]) -> int:
    if names[:1] == ["--through"]:
        return await through.main(names[1:])
    chosen = [one for one in SUBJECTS if not names or any(name in one.name for name in names)]
    rows: list[tuple[Subject, dict[str, str]]] = []
    for subject in chosen:
        found = await examined(subject)
        rows.append((subject, found))
        for column, outcome in found.items():
            if outcome != "yes":
                print(f"{subject.name}, {subject.revision}, {column}: {outcome}", file=sys.stderr)
    print(table(rows))
    return 0 if rows and all(one == "yes" for _, found in rows for one in found.values()) else 1


async def examined(subject: Subject) -> dict[str, str]:
    """What came of each check: `yes`, or what went wrong."""
    found: dict[str, str] = {}
    async with served(subject) as url:
        async with Client(url, versions=subject.versions, headers=subject.headers) as client:
            spoken = (await client.connect()).protocol_version
            if spoken != subject.revision:
                return {"list": f"revision {spoken} was agreed on"}
            found["list"] = "yes" if await client.tools() else "no tools"
        for check in [check for check in subject.checks if check.column in COLUMNS]:
            try:
                by_library = await asyncio.wait_for(called(subject, check, url), CALL_S)
                by_command = await commanded(subject, check, url)
            except (ClientError, TimeoutError) as error:
                found[check.column] = f"{type(error).__name__}: {error}"
                continue
            said = {"library": by_library, "command": by_command}
            wrong = {who: one for who, one in said.items() if check.expected not in one}
            found[check.column] = f"unexpected: {wrong}" if wrong else "yes"
    return found


async def called(subject: Subject, check: Check, url: str) -> str:
    """A call with the library; a task is started, and waited for by its handle."""
    versions, headers = subject.versions, subject.headers
    async with Client(url, versions=versions, answers=check.answers, headers=headers) as client:
        if not check.column.startswith("task"):
            return (await client.call(check.tool, check.arguments)).text
        task = await client.start(check.tool, check.arguments)
        if task.handle is None:
            return "no task"
        return (await client.resume(task.handle).wait()).text


async def commanded(subject: Subject, check: Check, url: str) -> str:
    """The same with `roundgate call`: what it prints."""
    words = [f"{name}={value}" for name, value in check.arguments.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as answers:
        answers.write(
            "".join(f"{name}: {value}\n" for name, value in check.answers.items()) or "{}"
        )
        answers.flush()
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "roundgate.cli", "call", url, check.tool, *words],
            *(["--revision", subject.revision] if subject.is_named else []),
            *(f"--header={name}: {value}" for name, value in subject.headers.items()),
            *["--answers", answers.name, "--timeout", str(CALL_S)],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    return (
        out.decode() if process.returncode == 0 else f"status {process.returncode}: {err.decode()}"
    )


def table(rows: Sequence[tuple[Subject, Mapping[str, str]]]) -> str:
    """Return the results in Markdown; an empty cell means that the server lacks the feature."""
    lines = [f"| server | revision | {' | '.join(COLUMNS)} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for subject, found in rows:
        cells = ["" if one not in found else "yes" if found[one] == "yes" else "NO" for one in COLUMNS]  # fmt: skip
        lines.append(f"| {subject.name} | {subject.revision} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))

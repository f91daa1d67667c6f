"""What the documents have in them: their blocks, and whether an answer is
the one that they show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(*command: str, timeout_s: float = 120) -> str:
    """What a command that ends well prints. It and what it has begun end with this, in whatever way."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed + errors
    return printed


def shown(document: Any, real: Any) -> Any:
    """What is real, with "…" wherever the document has it; equal to the document if that tells the truth."""
    match document, real:
        case dict(), dict():
            return {name: shown(document.get(name), value) for name, value in real.items()}
        case list(), list():
            pairs = zip(document, real, strict=False)
            return [shown(one, other) for one, other in pairs] + real[len(document) :]
        case str(), str() if document.endswith("…") and real.startswith(document[:-1]):
            return document
    return real

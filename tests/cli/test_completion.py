"""`roundgate completion`: what a shell completes is what the program takes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from roundgate.cli import main, make_parser
from roundgate.cli.completion import words_of


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("roundgate comple", ["complete", "completion"]),
        ("roundgate tasks re", ["requeue", "retry"]),
        ("roundgate tasks list --st", ["--status"]),
        ("roundgate serve gateway.yaml --log-f", ["--log-format"]),
        ("roundgate completion f", ["fish"]),
        ("roundgate worker --par", []),
    ],
)
def test_bash_completes_commands_actions_and_options(
    typed: str, offered: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    words = typed.split(" ")
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _roundgate; printf '%s\\n' ${{COMPREPLY[@]}}"
    ran = subprocess.run(
        [bash, "-c", f"{script('bash', capsys)}\n{ask}"], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_every_word(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for path, words in words_of(make_parser()):
        assert " ".join(path) in text
        assert all(word in text for word in words)
    if found := shutil.which(shell):
        subprocess.run([found, "-n", "-c", text], check=True, timeout=60)

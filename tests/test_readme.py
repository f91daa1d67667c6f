"""The README and the docs do what they say: this runs them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import reserved_port

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
QUICKSTART = [sys.executable, "examples/quickstart/serve.py", "--log-level", "warning", "--port"]
TOOLS_GUIDE = (ROOT / "docs" / "tools.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with reserved_port() as port, subprocess.Popen([*QUICKSTART, str(port)], cwd=ROOT) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz")
            yield port
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_curl_of_the_readme_gets_the_answer_of_the_readme(port: int) -> None:
    (curl,) = [block for block in blocks(README, "sh") if block.startswith("curl")]
    (answer,) = blocks(README, "json")
    assert json.loads(run("bash", "-c", curl.replace("curl", "curl -sS").replace(":8000", f":{port}"))) == json.loads(
        answer
    )


def test_the_official_client_of_the_readme_lists_and_calls_tools(port: int) -> None:
    (client,) = [block for block in blocks(README, "python") if "mcp import Client" in block]
    printed = run(sys.executable, "-c", client.replace(":8000", f":{port}"))
    assert "calculate - Evaluate an arithmetic expression exactly" in printed
    assert "The Voyage of the Beagle" in printed


def test_the_official_client_uses_everything_that_the_quickstart_serves(port: int) -> None:
    assert "describe_change" in run(sys.executable, "examples/quickstart/client.py", f"http://127.0.0.1:{port}/mcp")


def test_the_configuration_of_the_readme_serves_its_tool(tmp_path: Path) -> None:
    (tools,) = [block for block in blocks(README, "python") if block.startswith("# tools.py")]
    (config,) = blocks(README, "yaml")
    (tmp_path / "tools.py").write_text(tools)
    (tmp_path / "gateway.yaml").write_text(config)
    listed = run(sys.executable, "-m", "roundgate.cli", "check", str(tmp_path / "gateway.yaml"))
    assert "shop__stock" in listed
    assert "orders__get" in listed


def test_the_functions_of_the_guide_can_be_served(tmp_path: Path) -> None:
    (tmp_path / "guide.py").write_text("\n".join(blocks(TOOLS_GUIDE, "python")))
    (tmp_path / "gateway.yaml").write_text("backends: [{kind: python, name: guide, path: guide.py}]")
    listed = run(sys.executable, "-m", "roundgate.cli", "check", str(tmp_path / "gateway.yaml"))
    assert all(name in listed for name in ("guide__weather", "guide__translate", "shop://orders/{number}"))


def test_the_handlers_of_the_guide_to_rounds_can_be_served(tmp_path: Path) -> None:
    snippets = blocks((ROOT / "docs" / "rounds.md").read_text(), "python")
    for number, snippet in enumerate(snippets):
        (tmp_path / f"rounds{number}.py").write_text(snippet)
    listed = [f"{{kind: python, name: rounds{n}, prefix: '', path: rounds{n}.py}}" for n in range(len(snippets))]
    (tmp_path / "gateway.yaml").write_text(f"backends: [{', '.join(listed)}]")
    printed = run(sys.executable, "-m", "roundgate.cli", "check", str(tmp_path / "gateway.yaml"))
    assert all(name in printed for name in ("deploy", "order", "quote", "survey", "greet", "add_up"))


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_library_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "examples/quickstart/library.py", "0"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    ) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0

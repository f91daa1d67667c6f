"""The README and the docs do what they say: this runs them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundgate_aws.machine import reserved_port
from roundgate_testing import Gateway
from tests.support.authorization_server import CLIENT, Issuer
from tests.support.authorization_server import running as running_issuer
from tests.support.command import roundgate
from tests.support.documents import ROOT, blocks, run, shown
from tests.support.server import running

README = (ROOT / "README.md").read_text()
QUICKSTART = [sys.executable, "examples/quickstart/serve.py", "--log-level", "warning", "--port"]
TOOLS_GUIDE = (ROOT / "docs" / "tools.md").read_text()


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


def section(title: str) -> str:
    """A part of the README, from its heading to the next."""
    return re.split(r"^##+ ", README.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def test_the_handler_of_the_readme_is_the_one_that_is_played() -> None:
    (handler,) = [block for block in blocks(README, "python") if "book_trip" in block]
    assert handler in (ROOT / "examples" / "travel" / "trip.py").read_text()


def test_the_story_goes_as_the_readme_tells_it() -> None:
    (told,) = [block for block in blocks(README, "text") if "kill -9" in block]
    assert "examples/travel/story.py" in README
    played = run(sys.executable, "examples/travel/story.py", timeout_s=280)
    killed = played.partition("kill -9    replica ")[2][:1]  # whichever of the two took the task
    if killed == "A":
        told = told.replace("replica B, in", "replica A, in").replace(
            "replica A  completed", "replica B  completed"
        )
    assert played == told


def test_the_retry_and_the_task_by_curl_get_the_answers_of_the_readme(tmp_path: Path) -> None:
    question, task = section("A question, by curl"), section("A task, by curl")
    config = tmp_path / "travel" / "gateway.yaml"
    shutil.copytree(ROOT / "examples" / "travel", config.parent)
    mine = {
        "TRAVEL_OFFICE": str(tmp_path),
        "GATEWAY_STORE": f"sqlite:///{tmp_path / 'tasks.sqlite3'}",
    }
    with running(config, mine) as server:
        script = "\n".join(blocks(question + task, "sh")).replace(
            "http://127.0.0.1:8000", server.url
        )
        answers = [json.loads(line) for line in run("bash", "-c", script).splitlines()]
    expected = [json.loads(block) for block in blocks(question + task, "json")]
    assert [shown(told, answer) for told, answer in zip(expected, answers, strict=True)] == expected


def test_the_first_curl_of_the_readme_gets_the_answer_of_the_readme(port: int) -> None:
    start = section("A call, by curl")
    (curl,) = [block for block in blocks(start, "sh") if block.startswith("curl")]
    (answer,) = blocks(start, "json")
    assert json.loads(
        run("bash", "-c", curl.replace("curl", "curl -sS").replace(":8000", f":{port}"))
    ) == json.loads(answer)


def test_the_official_client_of_the_readme_lists_and_calls_tools(port: int) -> None:
    (client,) = [block for block in blocks(README, "python") if "mcp import Client" in block]
    printed = run(sys.executable, "-c", client.replace(":8000", f":{port}"))
    assert "calculate - Evaluate an arithmetic expression exactly" in printed
    assert "The Voyage of the Beagle" in printed


def test_the_official_client_uses_everything_that_the_quickstart_serves(port: int) -> None:
    assert "describe_change" in run(
        sys.executable, "examples/quickstart/client.py", f"http://127.0.0.1:{port}/mcp"
    )


def checked(config: Path) -> str:
    """Return what `roundgate check` prints of a configuration without problems."""
    ran = roundgate("check", config)
    assert ran.status == 0, ran.err
    return ran.out


def test_the_configuration_of_the_readme_serves_its_tool(tmp_path: Path) -> None:
    (tools,) = [block for block in blocks(README, "python") if block.startswith("# tools.py")]
    (config,) = blocks(README, "yaml")
    (tmp_path / "tools.py").write_text(tools)
    (tmp_path / "gateway.yaml").write_text(config)
    listed = checked(tmp_path / "gateway.yaml")
    assert "shop__stock" in listed
    assert "orders__get" in listed


def test_the_functions_of_the_guide_can_be_served(tmp_path: Path) -> None:
    (tmp_path / "guide.py").write_text("\n".join(blocks(TOOLS_GUIDE, "python")))
    (tmp_path / "gateway.yaml").write_text(
        "backends: [{kind: python, name: guide, path: guide.py}]"
    )
    listed = checked(tmp_path / "gateway.yaml")
    assert all(
        name in listed for name in ("guide__weather", "guide__translate", "shop://orders/{number}")
    )


def test_the_handlers_of_the_guide_to_rounds_can_be_served(tmp_path: Path) -> None:
    snippets = blocks((ROOT / "docs" / "rounds.md").read_text(), "python")
    for number, snippet in enumerate(snippets):
        (tmp_path / f"rounds{number}.py").write_text(snippet)
    listed = [
        f"{{kind: python, name: rounds{n}, prefix: '', path: rounds{n}.py}}"
        for n in range(len(snippets))
    ]
    (tmp_path / "gateway.yaml").write_text(f"backends: [{', '.join(listed)}]")
    printed = checked(tmp_path / "gateway.yaml")
    assert all(
        name in printed for name in ("deploy", "order", "quote", "survey", "greet", "add_up")
    )


async def test_the_recipe_for_oauth_in_a_python_tool_gets_its_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe,) = [
        block
        for block in blocks((ROOT / "docs" / "credentials.md").read_text(), "python")
        if "AsyncOAuth2Client" in block
    ]
    (tmp_path / "orders.py").write_text(recipe)
    config = tmp_path / "gateway.yaml"
    config.write_text("backends: [{kind: python, name: orders, prefix: '', path: orders.py}]")
    with running_issuer(Issuer(secret="orders-secret")) as issuer:
        monkeypatch.setenv("ORDERS_CLIENT", CLIENT)
        monkeypatch.setenv("ORDERS_SECRET", issuer.secret)
        monkeypatch.setenv("TOKEN_URL", f"{issuer.url}/token")
        monkeypatch.setenv("ORDERS_URL", issuer.url)
        async with Gateway(config) as gateway:
            result = await gateway.call("order", number=7)
        assert result.structured == {"ok": True}
        assert set(issuer.calls) == set(issuer.tokens)


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

"""The Dockerfile: what it says of the app is true of the app; its command serves, streams
and stops when told to."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from roundgate.settings.process import Settings
from roundgate_aws.machine import reserved_port
from tests.support import wire
from tests.support.dynamodb import ROOT

ADAPTER_TAKES = {"AWS_LWA_PORT", "AWS_LWA_READINESS_CHECK_PATH", "AWS_LWA_INVOKE_MODE"}
"""Variables that version 1.1.0 of the web adapter reads."""

TOOLS = """
from roundgate import Context, tool

@tool
async def count(ctx: Context) -> str:
    for number in range(3):
        await ctx.progress(number + 1, total=3)
    return "counted"
"""


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions, with their arguments on one line."""
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def of(steps: list[tuple[str, str]], name: str) -> list[str]:
    """The arguments of each of an instruction."""
    return [rest for one, rest in steps if one == name]


def environment(steps: list[tuple[str, str]]) -> dict[str, str]:
    return dict(one.partition("=")[::2] for rest in of(steps, "ENV") for one in rest.split())


def command(steps: list[tuple[str, str]]) -> list[str]:
    """What is run: exec form, so that nothing stands between the engine's signals and the process."""
    (entry,), (arguments,) = of(steps, "ENTRYPOINT"), of(steps, "CMD")
    return [*json.loads(entry), *json.loads(arguments)]


def test_its_python_is_that_of_the_functions(steps: list[tuple[str, str]]) -> None:
    template = (ROOT / "template.yaml").read_text()
    images = {image.split("@")[0] for image in of(steps, "FROM") if image.startswith("python:")}
    assert images == {
        f"python:{version}-slim" for version in re.findall(r"Runtime: python([\d.]+)", template)
    }


def test_its_variables_are_ones_that_somebody_reads(steps: list[tuple[str, str]]) -> None:
    names = {name for name in environment(steps) if name.startswith(("GATEWAY_", "AWS_"))}
    ours = {name for name in names if name.startswith("GATEWAY_")}
    assert {name.removeprefix("GATEWAY_").lower() for name in ours} <= set(
        Settings.__struct_fields__
    )
    assert names - ours == ADAPTER_TAKES


def test_all_who_ask_for_the_port_mean_the_same(steps: list[tuple[str, str]]) -> None:
    (port,) = of(steps, "EXPOSE")
    (health,) = of(steps, "HEALTHCHECK")
    started = command(steps)
    assert environment(steps)["AWS_LWA_PORT"] == port == started[started.index("--port") + 1]
    assert f"127.0.0.1:{port}/healthz" in health
    assert environment(steps)["AWS_LWA_READINESS_CHECK_PATH"] == "/healthz"


def test_it_runs_as_somebody_without_rights(steps: list[tuple[str, str]]) -> None:
    (user,) = of(steps, "USER")
    assert user.isdecimal()  # Kubernetes can tell that a number is not root
    assert int(user) > 0


def test_what_it_copies_gets_past_dockerignore(steps: list[tuple[str, str]]) -> None:
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        one for rest in of(steps, "COPY") if "--from" not in rest for one in rest.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in sent)


@pytest.mark.parametrize("lock", ["image.lock", "image-build.lock"])
def test_everything_that_is_installed_is_locked_with_its_hash(
    steps: list[tuple[str, str]], lock: str
) -> None:
    text = (ROOT / "infra" / lock).read_text().replace(" \\\n", " ")
    (python,) = {
        image.split("@")[0].removeprefix("python:")
        for image in of(steps, "FROM")
        if image.startswith("python:")
    }
    head, *lines = text.splitlines()
    assert head.endswith(f" for Python {python.removesuffix('-slim')}.")
    assert all(
        re.fullmatch(r"[a-z0-9-]+==\S+( +--hash=sha256:[0-9a-f]{64}){1,2}", line) for line in lines
    )
    installs = [
        part for rest in of(steps, "RUN") for part in rest.split(" && ") if "pip install" in part
    ]
    assert all("--require-hashes" in part or "--no-index" in part for part in installs)


def test_the_lock_has_what_the_gateway_needs() -> None:
    locked = set(
        re.findall(r"^([a-z0-9-]+)==", (ROOT / "infra/image.lock").read_text(), re.MULTILINE)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["aws"], *extras["postgres"]]
    assert {re.match(r"[a-z0-9-]+", one)[0] for one in wanted} <= locked  # type: ignore[index]


@contextmanager
def running(
    steps: list[tuple[str, str]], folder: Path, *before: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The command with its environment, on a free port, and the paths of the image in a folder."""
    with reserved_port() as free:
        yield from _served(steps, folder, str(free), *before)


def _served(
    steps: list[tuple[str, str]], folder: Path, port: str, *before: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    image = environment(steps)
    variables = {
        name: value.replace("/gateway/", f"{folder}/")
        for name, value in image.items()
        if name != "PATH"
    }
    variables["GATEWAY_STORE"] = f"sqlite:///{folder}/gateway.sqlite3"
    name, *arguments = [port if one == image["AWS_LWA_PORT"] else one for one in command(steps)]
    program = [*before, str(Path(sys.executable).with_name(name)), *arguments, "--allow-anonymous"]
    process = subprocess.Popen(
        program, env={**os.environ, **variables}, cwd=folder, stderr=subprocess.PIPE
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def healthy(url: str, within_s: float = 60) -> dict[str, str]:
    until = time.monotonic() + within_s
    while True:
        try:
            found: dict[str, str] = httpx.get(f"{url}/healthz", timeout=2).raise_for_status().json()
        except httpx.TransportError:
            assert time.monotonic() < until
            time.sleep(0.1)
        else:
            return found


def test_its_command_serves_streams_and_stops_when_told_to(
    steps: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "gateway.yaml").write_text(
        "backends:\n  - {kind: python, name: t, prefix: '', path: tools.py}\n"
    )
    asked = wire.message("tools/call", {"name": "count", "arguments": {}}, progressToken="p")
    with running(steps, tmp_path) as (process, url):
        assert healthy(url)["status"] == "ok"
        answer = httpx.post(f"{url}/mcp", json=asked, headers=wire.headers(asked), timeout=60)
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.text.count("notifications/progress") == 3
        assert '"counted"' in answer.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_without_authentication_it_does_not_start(
    steps: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "gateway.yaml").write_text(
        "backends:\n  - {kind: python, name: t, path: tools.py}\n"
    )
    name, *arguments = command(steps)
    ran = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments, "--port", "0"],
        env={**os.environ, "GATEWAY_CONFIG": str(tmp_path / "gateway.yaml")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "no authentication" in ran.stderr


IN_A_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


def can_be_process_1() -> bool:
    ran = (
        None
        if shutil.which("unshare") is None
        else subprocess.run([*IN_A_CONTAINER, "true"], check=False)
    )
    return ran is not None and ran.returncode == 0


@pytest.mark.skipif(
    not can_be_process_1(), reason="this machine lets nobody make a namespace of processes"
)
def test_as_process_1_it_stops_when_told_to_while_it_starts(
    steps: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "gateway.yaml").write_text(
        "backends:\n  - {kind: python, name: t, path: tools.py}\n"
    )
    with running(steps, tmp_path, *IN_A_CONTAINER) as (outside, _):
        while outside.poll() is None:  # the first of these come before Python itself has started
            for child in (
                Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
            ):
                os.kill(int(child), signal.SIGTERM)
            time.sleep(0.05)
        assert outside.stderr is not None
        assert b"serving" not in outside.stderr.read()
        assert outside.returncode == 0


def test_base_images_are_named_by_digest(steps: list[tuple[str, str]]) -> None:
    assert all(re.search(r"@sha256:[0-9a-f]{64}( AS \w+)?$", image) for image in of(steps, "FROM"))

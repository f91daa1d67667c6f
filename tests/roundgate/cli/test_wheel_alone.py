"""A repository of one's own with nothing but the wheel, from `new` to the stack: each
command as somebody types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from roundgate_aws import machine
from roundgate_aws.machine import reserved_port
from tests.support.dynamodb import why_not

ROOT = Path(__file__).parents[3]
SECRETS = (".env", "prod.env", "key.pem", "id_rsa", "venv/lib/left.py", ".git/config")
SLUG = '''

@tool
def slug(title: str) -> str:
    """Name a page."""
    return slugify(title)
'''
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Orders", "version": "1"},
    "servers": [{"url": "https://orders.example"}],
    "paths": {"/orders": {"get": {"operationId": "orders"}}},
}
pytestmark = pytest.mark.stack  # a minute of waiting, beside others


@dataclass
class Shell:
    """A terminal in the repository."""

    folder: Path
    environ: Mapping[str, str]

    def run(self, *command: str, status: int = 0, timeout_s: float = 600) -> str:
        """What a command says; fails unless it ends with the status."""
        began = time.monotonic()
        done = subprocess.run(
            self._command(command),
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        print(f"{time.monotonic() - began:6.1f} s  {' '.join(command)}")
        assert done.returncode == status, done.stdout
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A server."""
        return subprocess.Popen(
            self._command(command),
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _command(self, command: tuple[str, ...]) -> list[str]:
        name, *rest = command
        tops = {"roundgate": ["-c", "from roundgate.cli import main; raise SystemExit(main())"]}
        return [sys.executable, "-B", *tops.get(name, ["-m", name]), *rest]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """The wheel of this tree on the path, before the checkout that the environment has; what it
    installs is here."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)], check=True)
    (wheel,) = wheels.glob("roundgate-*.whl")
    packages = [str(wheel), "python-slugify==8.0.4", "text-unidecode==1.3"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), *packages], check=True)
    cache = tmp_path_factory.mktemp("cache")
    (cache / "roundgate").mkdir()
    for name in ("lambda", "dynamodb-local", "wheels"):  # installed once; so are they here
        if (machine.cache() / name).exists():
            (cache / "roundgate" / name).symlink_to((machine.cache() / name).resolve())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    environ = {**kept, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(cache)}
    return Shell(tmp_path_factory.mktemp("work"), environ)


@pytest.fixture(scope="module")
def repository(shell: Shell) -> Shell:
    """What `roundgate new --from` writes, with a dependency of its own and with secrets lying
    about."""
    (shell.folder / "orders.json").write_text(json.dumps(DOCUMENT))
    shell.run("roundgate", "new", "shop", "--aws", "--from", "orders.json")
    shop = Shell(shell.folder / "shop", shell.environ)
    tools, project = shop.folder / "tools.py", shop.folder / "pyproject.toml"
    tools.write_text(
        tools.read_text().replace("from pydantic", "from slugify import slugify\nfrom pydantic", 1)
    )
    wanted = project.read_text().replace('"roundgate"]', '"roundgate", "python-slugify==8.0.4"]')
    assert "slugify" in wanted
    project.write_text(wanted)
    for name in SECRETS:
        (shop.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shop.folder / name).write_text("secret")
    return shop


def add_slug(repository: Shell) -> None:
    """Add a tool that needs the dependency, once."""
    tools = repository.folder / "tools.py"
    text = tools.read_text()
    if SLUG not in text:
        tools.write_text(text + SLUG)


@pytest.fixture
def served(repository: Shell) -> Iterator[str]:
    with reserved_port() as port:
        server = repository.start("roundgate", "serve", "--reload", "--port", str(port))
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()
            server.wait(60)


def until(repository: Shell, url: str, says: str, limit_s: float = 60) -> str:
    """What the server lists, once it says something."""
    end = time.monotonic() + limit_s
    while True:
        command = [sys.executable, "-m", "roundgate.cli", "list", url]
        done = subprocess.run(
            command, env=repository.environ, capture_output=True, text=True, check=False
        )
        if says in done.stdout or time.monotonic() > end:
            return done.stdout
        time.sleep(0.2)


def test_it_serves_and_takes_what_is_edited(repository: Shell, served: str) -> None:
    assert "refund" in until(repository, served, "refund")
    add_slug(repository)
    assert "slug" in until(repository, served, "slug")
    assert "a-page" in repository.run("roundgate", "call", served, "slug", "title=A Page")


def test_its_tests_pass_and_it_has_no_problems(repository: Shell) -> None:
    plain = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q")
    assert re.search(r"4 passed", repository.run("pytest", *plain))
    assert "no problems" in repository.run("roundgate", "check")


def test_the_documents_are_there(shell: Shell) -> None:
    assert "configuration " in shell.run("roundgate", "docs")
    assert "# Configuration" in shell.run("roundgate", "docs", "configuration")


def test_what_is_packed_is_what_is_named_and_is_listed_before(repository: Shell) -> None:
    said = repository.run("roundgate", "package", "--arch", machine.architecture())
    files = re.findall(r"^  (\S+) {2,}", said.partition("packages of")[0], re.MULTILINE)
    assert files == ["gateway.json", "orders.index", "tools.py"]
    assert "python-slugify 8.0.4" in said
    for zipped in (repository.folder / ".build").glob("*.zip"):
        with zipfile.ZipFile(zipped) as archive:
            names = archive.namelist()
        assert not [one for one in names if Path(one).name in {Path(left).name for left in SECRETS}]
        assert {"gateway.json", "orders.index", "tools.py", "slugify/__init__.py"} <= set(names)
    assert "(new)" in said
    assert "(new)" not in repository.run("roundgate", "package", "--list")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("def broken(:", "SyntaxError"),
        ("import nowhere_at_all", "nowhere_at_all"),
        ("import moto", "imports moto, which the gateway function does not have"),
    ],
    ids=["no Python", "not here", "here and not there"],
)
def test_what_is_wrong_is_said_plainly_before_anything_is_made(
    repository: Shell, line: str, says: str
) -> None:
    tools = repository.folder / "tools.py"
    text = tools.read_text()
    before = {path: path.stat().st_mtime_ns for path in (repository.folder / ".build").rglob("*")}
    try:
        tools.write_text(f"{text}\n{line}\n")
        said = repository.run("roundgate", "package", "--arch", machine.architecture(), status=1)
    finally:
        tools.write_text(text)
    assert says in said
    assert "Traceback" not in said
    after = {path: path.stat().st_mtime_ns for path in (repository.folder / ".build").rglob("*.*")}
    assert {path for path in after if path.is_file()} <= before.keys()
    assert all(after[path] == before[path] for path in after if path.is_file())


def test_the_stack_runs_it_with_its_dependency(repository: Shell) -> None:
    if machine.interpreter() is None or why_not():
        pytest.skip("the stack needs Python 3.13 and DynamoDB Local")
    add_slug(repository)
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/mcp"
        stack = repository.start("roundgate", "stack", "--port", str(port))
        try:
            assert {"slug", "orders__orders"} <= set(until(repository, url, "slug", 300).split())
        finally:
            stack.terminate()
            stack.wait(60)


def test_the_demonstration_runs_without_a_repository(shell: Shell) -> None:
    if machine.interpreter() is None or why_not():
        pytest.skip("the stack needs Python 3.13 and DynamoDB Local")
    assert "both results are as expected" in shell.run("roundgate", "stack", "--demo")

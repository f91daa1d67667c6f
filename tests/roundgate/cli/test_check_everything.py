"""`roundgate check` on a repository with more than twenty mistakes: one run,
and each at its place."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.command import roundgate

CONFIG = """\
server: {version: 1.0, name: on}
limits: {call_timeout_s: soon}
http: {max_conections: 5}
auth: {isuer: https://i.example, jwks_url: https://i.example/jwks}
caching: {tools: {ttl_s: 1, ttl_s: 2}}
backends:
  - {kind: python, name: tools, path: tools.py}
  - {kind: python, name: broken, path: broken.py}
  - {kind: python, name: orders, path: orders.py}
  - {kind: python, name: gone, path: gone.py}
  - {kind: pyton, name: other, path: tools.py}
  - {kind: python, name: tools, path: more.py}
  - {kind: http, name: shop, base_url: "${SHOP_URL}", tools: [{name: a, description: A., path: /a}]}
  - kind: http
    name: web
    base_url: http://localhost:1
    credential: {bearer: x, basic: {username: a, password: b}}
    tools:
      - {name: a, description: A., path: /a, task: maybe}
  - kind: http
    name: desk
    base_url: http://localhost:1
    tools:
      - {name: buy, description: Buy., path: "/buy?x"}
  - {kind: python, name: long, path: long.py}
  - {kind: python, name: same, prefix: long, path: seven.py}
"""
TOOLS = '''\
from roundgate import prompt, resource, tool


@tool(scopes="a")
def one() -> str:
    """One."""


@tool(
    task="maybe",
    read_only="yes",
)
def two() -> str:
    """Two."""


@tool
def three(*names: str) -> str:
    """Three."""


@prompt(complete={"language": "python"})
def four(language: str) -> str:
    """Four."""


@resource("notes://{b")
def five(b: str) -> str:
    """Five."""
'''
LONG = """\
from roundgate import tool

@tool(name="a" * 70)
def six() -> str: ...

@tool
def seven() -> str: ...
"""
FILES = {
    "gateway.yaml": CONFIG,
    "tools.py": TOOLS,
    "broken.py": "x = 1\n\ndef f(:\n    pass\n",
    "orders.py": "import json\n\nimport nowhere_to_be_found\n",
    "long.py": LONG,
    "seven.py": "from roundgate import tool\n\n@tool\ndef seven() -> str: ...\n",
    "more.py": "from roundgate import tool\n\n@tool\ndef more(a: 'Missing') -> str: ...\n",
}
PLACES = {
    ("gateway.yaml:1", "server.version", "quote it"),
    ("gateway.yaml:1", "server.name", "quote it"),
    ("gateway.yaml:2", "limits.call_timeout_s", "number"),
    ("gateway.yaml:3", "http.max_conections", "correct its spelling"),
    ("gateway.yaml:4", "auth.issuer", "add it"),
    ("gateway.yaml:4", "auth.isuer", "correct its spelling"),
    ("gateway.yaml:5", "caching.tools.ttl_s", "appears twice"),
    ("broken.py:3", "backends[1]", "SyntaxError"),
    ("orders.py:3", "backends[2]", "No module named 'nowhere_to_be_found'"),
    ("gateway.yaml:10", "backends[3]", "there is no Python file gone.py"),
    ("gateway.yaml:11", "backends[4]", "'pyton'"),
    ("gateway.yaml:12", "backends[5].name", "is also the name of backends[0]"),
    ("gateway.yaml:13", "backends[6].base_url", "SHOP_URL is not set"),
    ("gateway.yaml:17", "backends[7].credential", "give exactly one of"),
    ("gateway.yaml:19", "backends[7].tools[0].task", "'optional'"),
    ("gateway.yaml:24", "backends[8].tools[0]", "'?' is out of place"),
    ("tools.py:4", "one(): @tool(scopes=…)", 'write a list: ["a", "b"]'),
    ("tools.py:9", "two(): @tool(task=…)", "is 'maybe'"),
    ("tools.py:9", "two(): @tool(read_only=…)", "True or False"),
    ("tools.py:17", "three()", "cannot be filled by name"),
    ("tools.py:22", "four(): @prompt(complete=…)", "write a list"),
    ("tools.py:27", "five()", "is unmatched"),
    ("gateway.yaml:25", "back end 'long'", "it has 76 characters"),
    ("gateway.yaml:26", "back end 'same'", "tool 'long__seven' is offered by 'long' too"),
    ("more.py:3", "more()", "'Missing' is not defined"),
    ("environment", "GATEWAY_LISTEN", "auto, on, off"),
    ("environment", "GATEWAY_STATE_KEYS", "key 1 is not base64"),
    ("environment", "GATEWAY_STORE", "is a directory"),
}
ENVIRONMENT = {
    "GATEWAY_LISTEN": "yes",
    "GATEWAY_STATE_KEYS": "?",
    "GATEWAY_STORE": "sqlite:///.",
    "GATEWAY_PUBLIC_URL": "",
}


def test_one_run_tells_every_mistake_with_its_file_line_and_remedy(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ran = roundgate("check", directory=tmp_path, **ENVIRONMENT)
    assert (ran.status, ran.out) == (1, "")
    assert "Traceback" not in ran.err
    said = re.findall(
        r"^(\S+?): (\w+\(\): @\w+\(.*?\)|.*?): (.*\n    → .+)$", ran.err, re.MULTILINE
    )
    told = [(file.rpartition("/")[2], path, text) for file, path, text in said]
    for at, path, text in PLACES:
        matching = [one for one in told if one[:2] == (at, path) and text in one[2]]
        assert len(matching) == 1, f"{at}: {path}: {text}\n{ran.err}"
    assert len(told) == len(PLACES) == 28
    assert ran.err.startswith("28 problem(s):\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*FILES, "__pycache__"] if (tmp_path / "__pycache__").exists() else FILES
    )


GOOD = "backends:\n  - {kind: python, name: desk, path: desk.py}\n"
JWT = "auth: {issuer: https://i.example, jwks_url: https://i.example/jwks}\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "desk.py").write_text("from roundgate import tool\n\n@tool\ndef a() -> int: ...\n")
    (tmp_path / "gateway.yaml").write_text(GOOD)
    return tmp_path


def test_what_only_serve_would_miss_is_missed_and_can_be_left_out(good: Path) -> None:
    (good / "gateway.yaml").write_text(JWT + GOOD)
    ran = roundgate("check", directory=good, GATEWAY_PUBLIC_URL="")
    assert (ran.status, "GATEWAY_PUBLIC_URL: is required with auth" in ran.err) == (1, True)
    assert roundgate("check", "--file-only", directory=good, GATEWAY_PUBLIC_URL="").status == 0


def test_a_port_that_somebody_has_and_an_exposed_host_are_problems(good: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = roundgate("check", "--port", port, directory=good)
    assert (ran.status, f"--port {port}: it is not free" in ran.err) == (1, True)
    ran = roundgate("check", "--host", "0.0.0.0", directory=good)
    assert "there is no authentication, but --host 0.0.0.0" in ran.err

"""Mistakes that people make in gateway.yaml and in their tools: `roundgate check` says
what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roundgate.cli import main
from roundgate.extensions import load_extension
from roundgate_console.routes import make_console

HEAD = "from roundgate import Context, prompt, resource, tool\n"
PYTHON = "backends:\n  - kind: python\n    name: t\n    path: tools.py\n"
HTTP = """\
backends:
  - kind: http
    name: s
    base_url: https://s.test
    tools:
      - name: get
        description: D.
        path: /x
"""
Check = Callable[..., tuple[int, str]]


def function(signature: str, decorator: str = "@tool", more: str = "") -> str:
    """A module with one tool."""
    return f'{HEAD}{more}{decorator}\n{signature}:\n    """Do."""\n    return 1\n'


FINE = function("def f(a: int) -> int")


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Check:
    """What `roundgate check` says of a repository: its status and its text."""
    for name in ("tools", "other"):  # another repository's, which this process has loaded
        monkeypatch.delitem(sys.modules, name, raising=False)

    def run(tools: str | bytes = FINE, config: str | bytes = PYTHON) -> tuple[int, str]:
        for name, text in (("tools.py", tools), ("gateway.yaml", config)):
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        (tmp_path / "other.py").write_text("from tools import f\nx = 1\n")
        status = main(["check", "--file-only", str(tmp_path / "gateway.yaml")])
        told = capsys.readouterr()
        return status, told.out + told.err

    return run


WRONG = {
    "misspelt argument": (function("def f()", "@tool(readonly=True)"), "did you mean read_only?"),
    "unknown argument": (function("def f()", "@tool(xyz=True)"), "@tool takes name, title, "),
    "name in front": (function("def f()", '@tool("my_name")'), "write name='my_name'"),
    "prompt's name in front": (function("def f()", '@prompt("p")'), "write name='p'"),
    "name with a blank": (function("def f()", '@tool(name="my f")'), "1 to 64 of A-Z"),
    "lambda": (f"{HEAD}f = tool(lambda: 1)\n", "1 to 64 of A-Z"),
    "same name twice": (f"{FINE}@tool(name='f')\ndef g() -> int:\n    '''D.'''\n", "rename one"),
    "generator": (function("def f()").replace("return", "yield"), "is a generator"),
    "async generator": (function("async def f()").replace("return", "yield"), "return a list"),
    "class": (f"{HEAD}@tool\nclass F:\n    '''D.'''\n", "is a class: decorate a function"),
    "partial": (
        f"{HEAD}import functools\nf = tool(functools.partial(int, base=2))\n",
        "write a function that calls it",
    ),
    "object that can be called": (
        f"{HEAD}class A:\n    def __call__(self, a: int) -> int: return a\nf = tool(A())\n",
        "is a A: write a function that calls it",
    ),
    "decorator without wraps": (
        function("def f()", "@tool\n@d", "def d(g):\n    return lambda *a, **k: g(*a, **k)\n"),
        "functools.wraps",
    ),
    "context without a type": (function("async def f(ctx)"), "annotated as ctx: Context"),
    "context that may be left out": (
        function("async def f(ctx: Context | None = None)"),
        None,
    ),
    "two contexts": (function("async def f(a: Context, b: Context)"), "'a' and 'b' both take"),
    "unknown type": (function("def f(a: 'Itm')"), "name 'Itm' is not defined"),
    "local class and future annotations": (
        f"from __future__ import annotations\n{HEAD}def make():\n    class A: ...\n"
        "    @tool\n    def f(a: A): ...\n    return f\nf = make()\n",
        "at the top of the module, not in a function",
    ),
    "import for type checkers alone": (
        "from __future__ import annotations\n"
        + function(
            "def f(a: Decimal)",
            more="import typing\nif typing.TYPE_CHECKING:\n    from decimal import Decimal\n",
        ),
        "not below TYPE_CHECKING",
    ),
    "class without a schema": (
        function("def f(a: A)", more="class A: ...\n"),
        "Use plain types, a pydantic model, a dataclass or a TypedDict",
    ),
    "function as an argument": (
        function("def f(a: Callable[[], int])", more="from collections.abc import Callable\n"),
        "Use plain types, a pydantic model",
    ),
    "builtin in the way": (
        f"{HEAD}@tool\ndef list() -> int:\n    '''D.'''\n@tool\ndef g(a: list[int]): ...\n",
        "'function' object is not subscriptable",
    ),
    "relative import": (f"from .other import x\n{FINE}", "by their names (import other)"),
    "circular import": (f"import other\n{FINE}", "cannot import name 'f'"),
    "module that is not installed": (f"import pandaz\n{FINE}", "install it and add it to your"),
    "misspelt import": ("from roundgate import Tool\n", "did you mean tool?"),
    "script": (
        f"{FINE}import sys\nsys.exit(0)\n",
        "cannot be imported: SystemExit: 0 (tools.py:7)\n    → put the code of a script below"
        ' `if __name__ == "__main__":`',
    ),
    "tabs and blanks": (f"{FINE}def g():\n\tx = 1\n        y = 2\n", "TabError"),
    "line ends of Windows": (FINE.replace("\n", "\r\n"), None),
    "byte order mark": (f"\ufeff{FINE}", None),
    "parentheses and nothing in them": (function("def f(a: int) -> int", "@tool()"), None),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_tools_is_told_with_what_to_write(check: Check, name: str) -> None:
    tools, says = WRONG[name]
    status, told = check(tools)
    assert (says is None) == (status == 0), told
    assert says is None or says in told
    assert "declare.py" not in told or "by name" in told


ODD = {
    "nothing is decorated": ("def f(): ...\n", "has no tools, prompts or resources"),
    "own decorator outside": (
        function("def f(a: int)", "@d\n@tool", "def d(g):\n    return lambda: g()\n"),
        "has no tools, prompts or resources",
    ),
    "method": (
        f"{HEAD}class A:\n    @tool\n    def f(self) -> int:\n        '''D.'''\n",
        "bind it: f = A().f",
    ),
    "static method": (
        f"{HEAD}class A:\n    @staticmethod\n    @tool\n    def f() -> int:\n        '''D.'''\n",
        "A.f(): is in a class",
    ),
    "defined twice": (f"{FINE}{FINE.removeprefix(HEAD)}", "is not served: f is defined again"),
    "no docstring": (f"{HEAD}@tool\ndef f(a: int) -> int: ...\n", "write a docstring"),
    "no annotation": (function("def f(a)"), "write its type: a: str"),
    "no annotation, a default": (function("def f(a=7)"), "write its type: a: int"),
    "default of another type": (function("def f(a: int = 'x')"), "its type does not allow"),
    "implicit None": (function("def f(a: int = None)"), "write a: … | None = None"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_can_be_served_and_is_hardly_meant_is_a_remark(check: Check, name: str) -> None:
    tools, says = ODD[name]
    status, told = check(tools)
    assert status == 0, told
    assert "remarks (1)" in told
    assert says in told


MODEL = (
    "from pydantic import BaseModel\n"
    f"{HEAD}class Order(BaseModel):\n    lines: 'list[Line]'\n"
    "@tool\ndef f(order: Order) -> int:\n    '''D.'''\n    return 1\n"
)
"""With a model that refers to another, which is defined below it or not at all."""


@pytest.mark.parametrize(
    "tools",
    [
        FINE,
        f"{HEAD}class A:\n    @tool\n    def f(self) -> int:\n        '''D.'''\nf = A().f\n",
        function("def f(**more)"),
        function("def f(a: int | None = None, b: list[int] = [])"),
        function("def f(a)", "@tool(input_schema={'type': 'object'})"),
        f"{HEAD}@resource('a://b')\ndef f() -> str: ...\n",
        MODEL + "class Line(BaseModel):\n    sku: str\n",
        MODEL.replace("(order: Order)", "()"),
        f"{FINE}class Lazy:\n    def __getattr__(self, name): raise RuntimeError\nLAZY = Lazy()\n",
    ],
)
def test_what_is_right_has_no_remarks(check: Check, tools: str) -> None:
    status, told = check(tools)
    assert (status, "remarks" in told) == (0, False), told


ODD_FILES = {
    "scopes without auth": (
        function("def f(a: int)", "@tool(scopes=['orders:write'])"),
        PYTHON,
        "f: scopes are required, and without `auth` every caller has them",
    ),
    "path variable beside another argument": (
        FINE,
        HTTP.replace("/x", "/orders/{order_id}") + "        arguments: {orderId: {}}\n",
        "no argument fills {order_id}",
    ),
    "path variable with a misspelt argument": (
        FINE,
        HTTP.replace("/x", "/orders/{id}") + "        arguments: {idd: {in: query}}\n",
        "did you mean 'idd'?",
    ),
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_what_the_file_hardly_means_is_a_remark(check: Check, name: str) -> None:
    tools, config, says = ODD_FILES[name]
    status, told = check(tools, config)
    assert (status, "remarks (1)" in told) == (0, True), told
    assert says in told


@pytest.mark.parametrize(
    "config",
    [
        f"auth: {{issuer: https://i.test, jwks_url: https://i.test/jwks, audience: a}}\n{PYTHON}",
        HTTP.replace("/x", "/orders/{id}"),
        HTTP.replace("/x", "/orders/{id}") + "        arguments: {order: {as: id}, q: {}}\n",
    ],
)
def test_scopes_with_auth_and_paths_that_are_filled_have_no_remarks(
    check: Check, config: str
) -> None:
    status, told = check(function("def f(a: int)", "@tool(scopes=['a'])"), config)
    assert (status, "remarks" in told) == (0, False), told


def test_wrong_names_in_views_and_in_searches_are_told_in_one_run(check: Check) -> None:
    config = (
        f"{PYTHON}search: {{above: 100, pinned: [nope]}}\n"
        "views:\n"
        "  - {name: v, include: [{name: nix}]}\n"
        "  - {name: w, exclude: [{name: none}], override: {foo: {name: b}}, search: {pinned: [nah]}}\n"
    )
    status, told = check(config=config)
    assert (status, "5 problem(s)" in told) == (1, True), told
    for place in (
        "search.pinned[0]",
        "views[0].include[0].name",
        "views[1].exclude[0].name",
        "views[1].override.foo",
        "views[1].search.pinned[0]",
    ):
        assert place in told


def test_the_argument_of_a_bad_schema_is_named(check: Check) -> None:
    broken = "@tool(input_schema={'type': 'object', 'properties': {'when': {'type': 'dat'}}})"
    status, told = check(function("def f(when)", broken))
    assert (status, "properties.when.type: " in told) == (1, True), told
    config = f"{HTTP}        arguments: {{limit: {{schema: {{minimum: few}}}}}}\n"
    assert "properties.limit.minimum: " in check(config=config)[1]


FILES = {
    "tabs": ("backends:\n\t- kind: python\n", "YAML does not allow tabs"),
    "not UTF-8": (b"server: {name: caf\xe9}\n" + PYTHON.encode(), "save the file as UTF-8"),
    "colon in a text": (f"server:\n  title: My shop: best\n{PYTHON}", "quote the text"),
    "at sign": (f"server:\n  title: @x\n{PYTHON}", 'begins with @ in quotes: "@…"'),
    "open quotes": (f'server:\n  title: "x\n{PYTHON}', "close the open quotes"),
    "two documents": (f"{PYTHON}---\n{PYTHON}", "keep one document"),
    "tag": (f"server: !x {{name: a}}\n{PYTHON}", "remove the word that begins with !"),
    "yes for a name": (f"server: {{name: yes}}\n{PYTHON}", "quote it"),
    "number for a version": (f"server: {{version: 1.0}}\n{PYTHON}", "quote it"),
    "yes for a switch": (f"{PYTHON}limits: {{strict: yes}}\n", None),
    "number as text": (f"{PYTHON}http: {{keep_alive_s: '15'}}\n", None),
    "anchors": (
        "backends:\n  - &t {kind: python, name: t, path: tools.py}\n  - {<<: *t, name: u}\n",
        None,
    ),
    "line ends of Windows": (PYTHON.replace("\n", "\r\n"), None),
    "byte order mark": (f"\ufeff{PYTHON}", None),
    "key twice": (f"server: {{name: a}}\nserver: {{name: b}}\n{PYTHON}", "appears twice"),
    "unset variable": (PYTHON.replace("tools.py", "${NOPE_X}"), "set it, or write ${NOPE_X:-"),
    "variable of the shell": (PYTHON.replace("tools.py", "$X/tools.py"), "in braces: ${NAME}"),
    "port": (f"{PYTHON}http: {{port: '8000'}}\n", "`roundgate serve --port 8000`"),
    "store": (f"{PYTHON}store: sqlite:///x\n", "set GATEWAY_STORE"),
    "file of a client": ("mcpServers: {x: {command: npx}}\n", "a gateway has `backends`"),
    "unit": (f"{PYTHON}limits: {{call_timeout_s: 5m}}\n", "write 300: it is a number of seconds"),
    "unit left out": (f"{PYTHON}tasks: {{ttl: 5}}\n", "did you mean ttl_s?"),
    "camel case": (HTTP.replace("base_url", "baseUrl"), "did you mean base_url?"),
    "singular": (PYTHON.replace("backends", "backend"), "did you mean backends?"),
    "misspelt in a tool": (HTTP.replace("description", "descripton"), "did you mean description?"),
    "kind in capitals": (PYTHON.replace("python", "Python"), "did you mean python?"),
    "mapping for a list": (
        "backends: {t: {kind: python, path: tools.py}}\n",
        "begins with a hyphen",
    ),
    "text for a mapping": (f"{PYTHON}search: true\n", "write a mapping"),
    "path without a slash": (f"{PYTHON}http: {{path: mcp}}\n", "begin the path with /"),
    "host without a scheme": (HTTP.replace("https://", ""), "write the whole URL"),
    "method in small letters": (f"{HTTP}        method: post\n", "write POST"),
    "credential as text": (f"{HTTP}    credential: abc\n", '{bearer: "${TOKEN}"}'),
    "name with a blank": (PYTHON.replace("name: t", "name: my t"), "at most 40 letters"),
    "no suffix": (PYTHON.replace("tools.py", "tools"), "write path: tools.py"),
    "file for a module": (PYTHON.replace("path:", "module:"), "write path: tools.py"),
    "auth without an issuer": (f"auth: jwt\n{PYTHON}", "write auth: {issuer"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_in_the_file_is_told_with_what_to_write(check: Check, name: str) -> None:
    config, says = FILES[name]
    status, told = check(config=config)
    assert (says is None) == (status == 0), told
    assert says is None or says in told


def test_a_command_of_another_package_that_cannot_be_imported_leaves_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[roundgate.commands]\nbreak = nowhere.to_find\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr()
    assert (ended.value.code, "serve" in said.out) == (0, True)
    assert said.err.startswith("roundgate: nowhere.to_find adds no command: No module named")


def test_a_package_replaces_no_command_or_page_of_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "zzz-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: zzz\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[roundgate.commands]\nserve = nowhere.to_find\ndeploy = nowhere.to_find\n"
        "[roundgate.extensions]\nconsole = nowhere:to_find\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_extension("console") is make_console
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert (ended.value.code, capsys.readouterr().err) == (0, "")

"""gateway.yaml: what a good one means, and that a bad one is told in full, with file,
line, path and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate import config
from roundgate.backends.http.config import HttpBackendConfig
from roundgate.backends.http.credential_config import BearerCredential
from roundgate.backends.python.backend import PythonBackendConfig
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ConfigError, Problem
from roundgate.settings import CacheSection, Reference, yaml_file
from tests.support.long import examples

BACKENDS = "backends:\n  - {kind: python, name: one, path: tools.py}\n"


class Files:
    """Writes a configuration into a directory of its own, and loads it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def file(self, text: str | bytes, name: str = "gateway.yaml", **environ: str) -> ConfigFile:
        path = self.directory / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return config.load(path, environ)

    def load(self, text: str | bytes, name: str = "gateway.yaml", **environ: str) -> GatewayConfig:
        return self.file(text, name, **environ).config

    def problems(
        self, text: str | bytes, name: str = "gateway.yaml", **environ: str
    ) -> list[Problem]:
        with pytest.raises(ConfigError) as refused:
            self.load(text, name, **environ)
        found = list(refused.value.problems)
        assert all(
            problem.file == str(self.directory / name) and problem.message for problem in found
        )
        assert all(problem.remedy for problem in found)
        return found

    def places(self, text: str, **environ: str) -> list[tuple[int | None, str]]:
        return [(problem.line, problem.path) for problem in self.problems(text, **environ)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_shortest_file_gives_the_defaults(files: Files) -> None:
    found = files.load(BACKENDS)
    assert found == GatewayConfig.model_validate(
        {"backends": [{"kind": "python", "name": "one", "path": "tools.py"}]}
    )
    assert (found.http.path, found.limits.call_timeout_s, found.server.name) == (
        "/mcp",
        60,
        "roundgate",
    )
    assert found.caching.read == CacheSection(ttl_ms=0, scope="private")


def test_json_says_the_same_as_yaml(files: Files) -> None:
    value = {
        "server": {"name": "é"},
        "backends": [{"kind": "python", "name": "one", "module": "a.b"}],
    }
    yaml = "server: {name: é}\nbackends: [{kind: python, name: one, module: a.b}]\n"
    assert files.load(json.dumps(value), "gateway.json") == files.load(yaml)


def test_a_configuration_cannot_be_changed(files: Files) -> None:
    with pytest.raises(Exception, match="frozen"):
        setattr(files.load(BACKENDS).server, "name", "other")  # noqa: B010 - mypy refuses it as well


@pytest.mark.parametrize(
    ("given", "prefix"),
    [("", "one__"), ("prefix: ''", ""), ("prefix: p", "p__"), ("prefix: a.b-c_", "a.b-c___")],
)
def test_the_prefix_is_the_name_unless_it_is_set(files: Files, given: str, prefix: str) -> None:
    text = f"backends:\n  - kind: python\n    name: one\n    path: tools.py\n    {given}\n"
    assert files.file(text).backends[0].effective_prefix == prefix


def test_half_of_a_caching_hint_keeps_the_other_half_of_its_default(files: Files) -> None:
    caching = files.load(
        f"caching: {{read: {{ttl_ms: 5}}, tools: {{scope: private}}}}\n{BACKENDS}"
    ).caching
    assert caching.read == CacheSection(ttl_ms=5, scope="private")
    assert caching.tools == CacheSection(ttl_ms=300_000, scope="private")
    assert caching.prompts == CacheSection(ttl_ms=300_000, scope="public")


HTTP = """\
backends:
  - kind: http
    name: shop
    base_url: ${BASE:-http://localhost:1}
    headers: {X-Key: "${file:secrets/key}"}
    credential: {bearer: "${TOKEN}"}
    tools:
      - name: buy
        description: costs $5, $${NAME} and $$ stay
        path: /buy/{id}
        query: {both: "${A}-${B:-b}", empty: "${A:-}${B:-}"}
        arguments: {id: {schema: {pattern: "^$${2}$"}}}
"""


def test_references_are_filled_in_everywhere(files: Files) -> None:
    (files.directory / "secrets").mkdir()
    (files.directory / "secrets" / "key").write_bytes(b" k\n1 \r\n\r\n".replace(b"\n1", b"1"))
    (backend,) = files.file(HTTP, TOKEN="t", A="a").backends
    assert isinstance(backend, HttpBackendConfig)
    assert backend.base_url == "http://localhost:1"
    assert backend.fixed_headers["X-Key"].parts == (
        Reference("file", str(files.directory / "secrets/key")),
    )
    assert isinstance(backend.credential, BearerCredential)
    assert backend.credential.bearer.text == "t"
    (tool,) = backend.tools
    assert tool.description == "costs $5, ${NAME} and $$ stay"
    assert tool.query == {"both": "a-b", "empty": "a"}
    assert tool.arguments["id"].schema_ == {"pattern": "^${2}$"}


def test_a_reference_in_json_works_too_and_may_become_a_number(files: Files) -> None:
    value = {
        "limits": {"threads": "${THREADS}"},
        "backends": [{"kind": "python", "name": "a", "path": "${P:-x}.py"}],
    }
    found = files.file(json.dumps(value), "gateway.json", THREADS="3")
    assert found.config.limits.threads == 3
    assert isinstance(found.backends[0], PythonBackendConfig)
    assert found.backends[0].path == "x.py"


def test_what_a_variable_holds_is_not_looked_into_again(files: Files) -> None:
    assert (
        files.load(f"server: {{name: '${{A}}'}}\n{BACKENDS}", A="${B} $${C}").server.name
        == "${B} $${C}"
    )


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${GONE}", "the environment variable GONE is not set"),
        ("${EMPTY}", "the environment variable EMPTY is not set"),
        ("${file:gone}", "gone: No such file or directory"),
        ("${file:.}", ".: Is a directory"),
        ("${file:bytes}", "bytes: is not text"),
        ("${GONE:default}", "${ does not begin a valid reference"),
        ("${GONE", "${ does not begin a valid reference"),
        ("a ${} b", "${ does not begin a valid reference"),
        ("${file:}", "${ does not begin a valid reference"),
    ],
)
def test_a_reference_to_nothing_is_a_problem_where_it_stands(
    files: Files, reference: str, message: str
) -> None:
    (files.directory / "bytes").write_bytes(b"\xff\xfe")
    (problem,) = files.problems(
        f"server:\n  version: a\n  name: 'x{reference}'\n{BACKENDS}", EMPTY=""
    )
    assert (problem.line, problem.path, problem.message) == (3, "server.name", message)


def test_a_default_may_not_hold_a_reference(files: Files) -> None:
    assert files.places(f"server: {{name: '${{A:-${{B}}}}'}}\n{BACKENDS}", B="b") == [
        (1, "server.name")
    ]


@pytest.mark.parametrize("path", ["/run/secrets/token", "../token"])
def test_no_problem_shows_what_a_secret_holds(files: Files, path: str) -> None:
    (files.directory.parent / "token").write_text("s3cret\nand more")
    secret = "${file:../token}" if path == "../token" else "s3cret\\nand more"
    text = HTTP.replace("${TOKEN}", secret).replace("${file:secrets/key}", "s3cret\\r\\nX: y")
    found = files.problems(text, A="a")
    assert [problem.path for problem in found] == [
        "backends[0].headers.X-Key",
        "backends[0].credential.bearer",
    ]
    for problem in found:
        assert "s3cret" not in str(problem)
        assert "is sent in an HTTP header" in problem.message


EVERYTHING_WRONG = """\
servr:
  name: x
http:
  path: mcp
  max_body_byte: 5
limits: {threads: 0, page_size: many}
caching:
  tools: {scope: shared}
backends:
  - kind: pyhton
    name: a
  - name: b
  - kind: python
    name: c d
    path: a.py
    module: a
  - kind: http
    name: e
    base_url: ftp://x
    credential: {bearer: a, query: b}
    tools:
      - name: t
        path: /x
        arguments:
          q: {in: nowhere}
          r:
            schemas: {}
      - {name: u, description: d, path: u, method: get}
  - kind: http
    name: f
    base_url: http://h
    tools: []
"""


def test_everything_that_is_wrong_is_told_at_once_with_its_line(files: Files) -> None:
    assert set(files.places(EVERYTHING_WRONG)) == {
        (1, "servr"),
        (4, "http.path"),
        (5, "http.max_body_byte"),
        (6, "limits.threads"),
        (6, "limits.page_size"),
        (8, "caching.tools.scope"),
        (10, "backends[0]"),
        (12, "backends[1]"),
        (14, "backends[2].name"),
        (19, "backends[3].base_url"),
        (20, "backends[3].credential"),
        (22, "backends[3].tools[0].description"),
        (25, "backends[3].tools[0].arguments.q.in"),
        (27, "backends[3].tools[0].arguments.r.schemas"),
        (28, "backends[3].tools[1].path"),
        (28, "backends[3].tools[1].method"),
        (32, "backends[4].tools"),
    }


@pytest.mark.parametrize(
    ("path", "message", "remedy"),
    [
        ("servr", "Extra inputs are not permitted", "remove it, or correct its spelling"),
        (
            "backends[0]",
            "there is no kind 'pyhton'; the kinds are 'python', 'http', 'openapi'",
            "use one of these kinds",
        ),
        ("backends[1]", "has no kind", "add kind: python or kind: http or kind: openapi"),
        ("backends[3].tools[0].description", "Field required", "add it"),
        ("limits.threads", "greater than or equal to 1", "roundgate docs configuration"),
    ],
)
def test_a_problem_says_what_to_do(files: Files, path: str, message: str, remedy: str) -> None:
    (problem,) = [problem for problem in files.problems(EVERYTHING_WRONG) if problem.path == path]
    assert message in problem.message
    assert remedy in problem.remedy


def test_a_reference_to_nothing_is_told_once(files: Files) -> None:
    text = BACKENDS.replace("name: one", "name: '${GONE}'")
    assert files.places(text) == [(2, "backends[0].name")]


def test_a_problem_reads_as_one_line_and_a_remedy(files: Files) -> None:
    (problem,) = files.problems(f"{BACKENDS}limits:\n  threads: 0\n")
    assert str(problem) == (
        f"{files.directory}/gateway.yaml:4: limits.threads: Input should be greater than or equal to 1\n"
        "    → see `roundgate docs configuration`, or `roundgate schema` for your editor"
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("kind: python, name: a", "give either path (a file) or module (a dotted name)"),
        (
            "kind: python, name: a, path: b, module: c",
            "give either path (a file) or module (a dotted name)",
        ),
        ("kind: python, name: '', path: b", "String should match pattern"),
        ("kind: python, name: a/b, path: b", "String should match pattern"),
        (f"kind: python, name: {'a' * 41}, path: b", "String should match pattern"),
        ("kind: python, name: a, path: b, prefix: 'c d'", "String should match pattern"),
        ("kind: python, name: 5, path: b", "Input should be a valid string"),
    ],
)
def test_a_python_back_end_is_refused_with_a_reason(files: Files, entry: str, message: str) -> None:
    (problem,) = files.problems(f"backends:\n  - {{{entry}}}\n")
    assert message in problem.message
    assert problem.line == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_url": "http://"}, "String should match pattern"),
        ({"base_url": "http://h/?q=1"}, "String should match pattern"),
        ({"base_url": "http://h/#x"}, "String should match pattern"),
        ({"base_url": "http://h /"}, "String should match pattern"),
        ({"base_url": "http://[::1"}, "Invalid IPv6 URL"),
        ({"base_url": "http://h:99999"}, "Port out of range"),
        ({"base_url": "http://h:x"}, "Port could not be cast"),
        ({"base_url": "http://user:pass@h"}, "a user and password go into credential.basic"),
        (
            {"credential": {}},
            "give exactly one of bearer, basic, header, query, cookie, client_credentials",
        ),
        (
            {"credential": {"bearer": "a", "basic": "b"}},
            "give exactly one of bearer, basic, header, query, cookie, client_credentials",
        ),
        ({"credential": {"header": "a"}}, "Field required"),
        ({"credential": {"bearer": "a", "value": "b"}}, "Extra inputs are not permitted"),
        ({"credential": {"header": "a b", "value": "c"}}, "String should match pattern"),
        ({"headers": {"a b": "c"}}, "String should match pattern"),
        ({"headers": {"a": "é"}}, "is sent in an HTTP header"),
        ({"timeout_s": 0}, "greater than 0"),
        ({"tools": []}, "at least 1 item"),
    ],
)
def test_an_http_back_end_is_refused_with_a_reason(
    files: Files, change: dict[str, Any], message: str
) -> None:
    tool = {"name": "t", "description": "d", "path": "/"}
    backend = {"kind": "http", "name": "a", "base_url": "http://h:1/base", "tools": [tool]}
    assert files.file(json.dumps({"backends": [backend]}), "g.json").backends[0].name == "a"
    (problem,) = files.problems(json.dumps({"backends": [backend | change]}), "g.json")
    assert message in problem.message


@pytest.mark.parametrize(
    ("credential", "path"),
    [
        ({"header": "X-Key"}, "backends[0].credential.value"),
        ({"header": "a b", "value": "c"}, "backends[0].credential.header"),
        ({"query": "key", "value": "é"}, "backends[0].credential.value"),
        ({"bearer": "a", "value": "b"}, "backends[0].credential.value"),
        ({"value": "b"}, "backends[0].credential"),
    ],
)
def test_a_problem_of_a_credential_is_where_the_file_has_it(
    files: Files, credential: Any, path: str
) -> None:
    backend = {
        "kind": "http",
        "name": "a",
        "base_url": "http://h",
        "tools": [TOOL],
        "credential": credential,
    }
    (problem,) = files.problems(json.dumps({"backends": [backend]}), "g.json")
    assert problem.path == path


TOOL = {"name": "t", "description": "d", "path": "/"}


def test_every_repeated_key_is_told_with_both_lines(files: Files) -> None:
    text = f"server:\n  name: a\n  title: b\n  name: c\n  name: d\n{BACKENDS}backends: []\n"
    found = files.problems(text)
    assert [(one.line, one.path) for one in found] == [
        (4, "server.name"),
        (5, "server.name"),
        (8, "backends"),
    ]
    assert [one.message for one in found[:2]] == [
        "the key 'name' appears twice (first on line 2)"
    ] * 2


def test_a_key_may_be_repeated_in_json_as_little(files: Files) -> None:
    (problem,) = files.problems('{"backends": [], "limits": {}, "limits": {}}', "gateway.json")
    assert 'duplicate key "limits"' in problem.message
    assert "line 1" in problem.message


def test_a_key_may_override_what_an_anchor_brings(files: Files) -> None:
    text = """
        backends:
          - kind: http
            name: a
            base_url: http://h
            tools:
              - &one {name: one, description: first, path: /}
              - <<: *one
                name: two
                body: xml
    """
    (problem,) = files.problems(dedent(text))
    assert (problem.line, problem.path) == (10, "backends[0].tools[1].body")
    (backend,) = files.file(dedent(text).replace("xml", "form")).backends
    assert isinstance(backend, HttpBackendConfig)
    assert [(tool.name, tool.description) for tool in backend.tools] == [
        ("one", "first"),
        ("two", "first"),
    ]


def bomb(use: str) -> str:
    """Aliases that stand for 2**30 values."""
    lines = [f"a{n}: &a{n} " + use.format(f"a{n - 1}") for n in range(1, 31)]
    return "\n".join(["a0: &a0 {x: 1}", *lines])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: [", None, "is not YAML: "),
        ("a: b\n\tc: d", 2, "is not YAML: "),
        ("a: b\n---\nc: d", 2, "is not YAML: but found another document"),
        ("a: *nowhere", 1, "is not YAML: found undefined alias"),
        (
            "a: !!python/object/apply:os.getcwd []",
            1,
            "is not YAML: could not determine a constructor",
        ),
        ("? [a, b]\n: c", 1, "is not YAML: found unhashable key"),
        (b"\xff\xff", None, "is not YAML: "),
        (b"a: \x00", None, "is not YAML: "),
        ("a: &a [*a]", 1, "contains itself: *a is within &a"),
        ("a: &a {b: *a}", 1, "contains itself: *a is within &a"),
        ("a: &a {<<: *a}", 1, "contains itself: *a is within &a"),
        ("[" * 200_000, None, "is n"),  # from 6.0.4 on PyYAML's own limit is met first
        ("- " * 200_000, 1, "is nested too deeply: 200 levels at most"),
        ("? " * 200_000, 1, "is nested too deeply: 200 levels at most"),
        ("a: " + "9" * 5_000, 1, "has a number of more than 400 characters; put it in quotes"),
        ("a: " + "1:" * 5_000 + "1.5", 1, "has a number of more than 400 characters"),
        ('a: !!int "' + "1:" * 5_000 + '1"', 1, "has a number of more than 400 characters"),
        ("a: " + "1:" * 190 + "1.5", None, "has a date or number that Python cannot represent"),
        (bomb("[*{0}, *{0}]"), 14, "has aliases (*a12) that repeat more than 50,000"),
        (bomb("{{<<: [*{0}, *{0}]}}"), 14, "has aliases (*a12) that repeat more than"),
        ("a: " + "[" * 5000, None, "is n"),
        ("", None, "Field required"),
        ("# nothing", None, "Field required"),
        ("just text", 1, "Input should be a valid dictionary"),
        ("- a", 1, "Input should be a valid dictionary"),
        (f"1: a\n{BACKENDS}", 1, "Keys should be strings"),
    ],
)
def test_what_is_no_configuration_at_all_is_a_problem_and_no_traceback(
    files: Files, text: str | bytes, line: int | None, message: str
) -> None:
    problem = files.problems(text)[0]
    assert problem.message.startswith(message)
    assert line is None or problem.line == line


@pytest.mark.parametrize("text", ["{", "[]", "5", "", '{"a": NaN}', "[" * 5000, b"\xff", "{}\n{}"])
def test_what_is_no_json_at_all_is_a_problem_too(files: Files, text: str | bytes) -> None:
    assert files.problems(text, "gateway.json")


@pytest.mark.parametrize("name", ["gone.yaml", "gone.json", "."])
def test_a_file_that_cannot_be_read_is_a_problem_that_says_how_to_name_one(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config.load(tmp_path / name, {})
    (problem,) = refused.value.problems
    assert problem.file == str(tmp_path / name)
    assert "GATEWAY_CONFIG" in problem.remedy


@examples(80)
@given(
    st.text(st.sampled_from("ab:-[]{}&*!|>'\"\n #,?<%@`$\t~1"), max_size=40)
    | st.binary(max_size=20)
)
def test_any_bytes_are_a_configuration_or_a_list_of_problems(
    tmp_path_factory: Any, text: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as refused:
        config.load(path, {})
    assert refused.value.problems


def test_a_line_is_that_of_the_key_even_if_its_value_begins_below(files: Files) -> None:
    located = yaml_file.read(write(files.directory / "x.yaml", "a:\n\n  - b:\n      c: 1\n  - d\n"))
    assert [
        located.line(loc) for loc in [("a",), ("a", 0), ("a", 0, "b"), ("a", 0, "b", "c"), ("a", 1)]
    ] == [
        1,
        3,
        3,
        4,
        5,
    ]
    assert located.line(("a", 0, "nothing", 7)) == 3
    assert located.line(("nothing",)) == 1


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        ((), ""),
        (("a",), "a"),
        (("a", 0, "b"), "a[0].b"),
        (("a", 0, 1), "a[0][1]"),
        ((0, "a"), "[0].a"),
    ],
)
def test_a_place_is_written_as_one_would_in_code(loc: tuple[str | int, ...], path: str) -> None:
    assert yaml_file.dotted(loc) == path


@pytest.mark.parametrize("start", ["1. ", "-", "+", ".NET ", "3-D ", "2026 "])
def test_a_long_text_without_quotes_may_begin_like_a_number(tmp_path: Path, start: str) -> None:
    text = start + "Send the form again. " * 30 + "End"
    (tmp_path / "a.yaml").write_text(f"description: {text}\n")
    assert yaml_file.read(tmp_path / "a.yaml").value == {"description": text}


def test_nothing_that_is_printed_of_a_configuration_has_a_secret_of_a_back_end(
    files: Files,
) -> None:
    (files.directory / "secrets").mkdir()
    (files.directory / "secrets" / "key").write_text("k3y-of-ours")
    file = files.file(HTTP, TOKEN="s3cret-of-ours", A="a")
    assert "of-ours" not in f"{file!r} {file.config!r} {file.config}"

"""A credential that stands in gateway.yaml goes into no zip."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundgate.config import load
from roundgate.errors import ConfigError
from roundgate_aws import literals, packaging

SERVICE = """
backends:
  - kind: http
    name: shop
    base_url: https://shop.example
    tools: [{name: look, path: /look, description: Looks.}]
"""
PEM = "-----BEGIN PRIVATE KEY-----\\nMIIEvQ\\n-----END PRIVATE KEY-----\\n"


def packed(folder: Path, text: str) -> packaging.PackagePlan:
    path = folder / "gateway.yaml"
    path.write_text(text)
    loaded = load(path, {}, placeholder=packaging.PLACEHOLDER)
    return packaging.plan(loaded, path, "arm64")


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ("credential: {bearer: hunter2hunter2}", "backends[0].credential.bearer"),
        ("credential: {basic: 'shop:hunter2'}", "backends[0].credential.basic"),
        ("credential: {basic: '${secret:user}:hunter2'}", "backends[0].credential.basic"),
        ("credential: {header: X-Key, value: hunter2}", "backends[0].credential.value"),
        ("credential: {query: key, value: hunter2}", "backends[0].credential.value"),
        ("credential: {cookie: key, value: hunter2}", "backends[0].credential.value"),
        ("credential: {bearer: '${SHOP_TOKEN:-hunter2}'}", "backends[0].credential.bearer"),
        ("credential: {bearer: '${file:shop.txt}'}", "backends[0].credential.bearer"),
        ("credential: {bearer: '$${hunter2}'}", "backends[0].credential.bearer"),
        (
            "credential: {client_credentials: us, client_secret: hunter2, token_url: 'https://a.example'}",
            "backends[0].credential.client_secret",
        ),
        (
            f"credential: {{client_credentials: us, private_key: \"{PEM}\", token_url: 'https://a.example'}}",
            "backends[0].credential.private_key",
        ),
        ("headers: {X-Api-Key: hunter2hunter2}", "backends[0].headers.X-Api-Key"),
        ("headers: {Authorization: Bearer hunter2}", "backends[0].headers.Authorization"),
    ],
)
def test_a_literal_credential_is_refused_with_the_remedy(
    tmp_path: Path, lines: str, place: str
) -> None:
    (tmp_path / "shop.txt").write_text("hunter2")
    with pytest.raises(ConfigError) as raised:
        packed(tmp_path, f"env: {{SHOP_TOKEN: '${{secret:shop}}'}}\n{SERVICE}    {lines}\n")
    (problem,) = raised.value.problems
    assert problem.path == place
    assert "${secret:" in problem.remedy
    assert "hunter2" not in str(problem)
    assert "MIIE" not in str(problem)
    assert problem.line


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("env: {SHOP_PASSWORD: hunter2}", "env.SHOP_PASSWORD"),
        ("env: {SHOP_APIKEY: hunter2hunter2}", "env.SHOP_APIKEY"),
        ("env: {SHOP_KEY: hunter2hunter2}", "env.SHOP_KEY"),
        ("env: {DATABASE_URL: 'postgres://shop:hunter2@db.example/shop'}", "env.DATABASE_URL"),
        ("env: {PAYMENTS: sk_live_hunter2hunter2hunter2}", "env.PAYMENTS"),
        ("env: {CLOUD: AKIAHUNTER2HUNTER200}", "env.CLOUD"),
        ("server: {instructions: 'use ghp_hunter2hunter2hunter2hunter2hunter2hu'}", "server.instructions"),
    ],
)  # fmt: skip
def test_so_is_one_elsewhere_in_the_file(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        packed(tmp_path, f"{text}\n{SERVICE}")
    (problem,) = raised.value.problems
    assert problem.path == place
    assert "hunter2" not in str(problem).lower()


@pytest.mark.parametrize(
    "reference",
    [
        "${secret:arn:aws:secretsmanager:eu-central-1:123456789012:secret:shop#key}",
        "${ssm:arn:aws:ssm:eu-central-1:123456789012:parameter/shop}",
        "${ssm:/shop/key:3}",
        "${SHOP_TOKEN}",
        "prefix-${SHOP_TOKEN}",
    ],
)
def test_a_credential_that_is_kept_elsewhere_is_packed_as_its_reference(
    tmp_path: Path, reference: str
) -> None:
    text = f"env: {{SHOP_TOKEN: '${{secret:shop}}'}}\n{SERVICE}    credential: {{bearer: '{reference}'}}\n"
    assert packed(tmp_path, text).contents.files == {}


def test_references_ids_and_other_texts_are_packed(tmp_path: Path) -> None:
    text = (
        "env:\n  SHOP_TOKEN: ${secret:shop/token}\n  SHOP_KEY: ${SHOP_TOKEN}\n"
        "  PRIMARY_KEY: id\n  TOKEN_URL: https://a.example/token\n  MAX_TOKENS: '4096'\n"
        "  SHOP_PASSWORD: ''\n"
        + SERVICE
        + "    headers: {X-Team: hunter2hunter2, Accept: text/plain, X-Key: '${SHOP_TOKEN}'}\n"
        "    credential: {client_credentials: our-client-id, client_secret: '${ssm:/shop/secret}',"
        " token_url: 'https://a.example'}\n"
    )
    assert packed(tmp_path, text).contents.files == {}


AWS_KEY = "AKIA" + "Q3EGRTXJ5ZPLM2WV"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tools.py", f"import os\nKEY = '{AWS_KEY}'\n"),
        ("tools.py", f"import os\nKEY = '-----BEGIN RSA PRIVATE KEY-----\\n{BODY}'\n"),
        ("tools.py", f"import os\nKEY = ('-----BEGIN PRIVATE KEY-----\\n'\n  '{BODY}')\n"),
        ("data/config.json", '{"a": 1,\n"payments": "sk_live' + '_hunter2hunter2hunter2"}'),
        ("data/notes.txt", "\nghp" + "_hunter2hunter2hunter2hunter2hunter2hu\n"),
    ],
)  # fmt: skip
def test_a_credential_in_a_packed_file_is_refused_at_its_line(
    tmp_path: Path, name: str, text: str
) -> None:
    gateway = "backends: [{kind: python, name: shop, path: tools.py}]\npackage: {include: [data]}\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "tools.py").write_text("")
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as raised:
        packed(tmp_path, gateway)
    (problem,) = raised.value.problems
    assert (problem.file, problem.line) == (str(tmp_path / name), 2)
    assert "hunter2" not in str(problem)
    assert AWS_KEY not in str(problem)


def test_what_programs_say_of_credentials_is_packed(tmp_path: Path) -> None:
    text = """
SAMPLE = "AKIAIOSFODNN7EXAMPLE"
PEM = f"-----BEGIN PRIVATE KEY-----\\n{os.environ['KEY']}\\n-----END PRIVATE KEY-----"
is_pem = text.startswith("-----BEGIN RSA PRIVATE KEY-----")
DSN = os.environ.get("DATABASE_URL", "postgres://postgres:postgres@localhost/shop")
MAPS = "AIza" + "SyD-hunter2hunter2hunter2hunter2hunte"
css = "sk-loading-indicator-with-a-very-long-name-of-a-class"
"""
    (tmp_path / "tools.py").write_text(text)
    assert list(literals.in_files(tmp_path, ["tools.py"])) == []

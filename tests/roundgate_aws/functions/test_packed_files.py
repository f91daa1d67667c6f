"""Which files of a repository go into the functions, and what is said of those that may not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from roundgate.config import load
from roundgate.errors import ConfigError
from roundgate_aws import contents, packaging
from roundgate_aws.contents import Contents, Ignored

GATEWAY = "backends:\n  - {kind: python, name: tools, path: tools.py}\n"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    """A repository; returns its gateway.yaml."""
    for name, text in {"gateway.yaml": GATEWAY, "tools.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "gateway.yaml"


def gathered(folder: Path, files: Mapping[str, str]) -> Contents:
    return contents.gather(load(written(folder, files)))


def test_what_nobody_names_stays_here(tmp_path: Path) -> None:
    lying_about = [
        "prod.env",
        ".env",
        "key.pem",
        "venv/lib/x.py",
        ".git/config",
        "notes.md",
        "other.py",
    ]
    found = gathered(tmp_path, dict.fromkeys(lying_about, "x = 1"))
    assert found.files == {"tools.py": "back end tools"}


def test_modules_that_are_imported_come_along_with_those_that_they_import(tmp_path: Path) -> None:
    files = {
        "tools.py": "import json\nfrom shop.prices import of\n\ndef later():\n    import lazily\n"
        "    importlib.import_module('by_name')\n    import_module(f'{x}')\n",
        "shop/__init__.py": "",
        "shop/py.typed": "",
        "shop/prices.py": "import taxes",
        "taxes.py": "try:\n    import faster\nexcept ImportError:\n    faster = None\n",
        "faster.py": "",
        "lazily.py": "",
        "by_name.py": "",
        "unused.py": "",
    }
    found = gathered(tmp_path, files)
    assert set(found.files) == {*files, "tools.py"} - {"unused.py", "shop/py.typed"}
    assert found.files["taxes.py"] == "shop/prices.py imports it"


def test_a_folder_gives_way_to_an_installed_package_of_its_name(tmp_path: Path) -> None:
    found = gathered(
        tmp_path, {"tools.py": "import httpx, space", "httpx/notes.py": "", "space/a.py": ""}
    )
    assert set(found.files) == {"tools.py", "space/a.py"}


def test_what_is_no_python_in_a_package_is_listed_and_asked_for_with_the_line_to_add(
    tmp_path: Path,
) -> None:
    names = ["shop/table.csv", "shop/pages/a.html", "shop/pages/b.html", "shop/deep/x/orders.json"]
    files = {"tools.py": "import shop", "shop/__init__.py": "", **dict.fromkeys(names, "1")}
    with pytest.raises(ConfigError) as raised:
        gathered(tmp_path, files)
    (problem,) = raised.value.problems
    assert problem.path == "package.include"
    assert [name for name in names if name not in problem.message] == []
    line = 'package: {include: ["shop/deep/x/orders.json", "shop/pages/*.html", "shop/table.csv"]}'
    assert line in problem.remedy
    assert ".roundgateignore" in problem.remedy
    text = f"{GATEWAY}{line}\n"
    found = gathered(tmp_path, files | {"gateway.yaml": text})
    assert set(found.files) == {*files}


def test_the_line_to_add_keeps_what_is_included_already_and_many_files_are_counted(
    tmp_path: Path,
) -> None:
    data = {f"shop/data/{number:03}.json": "1" for number in range(200)}
    files = {
        "gateway.yaml": GATEWAY + "package:\n  include: [other.csv]\n",
        "tools.py": "import shop",
        "shop/__init__.py": "",
        "other.csv": "",
        **data,
    }
    with pytest.raises(ConfigError, match=r"and 190 more") as raised:
        gathered(tmp_path, files)
    (problem,) = raised.value.problems
    assert 'package: {include: ["other.csv", "shop/data/*.json"]}' in problem.remedy
    assert problem.line == 4


def test_what_the_ignore_file_takes_out_of_a_package_is_not_asked_for(tmp_path: Path) -> None:
    files = {
        "tools.py": "import shop",
        "shop/__init__.py": "",
        "shop/NOTES.md": "",
        ".roundgateignore": "*.md\n",
    }
    assert set(gathered(tmp_path, files).files) == {"tools.py", "shop/__init__.py"}


NAMES_OF_SECRETS = [
    *("terraform.tfstate", "terraform.tfstate.backup", "prod.tfvars", "prod.auto.tfvars.json"),
    *("service-account.json", "service_account_prod.json", "gcp-credentials.json"),
    *("client_secret_1-2.apps.json", "client_secret.json", ".git-credentials", ".kube/config"),
    *("kubeconfig", "prod.kubeconfig", "app.sqlite", "app.sqlite3-wal", "app.db", "app.db-journal"),
    *("me.ppk", "dump.sql", "prod-dump.sql.gz", "backup.sql", "prod.env.local", ".env.local"),
    *(".bash_history", ".zsh_history", ".psql_history", ".python_history", ".npmrc", ".yarnrc.yml"),
    *("secrets.yaml", "secrets/api.txt", ".docker/config.json", ".dockercfg", ".terraformrc"),
    *(".vault-token", ".my.cnf", ".s3cfg", ".boto", "Server.JKS", "key.gpg", "vpn.ovpn"),
    *("application_default_credentials.json", "firebase-adminsdk-x1.json", "session.har"),
    *(".azure/accessTokens.json", ".config/gcloud/x", "auth.json", "token.json", "login.keychain"),
]


@pytest.mark.parametrize("name", NAMES_OF_SECRETS)
def test_a_name_that_secrets_have_refuses_whoever_asks_for_it(tmp_path: Path, name: str) -> None:
    files = {"data/prices.csv": "", f"data/{name}": "hunter2"}
    text = GATEWAY + "package: {include: ['data/**/*', data]}\n"
    found = gathered(tmp_path, files | {"gateway.yaml": text})
    assert set(found.files) == {"tools.py", "data/prices.csv"}
    exact = written(tmp_path, {"gateway.yaml": f"{GATEWAY}package: {{include: ['data/{name}']}}\n"})
    with pytest.raises(ConfigError, match="is named like a secret"):
        contents.gather(load(exact))


@pytest.mark.parametrize(
    "name",
    [
        *("prices.csv", "monkey.py", "tokens.csv", "keyboard.json", "environment.json", "author.json"),
        *("schema.sql", "secretary.txt", "dumplings.csv", "history.csv", "dbs.csv", "sqlite.md"),
    ],
)  # fmt: skip
def test_a_name_that_only_looks_a_little_like_one_is_packed(tmp_path: Path, name: str) -> None:
    text = f"{GATEWAY}package: {{include: ['data/{name}']}}\n"
    found = gathered(tmp_path, {"gateway.yaml": text, f"data/{name}": ""})
    assert f"data/{name}" in found.files


def test_secrets_in_a_package_are_left_out_and_named(tmp_path: Path) -> None:
    names = [
        "shop/.env.prod",
        "shop/Server.PEM",
        "shop/id_rsa",
        "shop/.aws/config",
        "shop/credentials",
        "shop/dump.sql",
    ]
    files = {"tools.py": "import shop", "shop/__init__.py": "", **dict.fromkeys(names, "secret")}
    found = gathered(tmp_path, files)
    assert set(found.files) == {"tools.py", "shop/__init__.py"}
    assert found.refused == sorted(names)


@pytest.mark.parametrize(
    ("include", "says"),
    [
        ("key.pem", "is named like a secret"),
        ("../other", "is outside of"),
        ("linked.txt", "is outside of"),
        ("nothing.csv", "there is no nothing.csv"),
        ("data/*.xml", "no file matches data/"),
        ("/etc/*", "is not a valid pattern"),
    ],
)
def test_what_cannot_be_included_is_an_error_at_its_line(
    tmp_path: Path, include: str, says: str
) -> None:
    (tmp_path / "outside.txt").write_text("")
    folder = tmp_path / "repository"
    text = f"{GATEWAY}package:\n  include:\n    - {include}\n"
    path = written(folder, {"gateway.yaml": text, "key.pem": ""})
    (folder / "linked.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(ConfigError, match=says) as raised:
        contents.gather(load(path))
    (problem,) = raised.value.problems
    assert (problem.path, problem.line) == ("package.include[0]", 5)


def test_a_file_whose_text_is_a_secret_is_not_packed(tmp_path: Path) -> None:
    server = "server: {instructions: '${file:token.key}'}\n"
    path = written(tmp_path, {"gateway.yaml": server + GATEWAY, "token.key": "t"})
    with pytest.raises(ConfigError, match=r"token\.key is named like a secret"):
        contents.gather(load(path))


def test_a_module_with_the_name_of_a_secret_stays_here_though_it_is_imported(
    tmp_path: Path,
) -> None:
    files = {
        "tools.py": "import credentials, ours, shop",
        "credentials.py": "KEY = 'hunter2'",
        "ours.py": "",
        "shop/__init__.py": "",
        ".roundgateignore": "ours.py\n",
    }
    found = gathered(tmp_path, files)
    assert set(found.files) == {"tools.py", "shop/__init__.py"}
    assert found.refused == ["credentials.py"]
    staging = tmp_path / "staging"
    for name in found.files:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(files[name])
    told = list(packaging.unpacked(found, staging, "worker"))
    assert [one.path for one in told] == ["credentials", "ours"]
    assert [one.remedy.startswith("rename the module") for one in told] == [True, False]


def test_a_packages_module_named_like_a_secret_is_reported_before_its_import(
    tmp_path: Path,
) -> None:
    files = {
        "tools.py": "from shop.secrets import read",
        "shop/__init__.py": "",
        "shop/secrets.py": "",
    }
    found = gathered(tmp_path, files)
    staging = tmp_path / "staging"
    for name in found.files:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(files[name])
    (told,) = packaging.unpacked(found, staging, "worker")
    assert told.file == str(tmp_path / "shop/secrets.py")
    assert told.remedy.startswith("rename the module")


def test_what_tools_leave_in_a_package_is_neither_packed_nor_asked_for(tmp_path: Path) -> None:
    litter = [
        "shop/myenv/pyvenv.cfg",
        "shop/myenv/lib/python3.13/site-packages/other.py",
        "shop/.ipynb_checkpoints/a-checkpoint.ipynb",
        "shop/.a.py.swp",
        "shop/a.py~",
        "shop/a.py.orig",
        "shop/.coverage.host.1",
        "shop/.gitignore",
    ]
    files = {"tools.py": "import shop", "shop/__init__.py": "", **dict.fromkeys(litter, "")}
    assert set(gathered(tmp_path, files).files) == {"tools.py", "shop/__init__.py"}
    files["gateway.yaml"] = f"{GATEWAY}package: {{include: ['shop/**/*']}}\n"
    assert set(gathered(tmp_path, files).files) == {"tools.py", "shop/__init__.py"}


def test_the_line_to_add_includes_what_was_listed_and_no_more(tmp_path: Path) -> None:
    names = ["shop/Makefile", "shop/LICENSE", "shop/[de].csv"]
    files = {"tools.py": "import shop", "shop/__init__.py": "", **dict.fromkeys(names, "1")}
    with pytest.raises(ConfigError) as raised:
        gathered(tmp_path, files)
    line = raised.value.problems[0].remedy.partition("`")[2].partition("`")[0]
    files["gateway.yaml"] = f"{GATEWAY}{line}\n"
    assert set(names) <= set(gathered(tmp_path, files).files)
    with pytest.raises(ConfigError, match=r"later\.txt"):
        gathered(tmp_path, {**files, "shop/later.txt": ""})


def test_the_ignore_file_may_begin_with_a_byte_order_mark_and_has_to_be_utf_8(
    tmp_path: Path,
) -> None:
    files = {"tools.py": "import shop", "shop/__init__.py": "", "shop/a.csv": ""}
    path = written(tmp_path, files)
    (tmp_path / ".roundgateignore").write_text("*.csv\n", "utf-8-sig")
    assert "shop/a.csv" not in contents.gather(load(path)).files
    (tmp_path / ".roundgateignore").write_text("*.csv\n", "utf-16")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        contents.gather(load(path))


def test_a_link_to_a_secret_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    files = {"tools.py": "import shop", "shop/__init__.py": "", ".env": "KEY=hunter2"}
    path = written(tmp_path, files)
    (tmp_path / "shop" / "settings.txt").symlink_to(tmp_path / ".env")
    (tmp_path / "tables.csv").symlink_to(tmp_path / ".env")
    found = contents.gather(load(path))
    assert set(found.files) == {"tools.py", "shop/__init__.py"}
    assert found.refused == ["shop/settings.txt"]
    path.write_text(GATEWAY + "package: {include: [tables.csv]}\n")
    with pytest.raises(
        ConfigError, match=r"tables\.csv is named like a secret, or links to such a file"
    ):
        contents.gather(load(path))


def test_patterns_include_and_the_ignore_file_takes_out(tmp_path: Path) -> None:
    text = f"{GATEWAY}package: {{include: [data, 'more/**/*.csv']}}\n"
    names = [
        "data/a.csv",
        "data/a.tmp",
        "data/raw/b.csv",
        "data/raw/keep.csv",
        "more/x/y.csv",
        "more/z.txt",
    ]
    ignored = "# large\n*.tmp\n/data/raw/\n!data/raw/keep.csv\n"
    found = gathered(
        tmp_path, {"gateway.yaml": text, ".roundgateignore": ignored, **dict.fromkeys(names, "")}
    )
    assert set(found.files) == {"tools.py", "data/a.csv", "data/raw/keep.csv", "more/x/y.csv"}


@pytest.mark.parametrize(
    ("pattern", "path", "is_ignored"),
    [
        ("raw", "a/raw/b.csv", True),
        ("raw/", "a/raw", False),
        ("/raw", "a/raw/b.csv", False),
        ("a/*.csv", "a/b/c.csv", False),
        ("a/**/c.csv", "a/b/c.csv", True),
        ("b?.csv", "a/b1.csv", True),
        ("[b].csv", "a/b.csv", True),
    ],
)
def test_a_pattern_means_what_it_means_to_git(pattern: str, path: str, is_ignored: bool) -> None:
    assert (PurePosixPath(path) in Ignored([pattern])) is is_ignored


def test_an_import_that_leads_nowhere_is_named_with_its_line(tmp_path: Path) -> None:
    text = "import os, json\nimport boto3, tools\nfrom slugify import slugify\nif False:\n    import nowhere.at.all\n"
    found = gathered(tmp_path / "repository", {"tools.py": text})
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "tools.py").write_text(text)
    problems = list(packaging.unpacked(found, staging, "worker"))
    assert [(one.path, one.line) for one in problems] == [("slugify", 3), ("nowhere", 5)]
    assert "imports slugify, which the worker function does not have" in problems[0].message
    assert "requirements.txt" in problems[0].remedy


def test_a_package_in_src_has_to_be_moved_beside_gateway_yaml(tmp_path: Path) -> None:
    files = {"src/shop/__init__.py": "", "src/shop/tools.py": ""}
    module = "backends: [{kind: python, name: shop, module: shop.tools}]\n"
    with pytest.raises(ConfigError, match=r"src/shop is not beside gateway\.yaml") as raised:
        gathered(tmp_path, {"gateway.yaml": module, **files})
    assert raised.value.problems[0].remedy == "move src/shop beside gateway.yaml"
    found = gathered(tmp_path, {"gateway.yaml": GATEWAY, "tools.py": "import shop"})
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "tools.py").write_text("import shop")
    (told,) = packaging.unpacked(found, tmp_path / "staging", "worker")
    assert told.remedy.startswith("move src/shop beside gateway.yaml")


def test_a_pattern_for_everything_leaves_gateway_yaml_and_its_comments_out(tmp_path: Path) -> None:
    text = f"# token: hunter2\n{GATEWAY}package: {{include: ['*']}}\n"
    found = gathered(tmp_path, {"gateway.yaml": text, "data.csv": ""})
    assert set(found.files) == {"tools.py", "data.csv"}

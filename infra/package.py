"""`scripts/package`: the zips of the two Lambda functions.

    gateway.zip   app/ without its command line     FastAPI, Mangum, and what they and app/ need
    worker.zip    the same without app/roundgate/http, main   neither FastAPI nor Mangum, PyJWT nor cryptography

Both get the directory of the configuration, with gateway.yaml turned into gateway.json, so that a cold start parses no
YAML and the zip needs no PyYAML. boto3 is the runtime's own. Everything is compiled to the runtime's byte code: a
function cannot write any, and would compile all it imports with each cold start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "infra/lambda.lock"
BUILD = ROOT / ".build"
WHEELS = ROOT / ".cache/wheels"

RUNTIME = "3.13"
PLATFORMS = {"arm64": "aarch64", "x86_64": "x86_64"}
MANYLINUX = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
"""What Amazon Linux 2023, below python3.13, can load: glibc 2.34."""

RUNTIME_HAS = {"boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3"}
SERVERS_NEED = {"click", "httptools", "uvicorn", "uvloop"}
BUILDS_NEED = {"pyyaml"}
GATEWAYS_NEED = {
    *(
        "annotated-doc",
        "cffi",
        "cryptography",
        "fastapi",
        "mangum",
        "opentelemetry-api",
        "pycparser",
        "pyjwt",
        "starlette",
    ),
    *("importlib-metadata", "zipp"),
}
"""What of the lock the worker does without."""
INSTALLERS = tuple(
    f"*.dist-info/{name}" for name in ("INSTALLER", "RECORD", "REQUESTED", "WHEEL", "sboms")
)
"""Of the metadata; what `importlib.metadata` reads stays, and so do the licenses."""
UNNEEDED = (*INSTALLERS, "**/tests", "**/*.pyi", "**/py.typed", "**/__pycache__", "bin")

WORKER_HAS_NOT = ("http", "main.py", "lambda_http.py", "cli")
GATEWAY_HAS_NOT = ("lambda_worker.py", "cli")


@dataclass(frozen=True)
class Function:
    """One of the two."""

    name: str
    does_without: frozenset[str]
    leaves_out: tuple[str, ...]


FUNCTIONS = (
    Function("gateway", frozenset(), GATEWAY_HAS_NOT),
    Function("worker", frozenset(GATEWAYS_NEED), WORKER_HAS_NOT),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/package", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "config", nargs="?", type=Path, default=ROOT / "examples/quickstart/gateway.yaml"
    )
    parser.add_argument("--arch", choices=PLATFORMS, default="arm64", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=BUILD, help="default: .build")
    parser.add_argument("--lock", action="store_true", help="write infra/lambda.lock anew")
    arguments = parser.parse_args()
    if arguments.lock:
        return write_lock()
    compile_documents(arguments.config)
    for function in FUNCTIONS:
        build(function, arguments.config.resolve(), arguments.arch, arguments.out)
    return 0


def write_lock() -> int:
    """Resolve for the runtime and write down exact versions with their hashes."""
    report = BUILD / "resolution.json"
    report.parent.mkdir(exist_ok=True)
    command = [
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        str(report),
        *for_runtime("x86_64"),
    ]
    pip([*command, "--target", str(BUILD / "nowhere"), ".[lambda]"])
    found = {}
    for item in json.loads(report.read_text())["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        found[name] = item["metadata"]["version"]
    unwanted = RUNTIME_HAS | SERVERS_NEED | BUILDS_NEED | {"roundgate"}
    lines = [
        f"{name}=={version}" for name, version in sorted(found.items()) if name not in unwanted
    ]
    LOCK.write_text("# Written by scripts/package --lock.\n" + "\n".join(lines) + "\n")
    print(LOCK.relative_to(ROOT), f"{len(lines)} packages")
    return 0


def build(function: Function, config: Path, arch: str, out: Path) -> None:
    """One zip."""
    staging = out / function.name
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    install(function, arch, staging)
    copy_app(function, staging)
    copy_config(config, staging)
    for pattern in UNNEEDED:
        for path in staging.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    compile_code(staging)
    size = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    zipped = pack(staging, out / f"{function.name}.zip")
    print(f"{function.name}.zip  {arch}  {zipped / 1e6:6.1f} MB, {size / 1e6:6.1f} MB unpacked")


def install(function: Function, arch: str, staging: Path) -> None:
    locked = [line for line in LOCK.read_text().splitlines() if line[:1] != "#"]
    locked = [line for line in locked if line.partition("==")[0] not in function.does_without]
    WHEELS.mkdir(parents=True, exist_ok=True)
    offline = ["--no-index", "--find-links", str(WHEELS)]
    target = ["--no-compile", "--target", str(staging)]
    wanted = ["--quiet", "--no-deps", *for_runtime(arch), *locked]
    if try_pip(["install", *offline, *target, *wanted]) is not None:  # a wheel is not there yet
        pip(["download", "--dest", str(WHEELS), *wanted])
        pip(["install", *offline, *target, *wanted])


def for_runtime(arch: str) -> list[str]:
    """pip's options for another machine than this one."""
    platforms = [
        option for name in MANYLINUX for option in ("--platform", f"{name}_{PLATFORMS[arch]}")
    ]
    return [
        *platforms,
        "--python-version",
        RUNTIME,
        "--implementation",
        "cp",
        "--only-binary",
        ":all:",
    ]


def copy_app(function: Function, staging: Path) -> None:
    def left_out(directory: str, names: list[str]) -> list[str]:
        top = Path(directory) == ROOT / "app/roundgate"
        return [
            name for name in names if name == "__pycache__" or (top and name in function.leaves_out)
        ]

    shutil.copytree(ROOT / "app/roundgate", staging / "roundgate", ignore=left_out)


def compile_documents(config: Path) -> None:
    """Indexes of what describes back ends, beside the configuration: a function fetches nothing, and asks nobody."""
    declared = yaml.safe_load(config.read_text("utf-8")).get("backends") or []
    if any(isinstance(entry, dict) and is_described(entry) for entry in declared):
        subprocess.run([sys.executable, "-m", "roundgate.cli", "compile", str(config)], check=True)


def is_described(entry: dict[str, Any]) -> bool:
    """Whether the tools of a back end are in a document, or in a function."""
    kind = entry.get("kind")
    return kind == "openapi" or (kind == "lambda" and bool(entry.get("describe")))


def copy_config(config: Path, staging: Path) -> None:
    """The directory of the configuration: tools beside it come along."""
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.sqlite3*", "*.key", config.name)
    shutil.copytree(config.parent, staging, ignore=ignored, dirs_exist_ok=True)
    (staging / "gateway.json").write_text(
        json.dumps(yaml.safe_load(config.read_text("utf-8")), ensure_ascii=False)
    )


def compile_code(staging: Path) -> None:
    """Byte code beside the sources, which the runtime takes as it is, whatever their dates; paths are those on AWS."""
    finder = [sys.executable, str(ROOT / "scripts/interpreter.py"), RUNTIME]
    python = subprocess.run(finder, capture_output=True, text=True, check=False).stdout.strip()
    if not python:
        print(
            f"no Python {RUNTIME} here: without its byte code in the zips a cold start takes three times as long"
        )
        return
    mode = ["--invalidation-mode", "unchecked-hash"]
    command = [
        python,
        "-m",
        "compileall",
        "-qq",
        *mode,
        "-s",
        str(staging),
        "-p",
        "/var/task",
        str(staging),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})


def pack(staging: Path, target: Path) -> int:
    """Zip a directory, in a fixed order and with a fixed date: the same input makes the same zip."""
    target.unlink(missing_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(staging.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(str(path.relative_to(staging)), (2026, 1, 1, 0, 0, 0))
                entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return target.stat().st_size


def pip(arguments: list[str]) -> None:
    """Run pip; what it says of a failure ends this."""
    if error := try_pip(arguments):
        sys.exit(error)


def try_pip(arguments: list[str]) -> str | None:
    """Run pip; what it says of a failure, if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    return None if done.returncode == 0 else done.stderr or f"pip failed: {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())

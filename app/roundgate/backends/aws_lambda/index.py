"""What a function told of its tools, kept in a file: a cold start invokes nothing
(docs/decisions/0026)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from roundgate.backends.aws_lambda.config import LambdaBackendConfig
from roundgate.errors import IndexOfAnotherVersion, ParseError, UnusableIndex
from roundgate.json import decode, digest, encode
from roundgate.settings import Origin

KIND: Final = "roundgate lambda index "
FORMAT: Final = f"{KIND}1"


def index_path(config: LambdaBackendConfig, origin: Origin) -> Path:
    """Where the index of a back end is kept."""
    return origin.base_dir / (config.index or f"{config.name}.index")


def write(told: list[Any], config: LambdaBackendConfig) -> bytes:
    """An index as a file has it."""
    return encode({"format": FORMAT, "of": _of(config), "tools": told})


def read(path: Path, config: LambdaBackendConfig) -> list[Any]:
    """What the function told, from a file.

    Raises:
        IndexOfAnotherVersion: another version has written it.
        UnusableIndex: it is none, or of another function.
        OSError: there is none.
    """
    try:
        found = decode(path.read_bytes())
        if found["format"] == FORMAT and found["of"] == _of(config):
            return list(found["tools"])
        if found["format"] != FORMAT and str(found["format"]).startswith(KIND):
            raise IndexOfAnotherVersion()
    except (ParseError, KeyError, TypeError):
        pass
    raise UnusableIndex(f"is no index of {config.function}")


def _of(config: LambdaBackendConfig) -> str:
    """Which function was asked."""
    return digest([config.function, config.qualifier, config.region])

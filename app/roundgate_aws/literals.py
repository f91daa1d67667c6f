"""A search for literal credentials in gateway.yaml and in packed files. In a package they would be
readable in the zip, in the bucket and in the functions' code.

    credential: {bearer: abc123}              refused: the text itself
    credential: {bearer: "${TOKEN:-abc123}"}  refused: the text is the default
    credential: {bearer: "${file:token}"}     refused: the file would be packed
    credential: {bearer: "${secret:token}"}   packed: the text stays at AWS
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import SecretStr

from roundgate.backends.http.secrets import SECRET_NAME
from roundgate.config import ConfigFile
from roundgate.errors import Problem
from roundgate.settings import Origin, Secret, expressions, settings_of

_Loc: TypeAlias = tuple[str | int, ...]

_VARIABLE_OF_A_SECRET: Final = re.compile(
    r"(?i)((?<!primary)(?<!public)(?<!sort)(?<!partition)(?<!foreign)(\b|_|api)key"
    r"|secret|passw(or)?d|passphrase|pwd|token|credentials?)(_?\d+)?$"
)
"""The ending of a variable's name that marks a credential."""
_SHAPES: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b[a-z][a-z0-9+.-]*://[^\s/@:]*:[^\s/@$]+@"  # a URL with a password
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(ghp|gho|ghs|ghu|ghr)_[A-Za-z0-9]{36}|\bgithub_pat_\w{22}|\bglpat-[\w-]{20}"
    r"|\b(sk|rk)_live_\w{16}|\bsk-[A-Za-z0-9_-]{32}|\bxox[abeprs]-[\w-]{10}|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"  # a JWT
)
"""The pattern of texts that are almost certainly credentials."""
_TOKENS: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:\s|\\[nr]|[\"'+\\(),])*[A-Za-z0-9+/]{32}"
    rb"|\b(?:AKIA|ASIA)(?![A-Z0-9]{9}EXAMPLE)[A-Z0-9]{16}\b"
    rb"|\bgh[opsur]_[A-Za-z0-9]{36}|\bgithub_pat_\w{22}|\bglpat-[\w-]{20}"
    rb"|\b[sr]k_live_\w{16}|\bsk-(?:proj|ant|svcacct)-[\w-]{32}|\bxox[abeprs]-\d[\w-]{9}"
)
"""The pattern of credentials that do not occur in samples or program text."""
_SCANNED_BYTES: Final = 1_000_000
"""The number of bytes searched in each packed file."""
_IDS: Final = frozenset({"client_credentials"})
"""The settings of secret types that are harmless in a zip."""


def credentials(file: ConfigFile, source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem, without the text, for each credential that would be packed literally.

    Args:
        file: the configuration.
        source: the file's content, with references unresolved.
    """
    places = dict.fromkeys(
        [*_places_in_settings(file, source), *_places_in_env(source), *_places_in_shape(source)]
    )
    for loc in places:
        yield _problem(file.origin.at(*loc), _text(source, loc))


def in_files(base: Path, names: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem, without the text, for each packed file that contains a credential."""
    for name in names:
        with (base / name).open("rb") as file:
            text = file.read(_SCANNED_BYTES)
        if match := _TOKENS.search(text):
            line = text.count(b"\n", 0, match.start()) + 1
            message = "contains a text that looks like a credential, and would be packed"
            remedy = (
                "keep it in AWS Secrets Manager and read a variable that `env` sets to"
                " ${secret:NAME}; split a sample into two parts"
            )
            yield Problem(str(base / name), "(file)", message, remedy, line)


def _places_in_settings(file: ConfigFile, source: Mapping[str, Any]) -> Iterator[_Loc]:
    """Yield the places of settings whose secret is literal text."""
    parts = [
        (file.backend_origin(index).loc, backend) for index, backend in enumerate(file.backends)
    ]
    settings = chain.from_iterable(
        settings_of(part, loc) for loc, part in [((), file.config), *parts]
    )
    for loc, value in settings:
        if isinstance(value, Secret | SecretStr) and _is_of_a_secret(loc):
            text = _text(source, loc)
            secret = text.partition(":")[2] if loc[-1] == "basic" else text
            if _is_literal(_without_file_name(secret, loc)):
                yield loc


def _places_in_env(source: Mapping[str, Any]) -> Iterator[_Loc]:
    """Yield the places of variables that are named like secrets and have a literal text."""
    for name, text in (source.get("env") or {}).items():
        if isinstance(text, str) and _VARIABLE_OF_A_SECRET.search(name) and _is_literal(text):
            yield "env", name


def _places_in_shape(source: Any, loc: _Loc = ()) -> Iterator[_Loc]:
    """Yield the places of all texts that contain a credential."""
    for place, text in settings_of(source, loc):
        if isinstance(text, str) and _SHAPES.search(text):
            yield place


def _is_of_a_secret(loc: _Loc) -> bool:
    """Return whether a setting of a secret type holds a secret. The name of a fixed header
    decides."""
    if len(loc) > 1 and loc[-2] == "headers":
        return SECRET_NAME.search(str(loc[-1])) is not None
    return loc[-1] not in _IDS


def _is_literal(text: str) -> bool:
    """Return whether a text is not empty and refers to no value outside of the package."""
    references = (
        expression
        for expression in expressions(text)
        if expression.source != "file" and expression.default is None
    )
    return bool(text.strip()) and not any(references)


def _without_file_name(text: str, loc: _Loc) -> str:
    """Return the text of a setting, or an empty string if it is a file name. `contents` checks
    files."""
    is_file = loc[-2:] == ("tls", "key") and "-----BEGIN" not in text
    return "" if is_file and "${" not in text else text


def _text(source: Any, loc: _Loc) -> str:
    """Return the text at a place, or an empty string if there is none."""
    for step in loc:
        try:
            source = source[step]
        except (KeyError, IndexError, TypeError):
            return ""
    return source if isinstance(source, str) else ""


def _problem(place: Origin, text: str) -> Problem:
    has_file = "${file:" in text
    description = "is a file that would be packed" if has_file else "is a credential in plain text"
    return place.problem(
        f"{description}: anyone with access to the functions' code could read it",
        "keep it in AWS Secrets Manager and write ${secret:NAME}, or ${ssm:NAME} for a parameter;"
        " or write ${NAME} and set NAME in `env` to such a reference",
    )

"""`env`: variables that gateway.yaml gives to tools and to `${NAME}`. What the
environment has goes first.

    SHOP_URL: https://shop.example      as it stands, with `${NAME}`, `${NAME:-default}` and `${file:path}` in it
    SHOP_KEY: ${secret:shop/key}        a secret of AWS Secrets Manager; `#KEY` is a member of its JSON object
    SHOP_PIN: ${ssm:/shop/pin}          a parameter of AWS Systems Manager, decrypted

A reference to AWS is a whole value, here or in the environment, and is read
when the configuration is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from roundgate import aws, json
from roundgate.errors import ConfigError, ParseError, Problem
from roundgate.settings.base import Origin
from roundgate.settings.references import fill_in

KEPT: Final = re.compile(r"\$\{(?P<kept>secret|ssm):(?P<name>[^}\s#]+)(?:#(?P<key>[^}]+))?\}")
"""A reference to what is kept at AWS."""
_NAME: Final = re.compile(r"(?!GATEWAY_|AWS_|LAMBDA_)[A-Za-z][A-Za-z0-9_]{0,79}")


def own_name(name: str) -> str:
    """The name of a variable that gateway.yaml may declare.

    Raises:
        ValueError: it is none, or the gateway's own, or AWS Lambda's.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "a variable of your own has letters, digits and _, and begins with none of"
            " _, GATEWAY_, AWS_ and LAMBDA_"
        )
    return name


def declared(
    value: Any,
    origin: Origin,
    environ: Mapping[str, str],
    problems: list[Problem],
    files: set[Path],
    placeholder: str | None,
) -> dict[str, str]:
    """The variables that a section `env` declares, with their values; of what is wrong
    with it, problems are added.

    Args: as of `references.fill_in`; `value` is the section.
    """
    found: dict[str, str] = {}
    for name, text in value.items() if isinstance(value, dict) else ():
        if not isinstance(name, str) or not isinstance(text, str):
            continue  # the model says so
        place, given = origin.at(name), environ.get(name, text)
        kept = KEPT.fullmatch(given)
        if kept is None and KEPT.search(given):
            remedy = "write nothing beside it"
            problems.append(place.problem("a reference to AWS has to be the whole value", remedy))
        elif kept is None:
            is_own = name not in environ
            filled = (
                fill_in(given, place, environ, problems, files, placeholder) if is_own else given
            )
            found[name] = filled
        elif placeholder is not None:
            found[name] = placeholder
        else:
            found[name] = _read(kept, place, problems)
    return found


def _read(kept: re.Match[str], place: Origin, problems: list[Problem]) -> str:
    name, key = kept["name"], kept["key"]
    try:
        text = _READERS[kept["kept"]](name)
        return text if key is None else str(json.decode(text.encode())[key])
    except ConfigError as error:
        problems += error.problems
    except (ParseError, KeyError, TypeError):
        message = f"{name} is no JSON object with the member {key}"
        problems.append(place.problem(message, "correct the reference, or what is kept there"))
    except Exception as error:  # boto3's, most of them made at run time
        code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
        remedy = (
            "correct its name or the region, create it, or allow to read it; here, set the variable"
        )
        problems.append(place.problem(f"{name} cannot be read from AWS: {code}", remedy))
    return ""


def _secret(name: str) -> str:
    client = aws.client("secretsmanager", **aws.PROMPT)
    return str(client.get_secret_value(SecretId=name)["SecretString"])


def _parameter(name: str) -> str:
    client = aws.client("ssm", **aws.PROMPT)
    return str(client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


_READERS: Final[Mapping[str, Callable[[str], str]]] = {"secret": _secret, "ssm": _parameter}

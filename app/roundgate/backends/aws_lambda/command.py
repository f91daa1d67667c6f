"""What `roundgate compile` does for a back end of this kind: ask the function for
its tools, and keep them."""

from __future__ import annotations

import asyncio
import os

from roundgate.backends.aws_lambda import describing
from roundgate.backends.aws_lambda.config import LambdaBackendConfig
from roundgate.backends.aws_lambda.index import index_path, write
from roundgate.errors import BackendError, ConfigError, Problem
from roundgate.settings import Origin


def compile_to_file(config: LambdaBackendConfig, origin: Origin) -> str:
    """Write the index of a back end; returns what to tell the user of it.

    Raises:
        ConfigError: the function cannot be asked.
    """
    if not config.describe:
        return f"{config.name}: its tools are in gateway.yaml, there is nothing to compile"
    try:
        told = asyncio.run(describing.ask(config))
    except BackendError as error:
        raise ConfigError([unasked(error, config, origin)]) from None
    tools, problems = describing.read(told, config, origin)
    path = index_path(config, origin)
    # a gateway that starts meanwhile reads the old one, or the new one
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(write(told, config))
    os.replace(fresh, path)
    summary = f"{config.name}: {len(tools)} tools, {len(problems)} left out: {path}"
    return "\n".join([*map(str, problems), summary])


def unasked(error: BackendError, config: LambdaBackendConfig, origin: Origin) -> Problem:
    """The function did not tell its tools."""
    return origin.at("function").problem(
        f"{config.function} did not tell its tools: {error}",
        "correct the function or the gateway's permissions, and run `roundgate compile` again",
    )

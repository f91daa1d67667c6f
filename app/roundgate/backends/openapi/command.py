"""What `roundgate compile` does for a back end of this kind."""

from __future__ import annotations

import os
from contextlib import nullcontext

from roundgate.backends.openapi.compiling import compile_index, documents_of
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import Index, index_path, write
from roundgate.clock import Clock
from roundgate.errors import ConfigError, Problem
from roundgate.settings import Origin


def compile_to_file(config: OpenApiBackendConfig, origin: Origin) -> str:
    """Write the index of a back end; returns what to tell the user of it.

    Raises:
        ConfigError
    """
    clock = Clock()
    started = clock.monotonic_ms()
    index = compiled(config, origin, fetches=True)
    data = write(index)
    path = index_path(config, origin)
    # a gateway that starts meanwhile reads the old one, or the new one
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
    told = [str(problem) for problem in index.problems]
    seconds = (clock.monotonic_ms() - started) / 1000
    counts = f"{len(index.rows)} operations, {index.left_out} left out"
    summary = f"{config.name}: {counts}, {len(data):,} bytes, {seconds:.1f} s"
    return "\n".join([*told, f"{summary}: {path}"])


def compiled(
    config: OpenApiBackendConfig,
    origin: Origin,
    *,
    fetches: bool,
    fetched: dict[str, bytes] | None = None,
) -> Index:
    """The index of a back end, made now.

    Args:
        config: of the back end.
        origin: where it stands, for problems.
        fetches: whether documents are fetched by URL.
        fetched: those that have been, by URL; others are added.

    Raises:
        ConfigError
    """
    if not fetches:
        return compile_index(config, origin)
    from roundgate.backends.openapi.fetching import fetching

    with fetching(fetched) if _is_remote(config) else nullcontext() as fetch:
        return compile_index(config, origin, fetch)


def remarks(
    config: OpenApiBackendConfig, origin: Origin, fetched: dict[str, bytes] | None = None
) -> list[Problem]:
    """Where the documents of a back end are not as the specification has it, or that they are not
    to be had, which keeps nothing from being served where there is an index."""
    from roundgate.backends.openapi.conformity import found_in
    from roundgate.backends.openapi.fetching import fetching

    with fetching(fetched) if _is_remote(config) else nullcontext() as fetch:
        try:
            documents = documents_of(config, origin, fetch)
        except ConfigError as error:
            return list(error.problems)
        return [one for document in documents for one in found_in(document, origin.base_dir)]


def _is_remote(config: OpenApiBackendConfig) -> bool:
    return any(
        one.startswith(("http://", "https://"))
        for one in (config.document, *config.references, *config.overlay)
    )

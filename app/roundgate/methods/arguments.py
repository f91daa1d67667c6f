"""The arguments of a call as the rest of the gateway gets them: repaired, if the settings say so, and
compared with the schema."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from roundgate.backends import ServedTool
from roundgate.observability.metrics import Metrics
from roundgate.protocol import Schema
from roundgate.settings import ArgumentsConfig

log: Final = logging.getLogger("roundgate.methods")


class Arguments:
    """Reads the arguments of calls.

    Args:
        config: the settings for all tools.
        metrics: counts repairs.
    """

    def __init__(self, config: ArgumentsConfig, metrics: Metrics) -> None:
        self._mode = config.mode
        self._ignored = frozenset(config.ignored)
        self._metrics = metrics

    def of_tool(self, served: ServedTool, sent: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return the arguments of a call, and whether they are valid."""
        if self._ignored.isdisjoint(sent) and served.arguments.is_valid(sent):
            return sent, True
        if (served.tool.argument_mode or self._mode) == "strict":
            return sent, served.arguments.is_valid(sent)
        return self._repaired(served.name, served.tool.definition, served.arguments, sent)

    def of_own_tool(
        self, tool: str, schema: Mapping[str, Any], sent: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a call of one of the gateway's own tools."""
        if self._mode == "strict":
            return sent
        return self._repaired(tool, {"inputSchema": schema}, Schema.compile(schema), sent)[0]

    def _repaired(
        self, tool: str, definition: Mapping[str, Any], compiled: Schema, sent: dict[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        from roundgate.backends.repairing import repaired, without_names

        arguments, repairs = sent, dict[str, int]()
        if not self._ignored.isdisjoint(sent):
            arguments = without_names(definition["inputSchema"], sent, self._ignored)
            if removed := len(sent) - len(arguments):
                repairs["name"] = removed
        is_valid = compiled.is_valid(arguments)
        if not is_valid:
            result = repaired(definition["inputSchema"], arguments)
            arguments, repairs = result.arguments, repairs | dict(result.repairs)
            is_valid = bool(result.repairs) and compiled.is_valid(arguments)
        if repairs:
            log.debug("arguments were repaired", extra={"fields": {"tool": tool, **repairs}})
            for kind, count in repairs.items():
                self._metrics.repaired(tool, kind, count)
        return arguments, is_valid

"""Logs, metrics and traces of the gateway. Logs are JSON for programs (`lines`) or text for people
(`text`, `frames`, `terminal`)."""

from __future__ import annotations

from roundgate.observability.lines import REQUESTS as REQUESTS
from roundgate.observability.lines import JsonFormatter as JsonFormatter
from roundgate.observability.lines import configure as configure
from roundgate.observability.lines import observe as observe
from roundgate.observability.terminal import Style as Style
from roundgate.observability.terminal import escaped as escaped
from roundgate.observability.terminal import innermost as innermost
from roundgate.observability.terminal import place_of as place_of

"""The version of roundgate, which the build reads too. A constant, because the packages of functions
have no metadata."""

from __future__ import annotations

VERSION = "0.1.0"

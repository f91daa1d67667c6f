"""`mcp-gateway schema`: the JSON Schema of gateway.yaml, for editors that complete and check while one types."""

from __future__ import annotations

import argparse
import json

from app.config import GatewayConfig


def run(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    schema = GatewayConfig.model_json_schema(by_alias=True)
    print(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2))
    return 0

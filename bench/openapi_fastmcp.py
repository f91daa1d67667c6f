"""The cost of FastMCP's import of OpenAPI documents. Runs in an environment that
`bench/openapi.py` makes.

    .cache/openapi/fastmcp/bin/python bench/openapi_fastmcp.py SECONDS GIGABYTES DOCUMENT.json …

Prints one JSON object: the number of tools, the seconds of processor time until they can be listed,
the bytes of the list, and the error for a rejected document. FastMCP repeats all of this at every
start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
from fastmcp import FastMCP


def measured(paths: list[Path]) -> dict[str, Any]:
    tools, size, refused = 0, 0, []
    started = time.process_time()
    listed = []
    for path in paths:
        try:
            described = json.loads(path.read_bytes())
            client = httpx2.AsyncClient(base_url="http://127.0.0.1:9")
            server = FastMCP.from_openapi(described, client=client)
            listed += asyncio.run(server.list_tools())
        except MemoryError:
            raise
        except Exception as error:
            refused.append(f"{path.name}: {type(error).__name__}: {str(error)[:300]}")
    seconds = time.process_time() - started
    for tool in listed:
        tools += 1
        size += len(tool.to_mcp_tool().model_dump_json(by_alias=True, exclude_none=True))
    return {"tools": tools, "seconds": seconds, "bytes": size, "refused": refused}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    seconds, gigabytes, *documents = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes) << 30, int(gigabytes) << 30))
    print(json.dumps(measured([Path(one) for one in documents])))

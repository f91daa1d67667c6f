"""`python run.py DRIVER URL`, in the environment of a client: has its driver do what it can,
and prints what came back.

A driver has `connected(url)`, an async context manager that yields what it can do: a step for each
capability (`tests.clients.capabilities`), each of which returns what the client has made of the
answer. `None` is said of what the client has no means for. The last line of the output is a JSON
object: by capability, a value or an error.
"""

import asyncio
import importlib.util
import json
import sys
from typing import Any

STEP_S = 60


async def main(driver: str, url: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("driver", driver)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told: dict[str, Any] = {}
    try:
        async with module.connected(url) as steps:
            for name, step in steps.items():
                told[name] = None if step is None else await outcome(step)
    except BaseException as error:
        told["connection"] = {"error": said(error)}
    return told


async def outcome(step: Any) -> dict[str, Any]:
    try:
        async with asyncio.timeout(STEP_S):
            return {"value": await step()}
    except TimeoutError:
        return {"error": f"no result in {STEP_S} s"}
    except Exception as error:
        return {"error": said(error)}


def said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    print("\n" + json.dumps(asyncio.run(main(*sys.argv[1:])), default=str))

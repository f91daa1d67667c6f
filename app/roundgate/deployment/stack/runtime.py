"""awslambdaric, the runtime of Python functions, extended to receive the trace header.

    python …/deployment/stack/runtime.py roundgate.lambda_worker.handler

AWS passes the header of an invocation in `_X_AMZN_TRACE_ID`, from which boto3 sends it on. The
emulator drops the header, so the stack sends it in the client context, beside the caller's own
client context; this runtime separates the two. It runs in the runtime's Python, beside the code of
a zip, and imports nothing from this repository.
"""

import json
import os
import sys
from typing import Any


class Client:
    """The runtime's client of the emulator, which moves the header out of the client context."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def wait_next_invocation(self) -> Any:
        """Wait for an invocation and return it as AWS would send it."""
        invocation = self._client.wait_next_invocation()
        sent = json.loads(invocation.client_context or "{}")
        invocation.x_amzn_trace_id = sent.get("trace")
        invocation.client_context = sent.get("client")
        return invocation


def main() -> None:
    """Serve the handler that the command line names."""
    sys.path[0] = os.getcwd()  # like `python -m awslambdaric`
    from awslambdaric import bootstrap
    from awslambdaric.lambda_config import LambdaConfigProvider
    from awslambdaric.lambda_runtime_client import LambdaRuntimeClient

    config = LambdaConfigProvider(sys.argv)
    client = LambdaRuntimeClient(config.api_address, config.use_thread_polling)
    bootstrap.run(config.handler, Client(client))


if __name__ == "__main__":
    main()

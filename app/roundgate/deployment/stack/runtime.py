"""awslambdaric, the runtime of Python functions, told of the trace header: the emulator does not
pass it on. What the client context was is beside it.

    python …/deployment/stack/runtime.py roundgate.lambda_worker.handler

AWS puts the header of an invocation into `_X_AMZN_TRACE_ID`, from where boto3 sends it on. Here it
arrives in the client context, which the emulator does pass on, and which is the caller's own again
before the handler sees it. Runs in the runtime's Python, beside the code of a zip: it imports
nothing of this repository.
"""

import json
import os
import sys
from typing import Any

CLIENT_CONTEXT = 5
"""Place among the arguments of `handle_event_request`."""


def main() -> None:
    """Serve the handler that the command line names."""
    sys.path[0] = os.getcwd()  # as `python -m awslambdaric` has it
    from awslambdaric import __main__ as runtime
    from awslambdaric import bootstrap

    handle = bootstrap.handle_event_request

    def traced(*arguments: Any, **more: Any) -> Any:
        """An invocation, with the header where AWS has it."""
        told = json.loads(arguments[CLIENT_CONTEXT] or "{}")
        bootstrap.update_xray_env_variable(told.get("trace"))
        own = told.get("client")
        return handle(*arguments[:CLIENT_CONTEXT], own, *arguments[CLIENT_CONTEXT + 1 :], **more)

    bootstrap.handle_event_request = traced
    runtime.main(sys.argv)


if __name__ == "__main__":
    main()

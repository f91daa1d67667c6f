"""AWS Lambda: the entry points of the functions, and the path from a repository with a gateway.yaml
to the stack, at AWS or on this machine.

    http, stream, worker   the functions' entry points; `api_gateway` is what the first two share

    gateway.yaml ──▶ contents ──┐ requirements ──▶ locking  ──┴─▶ packaging ──▶ gateway.zip,
    worker.zip ──┬─▶ deploying ◀── options
      template.yaml, infra/stack ──▶ parts ──▶ template ──▶ template.yaml ┴─▶ stack

The rest runs on a developer's machine, never in a function. `machine` installs the tools once, into a cache.
"""

"""The path from a repository with a gateway.yaml to AWS Lambda: files, packages, zips, and the
stack at AWS or on this machine.

    gateway.yaml ──▶ contents ──┐ requirements ──▶ locking  ──┴─▶ packaging ──▶ gateway.zip,
    worker.zip ──┬─▶ deploying ◀── options
                     template.yaml ──▶ template ──▶ template.yaml ──────────┴─▶ stack

Runs on a developer's machine, never in a function. `machine` installs the tools once, into a cache.
"""

"""From a repository with a gateway.yaml to AWS Lambda: what goes in, the zips,
the stack here and there.

    gateway.yaml ──▶ contents ──┐
    requirements ──▶ locking  ──┴─▶ packaging ──▶ gateway.zip, worker.zip, template.yaml ──▶ deploying
                                        └─ missing: what is imported and not packed              └▶ stack

Runs on a developer's machine, never in a function. Tools that it needs are installed
once, into a cache (`tools`).
"""

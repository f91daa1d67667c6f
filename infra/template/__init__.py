"""`scripts/template`: whether AWS would take `template.yaml`, looked at as CloudFormation gets it.

    template.yaml ──SAM translator──▶ expanded ──┬─▶ cfn-lint: errors and warnings
      + one set of parameters                    ├─▶ an order of creation, so that nothing waits for itself
                                                 ├─▶ names and lengths; what a changed parameter replaces
                                                 └─▶ moto creates it, and updates it with other parameters

SAM's file itself says little: what depends on what, which policies a role has and which permission
a route gets are there only after the expansion. Runs in the Python of `.cache/template`, which has
the tools, and imports nothing of `app`. Needs neither credentials nor a network.
"""

"""`scripts/template`: whether AWS would take `template.yaml`, checked as CloudFormation gets it.

    template.yaml ──SAM translator──▶ expanded ──┬─▶ cfn-lint: errors and warnings
      + one set of parameters                    └─▶ moto creates it, and updates it with other parameters

SAM's file itself says little: dependencies, policies of roles and permissions of routes are there
only after the expansion. Runs in the Python of `.cache/template`, which has the tools, and imports
nothing of `app`. Needs neither credentials nor a network. tests/functions/test_template_changes.py
checks what a changed parameter replaces.
"""

"""`scripts/template`: checks of the stack's template in the form that CloudFormation receives.

    template.yaml + infra/stack ──render──▶ http.yaml, rest.yaml
    each + one set of parameters ──SAM translator──▶ expanded ──▶ cfn-lint

SAM's file itself lacks dependencies, policies of roles and permissions of routes, which the
expansion adds. The checks run in the Python of `.cache/template`, which has the tools, and import
nothing from `app`; `render` runs in the repository's environment. They need neither credentials nor
a network.
tests/roundgate_aws/functions/test_template_changes.py checks the resources that a changed parameter replaces.
"""

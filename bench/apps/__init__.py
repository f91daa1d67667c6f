"""The served applications: one module a subject, with two factories, `one_tool` and `hundred_tools`
(or, for the gateway, two tool modules)."""

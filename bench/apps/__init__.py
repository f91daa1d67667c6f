"""The served applications: one module per subject, with two factories, `one_tool` and
`hundred_tools` (for the gateway, two tool modules)."""

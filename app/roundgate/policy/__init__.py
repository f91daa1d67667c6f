"""The section `policy`: which callers may call which tools with which arguments, and which prompts
and resources they may get.

`config` is the section; `rules` decides calls of tools, and `items` prompts and resources; `texts`
and `arguments` compare names, URIs and arguments. The catalog asks the rules for its endpoints;
approvals are in `backends.approvals`.
"""

"""Where calls go: the tools, prompts and resources behind the gateway, one module a kind of back end."""

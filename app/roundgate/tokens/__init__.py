"""State that leaves the house: sealed so that only its owner can bring it back, for the request it belongs to.

Knows neither MCP methods nor handlers; what is sealed is bytes.
"""

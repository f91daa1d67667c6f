"""Who is calling. Knows nothing of MCP methods, tools or HTTP frameworks."""

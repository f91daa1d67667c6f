"""The kind `mcp`: servers of the protocol as back ends, over Streamable HTTP or as child
processes."""

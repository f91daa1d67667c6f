"""What the deployed stack is made of, and the tools that make it."""

"""The parts of the deployed stack, and the tools that make it."""

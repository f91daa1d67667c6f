"""Python functions as tools, prompts and resources: the kind python."""

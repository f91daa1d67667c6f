"""The kind `python`: Python functions as tools, prompts and resources."""

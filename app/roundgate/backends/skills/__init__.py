"""The kind `skills`: a folder of skills (SEP-2640)."""

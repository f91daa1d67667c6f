"""Endpoints of an HTTP service as tools: the kind http."""

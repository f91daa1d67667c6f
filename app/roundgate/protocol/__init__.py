"""MCP revision 2026-07-28 as values: bytes and headers in, requests and errors out.

No I/O, no clock, no logging, no FastAPI. Everything here is a pure function or a frozen value.
"""

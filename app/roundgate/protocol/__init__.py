"""The protocol as values: bytes and headers in, requests and errors out. What one revision alone has is in its package.

No I/O, no clock, no logging, no FastAPI. Everything here is a pure function or a frozen value.
"""

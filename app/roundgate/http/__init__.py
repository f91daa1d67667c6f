"""The HTTP edge: bytes in, bytes out. The only package, with `main`, that knows ASGI, Starlette and FastAPI."""

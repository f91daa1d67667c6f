"""From a valid request to its result: the handlers of the methods, and the streams of subscriptions/listen.

Knows the catalog and the engine; knows nothing of HTTP, sockets or FastAPI.
"""

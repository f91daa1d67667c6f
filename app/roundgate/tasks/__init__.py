"""Calls that outlive their request: created and watched for their owner, carried by workers, kept in a store.

There is one engine, and its journal is kept in one of two places: between rounds it travels with the client
(`methods.rounds`), in a task it is rows in a store (`tasks.checkpointer`). This package knows the catalog, the engine
and the ports of storage; it knows nothing of HTTP.
"""

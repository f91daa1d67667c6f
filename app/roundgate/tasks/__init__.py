"""Calls that outlive their request: created and watched for their owner, carried by workers, kept in a store.

One engine, two homes for its journal: between rounds it travels with the client (`methods.rounds`), in a task it is
rows in a store (`tasks.home`). Knows the catalog, the engine and the ports of storage; nothing of HTTP.
"""

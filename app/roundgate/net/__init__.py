"""Addresses, connections and client authentication, for everything that calls others."""

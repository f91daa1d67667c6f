"""Addresses and TLS, as everything that makes connections judges them."""

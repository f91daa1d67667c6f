"""Clients that other people wrote, unmodified, driven against replicas of the gateway;
`scripts/clients` runs it."""

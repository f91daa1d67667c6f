"""What a gateway and a worker serve: a configuration with its back ends, catalog and stores,
loaded at a start and again on a reload. Knows no web framework.
"""

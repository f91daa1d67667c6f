"""The common runtime of a gateway and a worker: a configuration with its back ends, catalog and
stores, loaded at the start and again on a reload. This package imports no web framework."""

"""The common runtime of a gateway and a worker: a configuration with its back ends, catalog and
stores, loaded at a start and again on a reload. This package knows no web framework."""

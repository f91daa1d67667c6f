"""The benchmark: `scripts/bench` runs it, `bench/README.md` explains it.

Except `bench.load` and `bench.apps`, the modules use only the standard library, and import nothing
of the gateway: like every other subject, it is measured over HTTP. Two modules run with the
gateway's own Python and import it: `bench.inside`, and `bench.tasks` with its helpers, which fill
tables.
"""

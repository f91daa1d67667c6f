"""The benchmark: `scripts/bench` runs it, `bench/README.md` explains it.

Everything but `bench.load` and `bench.apps` is standard library only, and nothing else imports
the gateway: it is measured from outside, over HTTP, as every other subject is. Two things are run
with the gateway's own Python and do import it: `bench.inside`, and `bench.tasks` with its
helpers, which fill tables.
"""

"""The benchmark: `scripts/bench` runs it, `bench/README.md` explains it.

Everything but `bench.load` and `bench.apps` is standard library only, and nothing here imports the gateway: it is
measured from outside, over HTTP, as every other subject is.
"""

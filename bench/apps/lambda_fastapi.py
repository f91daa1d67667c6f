"""Floor on AWS Lambda: a single path operation under Mangum."""

from mangum import Mangum

from bench.apps.fastapi import one_tool

handler = Mangum(one_tool(), lifespan="off")

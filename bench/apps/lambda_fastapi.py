"""Floor on AWS Lambda: one path operation under Mangum, and nothing else."""

from mangum import Mangum

from bench.apps.fastapi import one_tool

handler = Mangum(one_tool(), lifespan="off")

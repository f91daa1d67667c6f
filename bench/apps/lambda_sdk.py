"""Peer on AWS Lambda: the official SDK's app under Mangum, which starts and stops the app with each
event."""

from mangum import Mangum

from bench.apps.sdk import one_tool

handler = Mangum(one_tool(), lifespan="auto")

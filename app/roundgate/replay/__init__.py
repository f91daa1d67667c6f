"""Running a handler: the one engine through which every tool, prompt and resource function goes.

Pure: knows neither tokens nor tables nor HTTP. What a handler sees of its call is `context.Context`.
"""

"""The server for clients of the revisions with sessions. `http.endpoint` passes their requests on, and
`serving` imports this package when the first of them arrives.

endpoint     POST (of one message or a batch), GET and DELETE; `changes` is the stream of a GET,
             `own` serves requests about the session itself
calls        a request that runs a tool, prompt or resource, round after round until its result
open_calls   a call between two rounds, in the id of an event; `continued` keeps it in a result instead
asking       questions on the stream of a call; `questions` stores answers and waits for them
one_run      a round runs once, however many requests continue it; `claims` decides which one runs it
patient      the shared rows, with retries while the store is unavailable
unheard      a running handler continues when its client hangs up
caller, stream, notices, cancelling        shared parts
"""

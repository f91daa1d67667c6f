"""The server for clients of the revisions with sessions. `http.endpoint` passes their requests on,
and `serving` imports this package when the first such request arrives.

endpoint     POST (of one message or a batch), GET and DELETE; `changes` is the stream of a GET,
             `sessions` has their changes, and serves requests about the session itself
calls        a request that runs a tool, prompt or resource; once that call has a hidden task
             (`tasks.hidden`), follows the task to its result
rounds       runs the rounds that this process claims, and keeps the state for later requests in the task
open_calls   the id of an event, which names the task; `continued` gives it to a model instead
asking       questions and answers as messages
following    the limit on requests that wait
patient      repeats operations while the store is unavailable
watching     a running handler continues when its client hangs up, and ends when it is cancelled
caller, stream    shared parts
"""

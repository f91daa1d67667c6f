"""Clients of the revisions with sessions: what `http.endpoint` hands over to, made
when the first of them comes.

endpoint     POST (of one message or a batch), GET and DELETE; `changes` is a GET of what changes,
             `own` what a session asks about itself
calls        a request that runs something, round after round until there is a result
open_calls   a call between its rounds, in the id of an event; `continued` where it is in a result instead
asking       questions on the stream of a call; `questions` keeps answers and waits for them
one_run      a round is run once, however many requests go on with it; `claims` says who runs it
patient      the rows that all of them share, asked again where the store is away for a moment
unheard      what runs goes on when the client hangs up
caller, stream, notices, cancelling        what these have in common
"""

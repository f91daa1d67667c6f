"""From a valid request to its result: one module for each group of methods, and one table of them all.

    table          method → who serves it, its params, what the client must have declared
    discovery, tools, prompts, resources, completion, tasks, subscriptions        the groups
    lists, calls, scopes, results                                                 what several groups use
    rounds, once   a call over several requests; a round that happens once
    hub            the open streams of this process

Knows the catalog and the engine; knows nothing of HTTP and of sockets, and not which revision was spoken.
"""

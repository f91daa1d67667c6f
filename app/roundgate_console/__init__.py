"""The console: pages and a JSON API for the operators of a gateway (`console` in gateway.yaml).

A page is a module with a `frame.ConsolePage`, which an entry point of the group `roundgate.pages` names, and
templates. Pages render on the server; htmx replaces parts of them. Nothing of this package is
imported unless the console is on.

    request ─▶ Guard ─▶ RequestMiddleware ─▶ ConsoleAccess ─▶ FastAPI's router ─▶ a page
"""

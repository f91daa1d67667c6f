"""The console: pages and a JSON API for the operators of a gateway (`console` in gateway.yaml).

A page is a module with a function `make_router(console)`, its templates in `templates/`, and an entry
in `console.routes.PAGES`. Pages render on the server; htmx replaces parts of them. Nothing of this
package is imported unless the console is on.

    request ─▶ Guard ─▶ RequestMiddleware ─▶ ConsoleAccess ─▶ FastAPI's router ─▶ a page
"""

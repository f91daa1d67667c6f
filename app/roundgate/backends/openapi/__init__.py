"""Services described by an OpenAPI document: every operation a tool.

compile   document ──▶ sources ──▶ reading ──▶ schemas, plans ──▶ index (a file)     once, when packaging
serve     index ──▶ names and bytes of definitions ──▶ tools                         at every start, without parsing
call      plan ──▶ requests ──▶ roundgate.backends.http.service ──▶ answers          when a tool is first called
"""

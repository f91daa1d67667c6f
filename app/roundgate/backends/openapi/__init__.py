"""The `openapi` back end, which offers each operation of an OpenAPI document as a tool.

compile   documents ──▶ reading, schemas, media ──▶ index (a file)        once, when packaging
serve     index ──▶ names and bytes of definitions ──▶ backend            at every start, without parsing
call      requests ──▶ roundgate.backends.http.service ──▶ a result       when a tool is first called
"""

"""URL hosts, HTTP connections and OAuth client authentication for all outgoing requests."""

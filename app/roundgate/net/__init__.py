"""URL hosts, HTTP connections, OAuth client authentication, and a server beside other work."""

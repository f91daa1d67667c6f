"""Questions of a server, asked on a terminal."""

"""Ways to authenticate: a bearer token, client credentials, a login in the browser, and proofs of possession (DPoP)."""

"""Pages of tools in a browser, through a gateway (`scripts/apps`)."""

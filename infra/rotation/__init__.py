"""The code of the rotation function: this directory is deployed as it is."""

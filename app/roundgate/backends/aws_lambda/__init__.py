"""Functions of AWS Lambda as tools, declared in gateway.yaml or described by the function
itself."""

"""The deployed stack on this machine: what `template.yaml` describes, from the built zips, with the real parts.

curl ──▶ front (API Gateway) ──▶ functions (Runtime Interface Emulator, awslambdaric, the zips)
                                      │ DynamoDB Local, SQS and Secrets Manager of moto
         poller (event source mapping) ◀── queue          schedule ──▶ worker functions
"""

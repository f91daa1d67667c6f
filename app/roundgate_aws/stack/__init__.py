"""The deployed stack on this machine: `template.yaml` and the built zips, run by local services.

curl ──▶ events, rest_api (API Gateway) ──▶ functions (runtime_api, awslambdaric, the zips)
                                      │ services: DynamoDB Local, SQS and Secrets Manager of moto
         events (event source mapping) ◀── queue      schedule ──▶ worker functions
         lambda_api (Invoke) ◀── back ends of the kind lambda: functions of a directory

Differences from AWS:

    scaling       AWS adds environments with the load, and polls less after failures; here both are
                  fixed
    init phase    AWS ends it after 10 s; here it begins with the first invocation and may take 20 s
    memory, CPU   AWS bounds them by MemorySize; here the machine is the bound
    permissions   IAM is not evaluated; tests compare the template's policies with the calls in the
                  code
"""

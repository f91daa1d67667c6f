# The gateway as a container: uvicorn, streaming included. The same image runs on ECS and Kubernetes, and on AWS Lambda
# behind a Function URL with response streaming, where the web adapter turns events into requests.
#
#   docker build -t roundgate .
#   docker run -p 8080:8080 -v ./gateway:/gateway:ro -e GATEWAY_STATE_KEYS=… roundgate
# Base images by digest: what is built today is built again tomorrow. To take a newer one:
#   docker buildx imagetools inspect python:3.13-slim --format '{{.Manifest.Digest}}'
FROM public.ecr.aws/awsguru/aws-lambda-adapter:1.1.0@sha256:17cfd08eff1dfea3f6a9a1e9c65fdac80aa4919b6085e746615530f43f57d2f1 AS adapter

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
WORKDIR /src
# what is installed, and what builds the gateway's own wheel, is in the locks: scripts/tools image-lock writes them anew
COPY infra/image.lock infra/image-build.lock ./infra/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r infra/image-build.lock \
    && python -m venv /opt/gateway \
    && /opt/gateway/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r infra/image.lock
COPY pyproject.toml LICENSE template.yaml ./
COPY infra/lambda.lock ./infra/
COPY infra/rotation/rotate_keys.py ./infra/rotation/
COPY infra/stack ./infra/stack
COPY docs ./docs
COPY app ./app
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /opt/wheels . \
    && /opt/gateway/bin/pip install --no-cache-dir --no-deps --no-index /opt/wheels/*.whl

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
COPY --from=adapter /lambda-adapter /opt/extensions/lambda-adapter
COPY --from=build /opt/gateway /opt/gateway
RUN useradd --system --uid 10001 --home-dir /var/lib/gateway --create-home gateway
USER 10001
WORKDIR /gateway
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GATEWAY_CONFIG=/gateway/gateway.yaml \
    GATEWAY_STORE=sqlite:////var/lib/gateway/gateway.sqlite3 \
    AWS_LWA_PORT=8080 \
    AWS_LWA_READINESS_CHECK_PATH=/healthz \
    AWS_LWA_INVOKE_MODE=response_stream
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["roundgate"]
# a container is reached from outside: without `auth` in gateway.yaml this refuses to start unless told --allow-anonymous
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]

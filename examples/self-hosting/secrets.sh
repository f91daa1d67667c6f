#!/bin/sh
# Writes the secrets of compose.yaml into secrets/, unless they are there. The folder is private; the files are readable,
# because Compose mounts them with the rights that they have here.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 secrets
cd secrets
random() { head -c "$1" /dev/urandom | base64 | tr -d '\n'; }
[ -s state_keys ] || random 32 > state_keys
[ -s grafana_password ] || random 24 > grafana_password
if [ ! -s database_password ]; then
    random 24 | tr '+/' '-_' > database_password       # the URL needs no escapes
    printf 'postgresql://gateway:%s@database:5432/gateway' "$(cat database_password)" > database_url
fi
chmod 444 ./*

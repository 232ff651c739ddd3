#!/bin/sh
# Make the secrets that compose.yaml and deploy/kubernetes name, in deploy/secrets/, which git ignores; what is there stays.
# The files may be read by all, since a container reads them as its own user; their folder by its owner alone.
# Tokens are made by the service: it keeps their hashes. The CA's key is not kept: to add a certificate, make all anew.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
cd secrets

kept() { [ -s "$1" ]; }
random() { openssl rand -hex 32; }

kept postgres_password || random > postgres_password
kept grafana_password || random > grafana_password
kept database_url \
    || echo "postgresql+psycopg://conv_advisor:$(cat postgres_password)@postgres/conv_advisor" > database_url

# Dask's scheduler, its workers and the servers show one certificate: having it is what lets one in.
if ! kept cluster_cert; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj '/CN=conv-advisor cluster CA' \
        -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign' \
        -keyout ca_key -out cluster_ca 2> /dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=conv-advisor cluster' \
        -keyout cluster_key -out request 2> /dev/null
    printf 'basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s\n' \
        'DNS:scheduler,DNS:worker,DNS:conv-advisor-scheduler' > extensions
    openssl x509 -req -in request -CA cluster_ca -CAkey ca_key -CAcreateserial -days 365 -extfile extensions \
        -out cluster_cert 2> /dev/null
    rm -f ca_key request extensions cluster_ca.srl
fi

# A token for you and one for Prometheus; CONV_ADVISOR names the command that makes them.
if ! kept tokens; then
    ${CONV_ADVISOR:-conv-advisor} token me --scopes read,measure,administer --file tokens > my_token
    ${CONV_ADVISOR:-conv-advisor} token prometheus --scopes read --file tokens > prometheus_token
fi

chmod 0644 ./*

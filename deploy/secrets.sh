#!/bin/sh
# Make the secrets that compose.yaml and deploy/kubernetes name, in deploy/secrets/, which git ignores; what is there stays.
# The files may be read by all, since a container reads them as its own user; their folder by its owner alone.
# It needs openssl alone. Tokens are as `conv-advisor token` makes them: the service gets their hashes. The CA's key is not
# kept: to add a certificate, make all anew.
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

# token <name> <scopes> <file>: 256 random bits into the file, and the line that lets them in on standard output.
token() {
    printf 'cadv_%s' "$(openssl rand -base64 32 | tr '+/' '-_' | tr -d '=\n')" > "$3"
    echo "$1 $2 sha256:$(openssl dgst -sha256 -r "$3" | cut -d ' ' -f 1)"
}

# A token for you and one for Prometheus.
if ! kept tokens; then
    token me read,measure,administer my_token > tokens_unfinished
    token prometheus read prometheus_token >> tokens_unfinished
    mv tokens_unfinished tokens
fi

chmod 0644 ./*

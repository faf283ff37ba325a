#!/bin/bash
# Envoy ends at once on SIGTERM and would cut every open answer. So, before that signal: fail the readiness check,
# give the Service time to forget this Pod, take no more connections, and wait for the answers that are open.
set -u
host=${ENVOY_ADMIN_HOST:-127.0.0.1} port=${ENVOY_ADMIN_PORT:-9901}
settle_s=${SETTLE_S:-5} limit_s=${LIMIT_S:-295}

ask() {  # METHOD PATH -> the answer, head and body
  exec 3<>"/dev/tcp/$host/$port" || return
  printf '%s %s HTTP/1.1\r\nhost: drain\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

ask POST /healthcheck/fail >/dev/null
sleep "$settle_s"
ask POST /drain_listeners >/dev/null
for ((waited = 0; waited < limit_s; waited++)); do
  ask GET '/stats?filter=^http\.clients\.downstream_rq_active$' | grep -q 'downstream_rq_active: [1-9]' || exit 0
  sleep 1
done

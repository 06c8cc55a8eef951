#!/usr/bin/env bash
# From a bare Debian 12 machine to an answer: scripts/quickstart.sh ["question"]
#
# Installs the packages, builds, fetches the default model, starts a router, one prefill and one decode process on this
# machine, asks the question, prints the answer with its receipt, and stops everything it started.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1-}" in
  -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
question=${1:-What is the capital of France?}
start_limit_seconds=${BATON_QUICKSTART_START_LIMIT:-60}

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }

log=$(mktemp "${TMPDIR:-/tmp}/baton-quickstart.XXXXXX.log")
server_pid=
client_pid=
keep_log=0

server_alive() { [[ -n $server_pid ]] && kill -0 "$server_pid" 2>/dev/null; }

stop_server() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP
  if [[ -n $client_pid ]]; then
    kill -TERM "$client_pid" 2>/dev/null || true
    wait "$client_pid" 2>/dev/null || true
  fi
  if [[ -n $server_pid ]]; then
    # The server leads its own process group, so the group is exactly what this script started.
    kill -TERM "$server_pid" 2>/dev/null || true
    for _ in {1..100}; do
      kill -0 -- "-$server_pid" 2>/dev/null || break
      sleep 0.1
    done
    if kill -0 -- "-$server_pid" 2>/dev/null; then
      echo "quickstart.sh: the server did not stop within 10 s; killing its process group" >&2
      kill -KILL -- "-$server_pid" 2>/dev/null || true
    fi
    wait "$server_pid" 2>/dev/null || true
  fi
  if ((keep_log)); then
    echo "The server's log is $log" >&2
  else
    rm -f "$log"
  fi
  exit "$status"
}
trap stop_server EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

say "Packages"
./scripts/install_deps.sh
say "Build"
./scripts/build.sh release baton >&2
say "Model"
model=$(./scripts/fetch_model.sh)

port=${BATON_QUICKSTART_PORT:-$(python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')}

say "Router + 1 prefill + 1 decode on 127.0.0.1:$port"
# setsid: a Ctrl-C in the terminal reaches this script alone, which then stops the server in order.
# setpriv: the kernel stops the server even when this script is killed outright.
setsid setpriv --pdeathsig TERM \
  build/release/baton up "$model" --prefill 1 --decode 1 --listen "127.0.0.1:$port" >"$log" 2>&1 &
server_pid=$!

fail_with_log() {
  echo "quickstart.sh: $1; the end of its log:" >&2
  tail -n 20 "$log" >&2
  keep_log=1
  exit 1
}

deadline=$((SECONDS + start_limit_seconds))
until grep -qiw ready "$log"; do
  server_alive || fail_with_log "the server stopped before it was ready"
  ((SECONDS < deadline)) || fail_with_log "the server was not ready after $start_limit_seconds s"
  sleep 0.05
done

say "$question"
# In the background, because bash runs a trap only between commands: so a signal to this script acts at once.
setpriv --pdeathsig TERM \
  build/release/baton chat --server "127.0.0.1:$port" --message "$question" --receipt &
client_pid=$!
wait "$client_pid" ||
  fail_with_log "the question was not answered"
client_pid=
say "Stopping"

#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing need. Does nothing, quickly, when all are there.
#
#   scripts/install_deps.sh           to build, run and test
#   scripts/install_deps.sh --text    also the natural text that the large tokenizer comparison reads
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libspdlog-dev libfmt-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev libucx-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev libsimde-dev
  python3 python3-venv python3-pip python3-jinja2 iproute2
  ca-certificates unzip procps util-linux
)
text_packages=(
  bible-kjv bible-kjv-text iso-codes
  fortunes-zh fortunes-ru fortunes-de fortunes-es fortunes-it fortunes-cs fortunes-bg fortunes-ga fortunes-eo
)

for argument in "$@"; do
  case "$argument" in
    --text) packages+=("${text_packages[@]}") ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "install_deps.sh: unknown option '$argument'; --help lists the options" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps.sh: no dpkg here. Install the equivalents of these Debian packages by hand:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 1
fi

missing_packages() {
  local installed package
  installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qxF "installed $package" <<<"$installed" || echo "$package"
  done
}

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install_deps.sh: not root and no sudo. As root, run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} packages: ${missing[*]}" >&2
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
# The package lists of a fresh machine are absent or old: try with what is there first, update only when that fails.
if ! "${as_root[@]}" "${install[@]}" >/dev/null 2>&1; then
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" "${install[@]}" >/dev/null
fi

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} != 0)); then
  echo "install_deps.sh: still missing after apt-get install: ${missing[*]}" >&2
  exit 1
fi

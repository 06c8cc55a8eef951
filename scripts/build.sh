#!/usr/bin/env bash
# Builds Baton: scripts/build.sh [preset] [target...]
#
# The presets are those of CMakePresets.json (release by default). The result is build/<preset>/baton.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
shift $(($# > 0 ? 1 : 0))
case "$preset" in
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

for tool in cmake ninja; do
  if ! command -v "$tool" >/dev/null; then
    echo "build.sh: '$tool' is not installed; run scripts/install_deps.sh first" >&2
    exit 1
  fi
done
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
  # Checkouts in different folders share one cache.
  export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}
fi

export CMAKE_GENERATOR=${CMAKE_GENERATOR-Ninja}
cmake --preset "$preset"
if (($# > 0)); then
  cmake --build "build/$preset" --target "$@"
else
  cmake --build "build/$preset"
fi

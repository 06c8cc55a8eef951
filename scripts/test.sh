#!/usr/bin/env bash
# Everything that must pass: scripts/test.sh [--only release|asan|tsan] [--jobs N]
#
#   release  all tests, on an optimised build
#   asan     units, simulator and a short end-to-end run under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan     the same under ThreadSanitizer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
parts=(release asan tsan)
jobs=$(nproc)
while (($# > 0)); do
  case "$1" in
    --only)
      case "${2-}" in
        release | asan | tsan) parts=("$2") ;;
        *) echo "test.sh: --only takes release, asan or tsan, not '${2-}'" >&2; exit 2 ;;
      esac
      shift 2 ;;
    --jobs)
      [[ ${2-} =~ ^[1-9][0-9]*$ ]] || { echo "test.sh: --jobs takes a positive number, not '${2-}'" >&2; exit 2; }
      jobs=$2
      shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "test.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

say() { printf '\n==> %s\n' "$*"; }

say "Packages and model"
./scripts/install_deps.sh
# The natural text of the large tokenizer comparison; that test says so and is skipped where the text is not there.
./scripts/install_deps.sh --text || echo "test.sh: no text packages; the large tokenizer comparison will be skipped"
BATON_TEST_MODEL=$(./scripts/fetch_model.sh)
export BATON_TEST_MODEL

# Sanitizer findings must fail the test that made them, with a readable stack.
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS-halt_on_error=1:second_deadlock_stack=1}

failed=()
for part in "${parts[@]}"; do
  say "$part: build"
  ./scripts/build.sh "$part"
  case "$part" in
    release) labels='^(unit|conformance|sim|equality|oracle|e2e|e2e-local)$' ;;
    *) labels='^(unit|sim|e2e-local)$' ;;
  esac
  say "$part: test"
  ctest --test-dir "build/$part" --label-regex "$labels" --parallel "$jobs" --output-on-failure --no-tests=error ||
    failed+=("$part")
done

if ((${#failed[@]} > 0)); then
  say "failed: ${failed[*]}"
  exit 1
fi
say "passed: ${parts[*]}"

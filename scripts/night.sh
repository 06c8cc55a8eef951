#!/usr/bin/env bash
# Runs the simulator over as many seeds as the time allows, on all cores: scripts/night.sh [minutes]
#
#   scripts/night.sh 480                  eight hours, after the long model checks of the hand-off
#   scripts/night.sh --handoffs 1000000   until so many hand-offs have met a fault
#   scripts/night.sh --seed 1234          one seed: the replay of a find
#
# Prints what was done and what went wrong on purpose; stops at the first find with the command that replays it.
# The first seed is drawn from the clock, so that no two nights are alike; --first-seed sets it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

arguments=()
if [[ ${1:-} =~ ^[0-9.]+$ ]]; then
  arguments+=(--minutes "$1")
  shift
elif (($# == 0)); then
  arguments+=(--minutes 10)
fi
case "${1:-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
if [[ " $* " != *" --first-seed "* && " $* " != *" --seed "* ]]; then
  arguments+=(--first-seed "$(date +%s)000000")
fi
[[ " $* " == *" --seed "* || " $* " == *" --jobs "* ]] || arguments+=(--jobs "$(nproc)")

scripts/build.sh release sim_night handoff_test >&2
if [[ " ${arguments[*]} " == *" --minutes "* ]]; then
  # Both ticket machines, exhaustively, in worlds that are too large for the unit tests.
  build/release/tests/unit/handoff/handoff_test --gtest_also_run_disabled_tests --gtest_filter='DISABLED_Long/*' --gtest_brief=1
fi
exec build/release/tests/sim/sim_night "${arguments[@]}" "$@"

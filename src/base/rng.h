// Seeded random numbers with a fixed definition (SplitMix64), so that a seed means the same everywhere and
// for ever. Draws can also be keyed: a function of (seed, a, b) with no state.
#pragma once

#include <cstdint>

namespace baton {

constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr uint64_t KeyedDraw(uint64_t seed, uint64_t a, uint64_t b) { return Mix64(Mix64(Mix64(seed) ^ a) ^ b); }
// [0, 1) with 53 bits.
constexpr double ToUnit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

class Rng {
 public:
  explicit constexpr Rng(uint64_t seed) : state_(seed) {}
  constexpr uint64_t Next() {
    const uint64_t out = Mix64(state_);
    state_ += 0x9e3779b97f4a7c15ull;
    return out;
  }
  constexpr double Unit() { return ToUnit(Next()); }
  // [0, n); the bias of the multiply is below n / 2^64. n > 0.
  constexpr uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  constexpr bool Chance(double p) { return Unit() < p; }

 private:
  uint64_t state_;
};

}  // namespace baton

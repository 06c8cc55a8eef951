// The merging of byte-pair encoding: of all neighbours the pair with the highest priority (lowest rank, then
// leftmost) becomes one token, until no pair merges. Built once, read by any thread; scratch belongs to a caller.
//
// Always true: n symbols cost O(n log n): a list of neighbours and a heap of candidate pairs; up to kShort symbols
// are scanned instead, which is faster.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "baton/ids.h"

namespace baton {

class BpeMerges {
 public:
  static constexpr size_t kShort = 24;

  struct Candidate {
    uint32_t rank;
    uint32_t left;  // position of the left symbol
    TokenId merged;
    TokenId left_id, right_id;  // as they were; the candidate is stale when they are not so any more
  };
  struct Symbol {
    TokenId id;
    uint32_t previous, next;
  };
  struct Scratch {
    std::vector<Candidate> heap;
    std::vector<Symbol> list;
    uint64_t steps = 0;  // pairs looked at and heap moves, ever; for tests of cost
  };

  void Reserve(size_t count);
  // The first rank given to a pair stays.
  void Insert(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  // Merges in place.
  void Apply(std::vector<TokenId>* symbols, Scratch* scratch) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    uint32_t rank = 0;
    TokenId merged = 0;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  const Slot* Find(TokenId left, TokenId right) const;
  void ApplyShort(std::vector<TokenId>* symbols, Scratch* scratch) const;
  void ApplyLong(std::vector<TokenId>* symbols, Scratch* scratch) const;

  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t mask_ = 0;
};

}  // namespace baton

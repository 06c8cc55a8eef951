#include "text/bpe_merges.h"

#include <algorithm>
#include <bit>

#include "base/rng.h"

namespace baton {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};

uint64_t Pack(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Orders a heap so that its front is the lowest rank, of those the leftmost.
bool Later(const BpeMerges::Candidate& a, const BpeMerges::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

void BpeMerges::Reserve(size_t count) {
  slots_.assign(std::bit_ceil(count * 2 + 2), Slot{});
  mask_ = slots_.size() - 1;
}

void BpeMerges::Insert(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
  const uint64_t pair = Pack(left, right);
  size_t at = Mix64(pair) & mask_;
  for (; slots_[at].pair != kFree; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return;
  }
  slots_[at] = {pair, rank, merged};
}

const BpeMerges::Slot* BpeMerges::Find(TokenId left, TokenId right) const {
  const uint64_t pair = Pack(left, right);
  for (size_t at = Mix64(pair) & mask_; slots_[at].pair != kFree; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return &slots_[at];
  }
  return nullptr;
}

void BpeMerges::Apply(std::vector<TokenId>* symbols, Scratch* scratch) const {
  if (symbols->size() < 2 || slots_.empty()) return;
  if (symbols->size() <= kShort) {
    ApplyShort(symbols, scratch);
  } else {
    ApplyLong(symbols, scratch);
  }
}

void BpeMerges::ApplyShort(std::vector<TokenId>* symbols, Scratch* scratch) const {
  uint32_t ranks[kShort];  // of the pair that begins here
  TokenId merged[kShort];
  TokenId* ids = symbols->data();
  size_t n = symbols->size();
  const auto look = [&](size_t i) {
    ++scratch->steps;
    const Slot* slot = Find(ids[i], ids[i + 1]);
    ranks[i] = slot == nullptr ? kNone : slot->rank;
    merged[i] = slot == nullptr ? 0 : slot->merged;
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + n - 1) - ranks);
    scratch->steps += n;
    if (ranks[best] == kNone) break;
    ids[best] = merged[best];
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    if (best + 2 < n) {
      std::copy(ranks + best + 2, ranks + n - 1, ranks + best + 1);
      std::copy(merged + best + 2, merged + n - 1, merged + best + 1);
    }
    --n;
    if (best > 0) look(best - 1);
    if (best + 1 < n) look(best);
  }
  symbols->resize(n);
}

void BpeMerges::ApplyLong(std::vector<TokenId>* symbols, Scratch* scratch) const {
  std::vector<Symbol>& list = scratch->list;
  std::vector<Candidate>& heap = scratch->heap;
  const auto n = static_cast<uint32_t>(symbols->size());
  list.resize(n);
  heap.clear();
  for (uint32_t i = 0; i < n; ++i) list[i] = {(*symbols)[i], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  const auto candidate = [&](uint32_t left) {
    ++scratch->steps;
    const TokenId a = list[left].id, b = list[list[left].next].id;
    const Slot* slot = Find(a, b);
    if (slot != nullptr) heap.push_back({slot->rank, left, slot->merged, a, b});
    return slot != nullptr;
  };
  for (uint32_t i = 0; i + 1 < n; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), Later);
  while (!heap.empty()) {
    ++scratch->steps;
    std::pop_heap(heap.begin(), heap.end(), Later);
    const Candidate c = heap.back();
    heap.pop_back();
    Symbol& left = list[c.left];
    // A symbol that was merged into its left neighbour has id -1, so it equals no candidate.
    if (left.id != c.left_id || left.next == kNone || list[left.next].id != c.right_id) continue;
    Symbol& right = list[left.next];
    left.id = c.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) list[left.next].previous = c.left;
    if (left.previous != kNone && candidate(left.previous)) std::push_heap(heap.begin(), heap.end(), Later);
    if (left.next != kNone && candidate(c.left)) std::push_heap(heap.begin(), heap.end(), Later);
  }
  symbols->clear();
  for (uint32_t i = 0; i != kNone; i = list[i].next) symbols->push_back(list[i].id);
}

}  // namespace baton

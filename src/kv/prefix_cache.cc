#include "kv/prefix_cache.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/hash.h"
#include "baton/check.h"
#include "baton/kv_layout.h"

namespace baton {

void ExtendPageHashes(const Hash128& root, std::span<const TokenId> tokens, std::vector<Hash128>* hashes) {
  const size_t pages = tokens.size() / kPageTokens;
  if (hashes->empty()) hashes->reserve(pages);
  for (size_t p = hashes->size(); p < pages; ++p) {
    hashes->push_back(ChainHash(p == 0 ? root : hashes->back(), tokens.subspan(p * kPageTokens, kPageTokens)));
  }
}

std::vector<Hash128> PageHashes(const Hash128& root, std::span<const TokenId> tokens) {
  std::vector<Hash128> hashes;
  ExtendPageHashes(root, tokens, &hashes);
  return hashes;
}

PrefixCache::PrefixCache(uint32_t block_tokens, const std::vector<uint32_t>& num_blocks)
    : block_tokens_(block_tokens), groups_(num_blocks.size()) {
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    groups_[g].nodes.resize(num_blocks[g]);
    groups_[g].tokens.resize(size_t{num_blocks[g]} * block_tokens);
    groups_[g].by_hash.reserve(num_blocks[g]);
    max_events_ += 4 * size_t{num_blocks[g]};
  }
}

bool PrefixCache::Holds(const Group& g, uint32_t block, uint32_t parent, const Hash128& root,
                        std::span<const TokenId> tokens) const {
  const Node& node = g.nodes[block];
  if (node.parent != parent || (parent == kNone && node.root != root)) return false;
  return std::equal(tokens.begin(), tokens.end(), g.tokens.begin() + size_t{block} * block_tokens_);
}

std::vector<std::vector<BlockId>> PrefixCache::Match(const Hash128& root, std::span<const Hash128> page_hashes,
                                                     std::span<const TokenId> tokens, uint32_t max_blocks) const {
  const size_t pages_per_block = block_tokens_ / kPageTokens;
  size_t limit = std::min({size_t{max_blocks}, tokens.size() / block_tokens_, page_hashes.size() / pages_per_block});
  std::vector<std::vector<BlockId>> found(groups_.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    const Group& g = groups_[group];
    uint32_t parent = kNone;
    std::vector<BlockId>& blocks = found[group];
    while (blocks.size() < limit) {
      const size_t i = blocks.size();
      const auto it = g.by_hash.find(page_hashes[(i + 1) * pages_per_block - 1]);
      if (it == g.by_hash.end()) break;
      if (!Holds(g, it->second, parent, root, tokens.subspan(i * block_tokens_, block_tokens_))) break;
      parent = it->second;
      blocks.push_back(BlockId{parent});
    }
    limit = blocks.size();
  }
  for (auto& blocks : found) blocks.resize(limit);
  return found;
}

std::optional<PrefixCursor> PrefixCache::Insert(uint32_t group, const PrefixCursor& parent, BlockId block,
                                                const Hash128& root, const Hash128& hash,
                                                std::span<const TokenId> tokens) {
  BATON_CHECK(tokens.size() == block_tokens_);
  Group& g = groups_[group];
  if (parent.block != PrefixCursor::kRoot && g.nodes[parent.block].serial != parent.serial) return std::nullopt;
  static_assert(PrefixCursor::kRoot == kNone);
  const auto [it, inserted] = g.by_hash.try_emplace(hash, Index(block));
  if (!inserted) {
    if (!Holds(g, it->second, parent.block, root, tokens)) return std::nullopt;
    return PrefixCursor{it->second, g.nodes[it->second].serial};
  }
  Node& node = g.nodes[Index(block)];
  BATON_CHECK(node.serial == 0, "a block is indexed under two hashes");
  node.serial = next_serial_++;
  node.hash = hash;
  node.root = root;
  node.parent = parent.block;
  node.first_child = node.prev_sibling = node.next_sibling = kNone;
  if (node.parent != kNone) {
    Node& up = g.nodes[node.parent];
    node.next_sibling = up.first_child;
    if (up.first_child != kNone) g.nodes[up.first_child].prev_sibling = Index(block);
    up.first_child = Index(block);
  }
  std::copy(tokens.begin(), tokens.end(), g.tokens.begin() + size_t{Index(block)} * block_tokens_);
  if (EverywhereElse(group, hash)) Log(hash, true);
  return PrefixCursor{Index(block), node.serial};
}

PrefixCursor PrefixCache::CursorOf(uint32_t group, BlockId block) const {
  const Node& node = groups_[group].nodes[Index(block)];
  BATON_CHECK(node.serial != 0, "no cursor: the block is not indexed");
  return {Index(block), node.serial};
}

bool PrefixCache::EverywhereElse(uint32_t group, const Hash128& hash) const {
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    if (g != group && !groups_[g].by_hash.contains(hash)) return false;
  }
  return true;
}

void PrefixCache::InsertBefore(Group& g, List& list, uint32_t before, uint32_t block) {
  Node& node = g.nodes[block];
  node.next = before;
  node.prev = before == kNone ? list.tail : g.nodes[before].prev;
  (node.prev == kNone ? list.head : g.nodes[node.prev].next) = block;
  (before == kNone ? list.tail : g.nodes[before].prev) = block;
}

void PrefixCache::Detach(Group& g, uint32_t block) {
  Node& node = g.nodes[block];
  List& list = node.where == Where::kParked ? g.parked : g.order;
  (node.prev == kNone ? list.head : g.nodes[node.prev].next) = node.next;
  (node.next == kNone ? list.tail : g.nodes[node.next].prev) = node.prev;
  node.prev = node.next = kNone;
  node.where = Where::kNowhere;
}

void PrefixCache::SetIdle(uint32_t group, BlockId block) {
  Group& g = groups_[group];
  Node& node = g.nodes[Index(block)];
  BATON_CHECK(node.serial != 0 && node.where == Where::kNowhere);
  node.where = Where::kOrder;
  node.idle_since = next_stamp_++;
  InsertBefore(g, g.order, kNone, Index(block));
  ++g.num_idle;
}

void PrefixCache::SetUsed(uint32_t group, BlockId block) {
  Group& g = groups_[group];
  BATON_CHECK(g.nodes[Index(block)].where != Where::kNowhere);
  Detach(g, Index(block));
  --g.num_idle;
}

// A parked block lost its last child: it is a leaf now, in its old place by age. What is older than it in
// the list was unparked before it, so the walk is short.
void PrefixCache::Unpark(Group& g, uint32_t block) {
  Detach(g, block);
  uint32_t before = g.order.head;
  while (before != kNone && g.nodes[before].idle_since < g.nodes[block].idle_since) before = g.nodes[before].next;
  g.nodes[block].where = Where::kOrder;
  InsertBefore(g, g.order, before, block);
}

void PrefixCache::Unlink(uint32_t group, uint32_t block, std::vector<BlockId>* removed) {
  Group& g = groups_[group];
  const size_t begin = removed->size();
  removed->push_back(BlockId{block});
  // The root of the subtree leaves its parent; inside, all links go.
  Node& top = g.nodes[block];
  if (top.parent != kNone) {
    Node& up = g.nodes[top.parent];
    (top.prev_sibling == kNone ? up.first_child : g.nodes[top.prev_sibling].next_sibling) = top.next_sibling;
    if (top.next_sibling != kNone) g.nodes[top.next_sibling].prev_sibling = top.prev_sibling;
    if (up.first_child == kNone && up.where == Where::kParked) Unpark(g, top.parent);
  }
  for (size_t i = begin; i < removed->size(); ++i) {
    const uint32_t b = Index((*removed)[i]);
    Node& node = g.nodes[b];
    for (uint32_t c = node.first_child; c != kNone; c = g.nodes[c].next_sibling) removed->push_back(BlockId{c});
    if (node.where != Where::kNowhere) {
      Detach(g, b);
      --g.num_idle;
    }
    if (EverywhereElse(group, node.hash)) Log(node.hash, false);
    g.by_hash.erase(node.hash);
    node.serial = 0;
    node.parent = node.first_child = kNone;
  }
}

bool PrefixCache::EvictOne(uint32_t group, std::vector<BlockId>* removed) {
  Group& g = groups_[group];
  while (g.order.head != kNone && g.nodes[g.order.head].first_child != kNone) {
    const uint32_t block = g.order.head;
    Detach(g, block);
    g.nodes[block].where = Where::kParked;
    // By age: an unparked block that got a child again may be older than others parked since.
    uint32_t after = g.parked.tail;
    while (after != kNone && g.nodes[after].idle_since > g.nodes[block].idle_since) after = g.nodes[after].prev;
    InsertBefore(g, g.parked, after == kNone ? g.parked.head : g.nodes[after].next, block);
  }
  const uint32_t victim = g.order.head != kNone ? g.order.head : g.parked.head;
  if (victim == kNone) return false;
  Unlink(group, victim, removed);
  return true;
}

void PrefixCache::Log(const Hash128& hash, bool stored) {
  if (events_.size() >= max_events_) {
    events_lost_ = true;
    events_.clear();
  }
  if (!events_lost_) events_.emplace_back(hash, stored);
}

PrefixEvents PrefixCache::TakeEvents() {
  // Only the first and the last event of a hash matter: they alternate.
  std::map<Hash128, std::pair<size_t, size_t>> span;
  for (size_t i = 0; i < events_.size(); ++i) span.try_emplace(events_[i].first, i, i).first->second.second = i;
  PrefixEvents out;
  for (size_t i = 0; i < events_.size(); ++i) {
    const auto& [first, last] = span.at(events_[i].first);
    if (i != last || events_[first].second != events_[last].second) continue;
    (events_[i].second ? out.stored : out.removed).push_back(events_[i].first);
  }
  events_.clear();
  out.lost = std::exchange(events_lost_, false);
  return out;
}

std::vector<Hash128> PrefixCache::TakeSnapshot() {
  events_.clear();
  events_lost_ = false;
  std::vector<Hash128> all;
  for (const Node& node : groups_[0].nodes) {
    if (node.serial != 0 && EverywhereElse(0, node.hash)) all.push_back(node.hash);
  }
  std::sort(all.begin(), all.end());
  return all;
}

void PrefixCache::Audit() const {
  for (const Group& g : groups_) {
    size_t indexed = 0;
    for (uint32_t b = 0; b < g.nodes.size(); ++b) {
      const Node& node = g.nodes[b];
      if (node.serial == 0) {
        BATON_CHECK(node.where == Where::kNowhere && node.first_child == kNone);
        continue;
      }
      ++indexed;
      const auto it = g.by_hash.find(node.hash);
      BATON_CHECK(it != g.by_hash.end() && it->second == b, "the index names another block");
      BATON_CHECK(node.parent == kNone || g.nodes[node.parent].serial != 0, "a block without its parent");
      for (uint32_t c = node.first_child; c != kNone; c = g.nodes[c].next_sibling) {
        BATON_CHECK(g.nodes[c].parent == b && g.nodes[c].serial != 0);
      }
      BATON_CHECK(node.where != Where::kParked || node.first_child != kNone, "a leaf is parked");
    }
    BATON_CHECK(indexed == g.by_hash.size());
    size_t listed = 0;
    for (const List* list : {&g.order, &g.parked}) {
      const Where where = list == &g.order ? Where::kOrder : Where::kParked;
      uint64_t age = 0;
      for (uint32_t b = list->head; b != kNone; b = g.nodes[b].next, ++listed) {
        BATON_CHECK(g.nodes[b].where == where && g.nodes[b].idle_since > age, "eviction order");
        age = g.nodes[b].idle_since;
      }
    }
    BATON_CHECK(listed == g.num_idle);
  }
}

}  // namespace baton

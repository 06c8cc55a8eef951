// The hash index over blocks whose bytes are complete, and the order in which unused ones are evicted. Part
// of BlockPool, which owns references and states; this class knows neither.
//
// Always true, per group: the index is a forest. An indexed block's parent is indexed too (or it is a first
// block), and its token ids are stored with it. So a match that walks from the root and compares token ids
// and parent links at every step is exact: two prefixes whose hashes collide never serve each other's
// blocks. Of two blocks with equal content the first stays indexed.
// Eviction takes the least recently used idle block that has no indexed child; only if every idle block has
// one (a child that is in use under another copy of its parent), the oldest of those goes, and its
// descendants leave the index with it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "baton/ids.h"

namespace baton {

// Chained hashes of the full 16-token pages of `tokens`, from `root` (see ChainRoot in base/hash.h).
std::vector<Hash128> PageHashes(const Hash128& root, std::span<const TokenId> tokens);
// The same, appended: `hashes` holds those of the first hashes->size() pages of `tokens` already.
void ExtendPageHashes(const Hash128& root, std::span<const TokenId> tokens, std::vector<Hash128>* hashes);

// A node of one group's index, or the root of a chain. A cursor goes stale when its block leaves the index;
// a stale cursor is refused, never followed.
struct PrefixCursor {
  static constexpr uint32_t kRoot = 0xffffffff;
  uint32_t block = kRoot;
  uint64_t serial = 0;  // the indexing of that block which is meant; 0 with kRoot
  friend bool operator==(const PrefixCursor&, const PrefixCursor&) = default;
};

// What became findable (in all groups) and what no longer is, in the order it happened, since the last take.
// A hash that was stored and removed in between appears in neither list.
struct PrefixEvents {
  std::vector<Hash128> stored;
  std::vector<Hash128> removed;
  bool lost = false;  // nobody took events for too long: both lists are empty, only a snapshot tells
};

class PrefixCache {
 public:
  PrefixCache(uint32_t block_tokens, const std::vector<uint32_t>& num_blocks);

  // The longest run of indexed blocks that hold exactly tokens[0 ..), at most max_blocks of them, found in
  // every group. page_hashes are those of `tokens`. result[group] has one length in all groups.
  std::vector<std::vector<BlockId>> Match(const Hash128& root, std::span<const Hash128> page_hashes,
                                          std::span<const TokenId> tokens, uint32_t max_blocks) const;

  // Indexes `block` under `hash`, the chain hash at its last page, as a child of `parent`. `tokens` are its
  // block_tokens ids, `root` the chain's root hash (stored with first blocks). Returns the cursor to go on
  // from: the block's own, or that of the equal block which was there first. nullopt: the parent has left
  // the index, or another content holds this hash; the caller stops indexing this chain.
  std::optional<PrefixCursor> Insert(uint32_t group, const PrefixCursor& parent, BlockId block, const Hash128& root,
                                     const Hash128& hash, std::span<const TokenId> tokens);
  bool Contains(uint32_t group, BlockId block) const { return groups_[group].nodes[Index(block)].serial != 0; }
  bool IsIdle(uint32_t group, BlockId block) const {
    return groups_[group].nodes[Index(block)].where != Where::kNowhere;
  }
  PrefixCursor CursorOf(uint32_t group, BlockId block) const;

  // An indexed block went out of use (it may be evicted from now on), or came back into use.
  void SetIdle(uint32_t group, BlockId block);
  void SetUsed(uint32_t group, BlockId block);
  // Takes one idle block out of the index, with its descendants; appends all of them to `removed`, the idle
  // ones and the others. False: no block is idle.
  bool EvictOne(uint32_t group, std::vector<BlockId>* removed);

  PrefixEvents TakeEvents();
  // Every findable hash, ascending. Also drops the pending events: the snapshot covers them.
  std::vector<Hash128> TakeSnapshot();

  // Checks every link and list; aborts on a contradiction.
  void Audit() const;
  uint32_t num_idle(uint32_t group) const { return groups_[group].num_idle; }

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  enum class Where : uint8_t { kNowhere, kOrder, kParked };
  struct Node {
    uint64_t serial = 0;  // 0: not indexed
    Hash128 hash;
    Hash128 root;
    uint32_t parent = kNone;
    uint32_t first_child = kNone;
    uint32_t next_sibling = kNone;
    uint32_t prev_sibling = kNone;
    // Eviction order. `order` is least recently used first; a block that was found to have children when
    // its turn came is parked until its last child leaves.
    Where where = Where::kNowhere;
    uint64_t idle_since = 0;
    uint32_t prev = kNone;
    uint32_t next = kNone;
  };
  struct List {
    uint32_t head = kNone;
    uint32_t tail = kNone;
  };
  struct HashOf {
    size_t operator()(const Hash128& h) const { return static_cast<size_t>(h.low ^ h.high * 0x9e3779b97f4a7c15ull); }
  };
  struct Group {
    std::vector<Node> nodes;                                // [block]
    std::vector<TokenId> tokens;                            // [block][block_tokens]
    std::unordered_map<Hash128, uint32_t, HashOf> by_hash;  // never iterated
    List order;
    List parked;
    uint32_t num_idle = 0;
  };

  bool Holds(const Group& g, uint32_t block, uint32_t parent, const Hash128& root,
             std::span<const TokenId> tokens) const;
  bool EverywhereElse(uint32_t group, const Hash128& hash) const;
  void Unlink(uint32_t group, uint32_t block, std::vector<BlockId>* removed);
  void Detach(Group& g, uint32_t block);                                     // from its eviction list
  void InsertBefore(Group& g, List& list, uint32_t before, uint32_t block);  // kNone: at the tail
  void Unpark(Group& g, uint32_t block);

  uint32_t block_tokens_;
  std::vector<Group> groups_;
  uint64_t next_serial_ = 1;
  uint64_t next_stamp_ = 1;
  void Log(const Hash128& hash, bool stored);
  size_t max_events_ = 0;
  std::vector<std::pair<Hash128, bool>> events_;  // true: stored
  bool events_lost_ = false;
};

}  // namespace baton

// Which worker holds which page of which prefix: hash -> holders, fed by the workers' own cache events.
//
// Always true: a lookup never iterates the table; holders of a page are ascending slots without duplicates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "baton/ids.h"

namespace baton {

class HolderIndex {
 public:
  using Slot = uint32_t;  // a worker as the Router stores it, reused after DropHolder

  void Add(const Hash128& page, Slot slot);
  void Remove(const Hash128& page, Slot slot);
  void DropHolder(Slot slot);  // costs as many steps as it holds pages
  uint64_t pages_of(Slot slot) const { return slot < logs_.size() ? logs_[slot].live : 0; }
  uint64_t num_pages() const { return num_pages_; }

  // Leading pages of the chain that each slot holds, into (*depth)[slot]; slots that hold none keep 0. `touched`
  // gets the slots with a depth, behind those of other chains. Before: depth 0 for every slot that may hold a page of
  // this chain; after: room for every slot.
  //
  // Workers evict leaf first, so that the holders along a chain are nested sets and their number falls: it is
  // enough to look at the pages where the number changes. They are found by a walk in strides, then by bisection,
  // and what these will read is fetched ahead: in a large index every page is a cache miss, and waiting for them
  // one by one is all that a match costs. Where events in flight break the nesting, a depth is an estimate.
  void Match(std::span<const Hash128> chain, std::vector<uint32_t>* depth, std::vector<Slot>* touched) const;

 private:
  // Few holders lie inside, more in a vector of their own.
  struct Holders {
    std::array<Slot, 3> few{};
    uint32_t count = 0;
    std::unique_ptr<std::vector<Slot>> many;
    std::span<const Slot> all() const {
      return many ? std::span<const Slot>(*many) : std::span<const Slot>(few.data(), count);
    }
    bool Insert(Slot slot);  // false: it was there
    bool Erase(Slot slot);   // false: it was not
  };
  // Open addressing with linear probing, so that a probe of a large index is one cache miss. Free: no holders.
  struct Entry {
    Hash128 page;
    Holders holders;
  };
  // What a slot ever stored, to find its pages again without a walk over the table; compacted when it grows
  // beyond twice what the slot holds.
  struct Log {
    std::vector<Hash128> stored;
    uint64_t live = 0;
  };
  size_t Home(const Hash128& page) const { return page.low & (table_.size() - 1); }
  size_t Probe(const Hash128& page) const;  // its entry, or the free one where it belongs
  void FetchAhead(const Hash128& page) const {
    const auto* entry = reinterpret_cast<const char*>(&table_[Home(page)]);
    __builtin_prefetch(entry);
    __builtin_prefetch(entry + 64);  // a probe runs on into the next line more often than not
  }
  const Holders* Find(const Hash128& page) const {
    if (table_.empty()) return nullptr;
    const Holders& h = table_[Probe(page)].holders;
    return h.count == 0 ? nullptr : &h;
  }
  uint32_t Count(const Hash128& page) const {
    const Holders* h = Find(page);
    return h == nullptr ? 0 : h->count;
  }
  void Grow();
  void EraseEntry(size_t at);
  void Compact(Slot slot);

  std::vector<Entry> table_;  // a power of two, at most 5/8 full
  uint64_t num_pages_ = 0;
  std::vector<Log> logs_;
};

}  // namespace baton

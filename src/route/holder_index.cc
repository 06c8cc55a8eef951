#include "route/holder_index.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

constexpr size_t kStride = 16;  // pages
constexpr size_t kAhead = 16;   // strides that are fetched ahead

}  // namespace

bool HolderIndex::Holders::Insert(Slot slot) {
  if (many) {
    const auto at = std::lower_bound(many->begin(), many->end(), slot);
    if (at != many->end() && *at == slot) return false;
    many->insert(at, slot);
    ++count;
    return true;
  }
  const auto end = few.begin() + count;
  const auto at = std::lower_bound(few.begin(), end, slot);
  if (at != end && *at == slot) return false;
  if (count < few.size()) {
    std::copy_backward(at, end, end + 1);
    *at = slot;
  } else {
    many = std::make_unique<std::vector<Slot>>(few.begin(), few.end());
    many->insert(std::lower_bound(many->begin(), many->end(), slot), slot);
  }
  ++count;
  return true;
}

bool HolderIndex::Holders::Erase(Slot slot) {
  if (many) {
    const auto at = std::lower_bound(many->begin(), many->end(), slot);
    if (at == many->end() || *at != slot) return false;
    many->erase(at);
    --count;
    if (count <= few.size()) {
      std::copy(many->begin(), many->end(), few.begin());
      many.reset();
    }
    return true;
  }
  const auto end = few.begin() + count;
  const auto at = std::lower_bound(few.begin(), end, slot);
  if (at == end || *at != slot) return false;
  std::copy(at + 1, end, at);
  --count;
  return true;
}

size_t HolderIndex::Probe(const Hash128& page) const {
  size_t at = Home(page);
  while (table_[at].holders.count != 0 && table_[at].page != page) at = (at + 1) & (table_.size() - 1);
  return at;
}

void HolderIndex::Grow() {
  std::vector<Entry> old = std::exchange(table_, std::vector<Entry>(std::max<size_t>(1024, table_.size() * 2)));
  for (Entry& e : old) {
    if (e.holders.count != 0) table_[Probe(e.page)] = std::move(e);
  }
}

// Closes the gap: whatever a probe would now miss moves back.
void HolderIndex::EraseEntry(size_t at) {
  const size_t mask = table_.size() - 1;
  --num_pages_;
  for (size_t next = (at + 1) & mask; table_[next].holders.count != 0; next = (next + 1) & mask) {
    const size_t home = Home(table_[next].page);
    if (((next - home) & mask) < ((next - at) & mask)) continue;
    table_[at] = std::move(table_[next]);
    at = next;
  }
  table_[at] = {};
}

void HolderIndex::Add(const Hash128& page, Slot slot) {
  if (table_.size() * 5 / 8 <= num_pages_) Grow();
  Entry& e = table_[Probe(page)];
  if (e.holders.count == 0) {
    e.page = page;
    ++num_pages_;
  }
  if (!e.holders.Insert(slot)) return;
  if (slot >= logs_.size()) logs_.resize(slot + 1);
  Log& log = logs_[slot];
  log.stored.push_back(page);
  ++log.live;
  if (log.stored.size() > 2 * log.live + 1024) Compact(slot);
}

void HolderIndex::Remove(const Hash128& page, Slot slot) {
  if (table_.empty()) return;
  const size_t at = Probe(page);
  if (!table_[at].holders.Erase(slot)) return;
  --logs_[slot].live;
  if (table_[at].holders.count == 0) EraseEntry(at);
}

void HolderIndex::Compact(Slot slot) {
  std::vector<Hash128>& stored = logs_[slot].stored;
  std::sort(stored.begin(), stored.end());
  stored.erase(std::unique(stored.begin(), stored.end()), stored.end());
  std::erase_if(stored, [&](const Hash128& page) {
    const Holders* h = Find(page);
    if (h == nullptr) return true;
    const auto all = h->all();
    return !std::binary_search(all.begin(), all.end(), slot);
  });
}

void HolderIndex::DropHolder(Slot slot) {
  if (slot >= logs_.size()) return;
  const std::vector<Hash128> stored = std::move(logs_[slot].stored);
  for (const Hash128& page : stored) Remove(page, slot);
  logs_[slot] = {};
}

void HolderIndex::Match(std::span<const Hash128> chain, std::vector<uint32_t>* depth,
                        std::vector<Slot>* touched) const {
  if (depth->size() < logs_.size()) depth->resize(logs_.size(), 0);
  if (table_.empty()) return;
  size_t fetched = 0;  // strides, from the chain's start
  const auto fetch_strides = [&](size_t from) {
    for (const size_t to = std::min(from + kAhead * kStride, chain.size()); fetched < to; fetched += kStride) {
      FetchAhead(chain[fetched]);
    }
  };

  size_t begin = 0;  // first page of a run with one number of holders
  while (begin < chain.size()) {
    fetch_strides(begin);
    const uint32_t count = Count(chain[begin]);
    if (count == 0) return;
    // [begin, last] has `count`, `beyond` has not (or is the end).
    size_t last = begin, beyond = std::min((begin / kStride + 1) * kStride, chain.size());
    while (beyond < chain.size() && Count(chain[beyond]) == count) {
      last = beyond;
      beyond = std::min(beyond + kStride, chain.size());
      fetch_strides(beyond);
    }
    for (size_t page = last + 1; page < beyond; ++page) FetchAhead(chain[page]);
    while (beyond - last > 1) {
      const size_t middle = last + (beyond - last) / 2;
      (Count(chain[middle]) == count ? last : beyond) = middle;
    }
    const std::span<const Slot> all = Find(chain[last])->all();
    if (begin == 0) touched->insert(touched->end(), all.begin(), all.end());
    for (const Slot slot : all) {
      // Else it lacks an earlier page.
      if ((*depth)[slot] == begin) (*depth)[slot] = static_cast<uint32_t>(last + 1);
    }
    begin = beyond;
  }
}

}  // namespace baton

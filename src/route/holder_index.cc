#include "route/holder_index.h"

#include <algorithm>

namespace baton {

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

void HolderIndex::Add(const Hash128& page, Slot slot) {
  if (!table_[page].Insert(slot)) return;
  if (slot >= logs_.size()) logs_.resize(slot + 1);
  Log& log = logs_[slot];
  log.stored.push_back(page);
  ++log.live;
  if (log.stored.size() > 2 * log.live + 1024) Compact(slot);
}

void HolderIndex::Remove(const Hash128& page, Slot slot) {
  const auto it = table_.find(page);
  if (it == table_.end() || !it->second.Erase(slot)) return;
  --logs_[slot].live;
  if (it->second.count == 0) table_.erase(it);
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
  for (const Slot slot : *touched) {
    if (slot < depth->size()) (*depth)[slot] = 0;
  }
  touched->clear();
  if (depth->size() < logs_.size()) depth->resize(logs_.size(), 0);

  size_t begin = 0;  // first page of a run with one number of holders
  while (begin < chain.size()) {
    const uint32_t count = Count(chain[begin]);
    if (count == 0) return;
    // [begin, last] has `count`, `beyond` has not: gallop, then bisect.
    size_t last = begin, beyond = begin + 1, stride = 1;
    while (beyond < chain.size() && Count(chain[beyond]) == count) {
      last = beyond;
      stride *= 2;
      beyond = std::min(last + stride, chain.size());
    }
    while (beyond - last > 1) {
      const size_t middle = last + (beyond - last) / 2;
      (Count(chain[middle]) == count ? last : beyond) = middle;
    }
    for (const Slot slot : Find(chain[last])->all()) {
      if ((*depth)[slot] != begin) continue;  // it lacks an earlier page
      if (begin == 0) touched->push_back(slot);
      (*depth)[slot] = static_cast<uint32_t>(last + 1);
    }
    begin = beyond;
  }
}

}  // namespace baton

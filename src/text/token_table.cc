#include "text/token_table.h"

#include <bit>
#include <cstring>

#include "base/hash.h"
#include "baton/check.h"

namespace baton {

void TokenTable::Reserve(size_t count) {
  slots_.assign(std::bit_ceil(count * 2 + 2), Slot{});
  mask_ = slots_.size() - 1;
}

void TokenTable::Insert(std::string_view bytes, TokenId id) {
  size_t at = Hash64(bytes) & mask_;
  for (; slots_[at].id >= 0; at = (at + 1) & mask_) {
    if (std::string_view(slots_[at].data, slots_[at].size) == bytes) return;
  }
  slots_[at] = {bytes.data(), static_cast<uint32_t>(bytes.size()), id};
}

TokenId TokenTable::Find(std::string_view bytes) const {
  if (slots_.empty()) return -1;
  for (size_t at = Hash64(bytes) & mask_; slots_[at].id >= 0; at = (at + 1) & mask_) {
    const Slot& s = slots_[at];
    if (s.size == bytes.size() && std::memcmp(s.data, bytes.data(), s.size) == 0) return s.id;
  }
  return -1;
}

}  // namespace baton

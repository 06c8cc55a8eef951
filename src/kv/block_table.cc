#include "kv/block_table.h"

#include "baton/check.h"
#include "kv/block_pool.h"

namespace baton {

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Truncate(0);
  pool_ = std::exchange(other.pool_, nullptr);
  group_ = other.group_;
  blocks_ = std::move(other.blocks_);
  other.blocks_.clear();
  return *this;
}

BlockTable BlockTable::Share(uint32_t count) const {
  BATON_CHECK(count <= size());
  if (count == 0) return {};
  for (uint32_t i = 0; i < count; ++i) pool_->AddReference(group_, blocks_[i]);
  return BlockTable(pool_, group_, {blocks_.begin(), blocks_.begin() + count});
}

void BlockTable::Truncate(uint32_t count) {
  while (blocks_.size() > count) {
    pool_->DropReference(group_, blocks_.back());
    blocks_.pop_back();
  }
}

BlockTable BlockTable::SplitOff(uint32_t count) {
  BATON_CHECK(count <= size());
  if (count == size()) return {};
  BlockTable tail(pool_, group_, {blocks_.begin() + count, blocks_.end()});
  blocks_.resize(count);
  return tail;
}

void BlockTable::Append(BlockTable&& tail) {
  if (tail.blocks_.empty()) return;
  if (blocks_.empty()) {
    *this = std::move(tail);
    return;
  }
  BATON_CHECK(pool_ == tail.pool_ && group_ == tail.group_, "blocks of another pool or group");
  blocks_.insert(blocks_.end(), tail.blocks_.begin(), tail.blocks_.end());
  tail.blocks_.clear();
}

uint32_t BlockTable::CountSole() const {
  uint32_t count = 0;
  for (const BlockId block : blocks_) count += pool_->NumReferences(group_, block) == 1 ? 1 : 0;
  return count;
}

}  // namespace baton

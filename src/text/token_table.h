// Bytes -> token id. An open-addressed table over views into the vocabulary's own strings: built once, read by
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/ids.h"

namespace baton {

class TokenTable {
 public:
  // Room for `count` tokens.
  void Reserve(size_t count);
  // `bytes` must outlive the table. An entry that is there already stays. At most as many as reserved.
  void Insert(std::string_view bytes, TokenId id);
  // -1 if absent.
  TokenId Find(std::string_view bytes) const;

 private:
  struct Slot {
    const char* data = nullptr;
    uint32_t size = 0;
    TokenId id = -1;  // -1: free
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t mask_ = 0;
};

}  // namespace baton

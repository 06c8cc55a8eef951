// Finds the strings that end an answer in text that comes in pieces. One per choice of a request; the front's
// thread.
//
// Always true: the outcome does not depend on how the text was cut. Of all matches the one that ends first wins,
// of those the longest. Nothing that may still become a stop string is shown before it cannot, or before Finish.
// What is held back is shorter than the longest stop string. Feeding n bytes costs O(n x strings).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"

namespace baton {

inline constexpr size_t kMaxStopStrings = 32;
inline constexpr size_t kMaxStopStringBytes = 1024;

// For a client's list: count, length, emptiness, UTF-8. INVALID_ARGUMENT with the place, value and limit.
Status ValidateStopStrings(const std::vector<std::string>& stops);

class StopStrings {
 public:
  StopStrings() = default;  // matches nothing
  // `stops` is valid. `include_stop`: the matched string is shown too.
  StopStrings(std::vector<std::string> stops, bool include_stop);

  // Appends to `out` what can be shown. True: a stop string ended inside `text`; the rest of it is dropped and
  // nothing may be pushed any more.
  bool Push(std::string_view text, std::string* out);
  // No more text comes: appends what was held back.
  void Finish(std::string* out);

  int matched() const { return matched_; }  // index of the stop string, or -1
  const std::string& held_back() const { return held_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> failure;  // longest proper border of each prefix
    uint32_t state = 0;             // how many of its bytes the text's end spells
  };
  std::vector<Pattern> patterns_;
  bool include_stop_ = false;
  int matched_ = -1;
  std::string held_;
};

}  // namespace baton

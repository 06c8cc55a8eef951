// The rules of the hand-off protocol by name (src/handoff/README.md states them). Production holds all of
// them, always. A test may switch one off to prove that the simulator finds the fault it guards against.
#pragma once

#include <cstdint>

namespace baton {

enum class Rule : uint8_t {
  kS1,
  kS2,
  kS3,
  kS4,
  kS5,
  kS6,
  kS7,
  kS8,
  kS9,
  kS10,
  kS11,
  kL1,
  kL2,
  kL3,
  kL4,
  kL5,
  kL6,
  kL7,
  kL8,
  kL9,
  kL10,
  kL11,
  kL12,
  kL8Apart,  // the last clause of L8: once-hit requests run apart from each other
  kL9Stuck,  // of L9: a writer that stays stuck is reported, so that its supervisor kills it
};

class Rules {
 public:
  static Rules AllBut(Rule rule) {
    Rules r;
    r.weakened_ = uint32_t{1} << static_cast<uint32_t>(rule);
    return r;
  }
  bool Holds(Rule rule) const { return (weakened_ & (uint32_t{1} << static_cast<uint32_t>(rule))) == 0; }

 private:
  uint32_t weakened_ = 0;
};

}  // namespace baton

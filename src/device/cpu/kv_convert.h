// KV in one layout made into another: other block sizes (exact), other element types (rounded to the nearest; int8 by
// a scale per row).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "baton/kv_layout.h"

namespace baton {

// One group. Positions [first_token, num_tokens), where first_token is a whole number of `to`'s blocks; staging holds
// `from`'s blocks from the one of first_token on (StagingMap). Layouts for which CanConvert is true.
//
// A page of 16 tokens is the unit: it lies in one block on both sides. Where the types are equal, or the target's is
// the wider (bf16 or fp16 -> fp32), values are kept exactly. Narrowing rounds to the nearest, ties to even: a relative
// error of at most 2^-8 to bf16, 2^-11 to fp16 (2^-25 absolute below 2^-14); what fp16 cannot hold becomes +-65504, so
// that one large value does not turn into an infinity. To int8 a row (one head's K or V of one token) is quantised as
// the kernels do (KvScale in kernels/formats.h): an error of at most (1 + 2^-14) / 254 of the row's largest magnitude.
// From int8 an integer times its scale is exact in fp32 and then rounded as above. Slots from num_tokens on become
// zero.
struct KvConvertParams {
  const KvLayout* from = nullptr;
  const KvLayout* to = nullptr;
  uint32_t group = 0;
  uint32_t first_token = 0;
  uint32_t num_tokens = 0;
  std::span<const std::byte* const> staging;  // blocks, of to's size
  std::span<std::byte* const> target;         // blocks; every byte of an item's heads is written
};
// Items [begin, end) of target.size() * num_kv_heads: all layers of one head of one target block. Any split of the
// range gives the same bytes.
void ConvertKv(const KvConvertParams& p, size_t begin, size_t end);

}  // namespace baton

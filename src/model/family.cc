#include "model/family.h"

#include <array>
#include <cmath>

#include "baton/kernel_table.h"

namespace baton {
namespace {

constexpr std::array<const Family*, 1> kFamilies = {&kLlamaFamily};

Status InRange(std::string_view what, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgumentError("the model's " + std::string(what) + " is " + std::to_string(value) + ", not within " +
                              std::to_string(low) + " to " + std::to_string(high));
}

}  // namespace

std::span<const Family* const> Families() { return kFamilies; }

StatusOr<const Family*> FindFamily(std::string_view name) {
  std::string known;
  for (const Family* family : kFamilies) {
    if (family->name == name) return family;
    known += (known.empty() ? "" : ", ") + std::string(family->name);
  }
  return UnimplementedError("model family '" + std::string(name) + "' is not supported; these are: " + known);
}

Status ValidateDecoder(const DecoderDescription& d) {
  BATON_RETURN_IF_ERROR(InRange("layer count", d.num_layers, 1, 1024));
  BATON_RETURN_IF_ERROR(InRange("hidden size", d.hidden, 1, 1 << 17));
  BATON_RETURN_IF_ERROR(InRange("head count", d.num_heads, 1, 1024));
  BATON_RETURN_IF_ERROR(InRange("KV head count", d.num_kv_heads, 1, d.num_heads));
  BATON_RETURN_IF_ERROR(InRange("head size", d.head_dim, 2, kMaxHeadDim));
  BATON_RETURN_IF_ERROR(InRange("MLP size", d.mlp_hidden, 1, 1 << 20));
  BATON_RETURN_IF_ERROR(InRange("vocabulary size", d.vocab_size, 1, 1 << 22));
  BATON_RETURN_IF_ERROR(InRange("context length", d.context_tokens, 1, 1 << 24));
  if (d.num_heads % d.num_kv_heads != 0) {
    return InvalidArgumentError("the model's " + std::to_string(d.num_heads) + " heads do not divide over " +
                                std::to_string(d.num_kv_heads) + " KV heads");
  }
  BATON_RETURN_IF_ERROR(InRange("query heads per KV head", d.num_heads / d.num_kv_heads, 1, 64));
  if (d.head_dim % 2 != 0) {
    return InvalidArgumentError("the model's head size is " + std::to_string(d.head_dim) + "; it must be even");
  }
  if (!std::isfinite(d.norm_eps) || d.norm_eps < 0 || d.norm_eps > 1) {
    return InvalidArgumentError("the model's norm epsilon is " + std::to_string(d.norm_eps));
  }
  if (!std::isfinite(d.rope_theta) || d.rope_theta < 1) {
    return InvalidArgumentError("the model's rope base is " + std::to_string(d.rope_theta));
  }
  return OkStatus();
}

}  // namespace baton

#include "model/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>

#include "model/loaded_model.h"

namespace baton {
namespace {

constexpr std::array<uint32_t, 4> kBlockSizes = {16, 32, 64, 128};
constexpr uint64_t kFewestBlocks = kFewestKvBlocks;
constexpr double kUsableShare = 0.8;  // of what is available, when no budget is given

std::optional<uint64_t> FirstNumber(const char* path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

Status DoesNotFit(const MemoryPlan& plan, const std::string& limit_words) {
  return ResourceExhaustedError("the model does not fit: " + plan.Words() + ", the limit is " + limit_words +
                                "; raise the memory budget, ask for fewer KV tokens, or use a smaller model");
}

}  // namespace

uint64_t AvailableMemoryBytes() {
  uint64_t available = 0;
  std::ifstream in("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (in >> key >> kib && std::getline(in, unit)) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const auto limit = FirstNumber("/sys/fs/cgroup/memory.max");
  const auto used = FirstNumber("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - std::min(*limit, *used));
  return available;
}

std::string ByteWords(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string MemoryPlan::Words() const {
  const uint64_t blocks = pool.num_blocks.empty() ? 0 : pool.num_blocks.front();
  return "weights " + ByteWords(weights_bytes) + " + KV " + ByteWords(pool.total_bytes) + " (" +
         std::to_string(kv_tokens) + " tokens, " + std::to_string(blocks) + " blocks of " +
         std::to_string(layout.block_tokens) + ") + workspace " + ByteWords(workspace_bytes) + " = " +
         ByteWords(total_bytes());
}

StatusOr<MemoryPlan> PlanMemory(const ModelFile& file, const MemoryRequest& request) {
  if (std::find(kBlockSizes.begin(), kBlockSizes.end(), request.block_tokens) == kBlockSizes.end()) {
    return InvalidArgumentError("a block of " + std::to_string(request.block_tokens) +
                                " tokens; 16, 32, 64 or 128 are possible");
  }
  MemoryPlan plan;
  plan.layout = MakeKvLayout(file.decoder(), request.block_tokens, request.kv_dtype);
  plan.weights_bytes = PackedBytes(file);
  plan.workspace_bytes = request.workspace_bytes;
  const uint64_t available = request.available_bytes != 0 ? request.available_bytes : AvailableMemoryBytes();
  if (request.budget_bytes != 0) {
    plan.budget_bytes = request.budget_bytes;
  } else if (available != 0) {
    plan.budget_bytes = static_cast<uint64_t>(static_cast<double>(available) * kUsableShare);
  } else {
    return FailedPreconditionError("cannot tell how much memory this machine has; give a memory budget");
  }
  // Free memory is a limit of its own: a budget above it would end in the kernel's out-of-memory killer.
  const uint64_t limit = available != 0 ? std::min(plan.budget_bytes, available) : plan.budget_bytes;
  std::string limit_words = ByteWords(limit);
  if (limit < plan.budget_bytes) limit_words += " (free now; the budget is " + ByteWords(plan.budget_bytes) + ")";

  const uint64_t fixed = plan.weights_bytes + plan.workspace_bytes;
  const uint64_t left = limit - std::min(limit, fixed);
  const uint64_t block = plan.layout.BlockBytes(0);
  constexpr uint64_t kPadding = 4096;  // PlanPool keeps so much per group
  uint64_t kv_budget = std::min(left, request.max_auto_kv_bytes);
  if (request.kv_tokens != 0) {
    if (request.kv_tokens > std::numeric_limits<uint32_t>::max()) {
      return InvalidArgumentError(std::to_string(request.kv_tokens) + " KV tokens; fewer than 2^32 are possible");
    }
    const uint64_t blocks = std::max<uint64_t>(plan.layout.BlocksFor(request.kv_tokens), kFewestBlocks);
    kv_budget = blocks * block + kPadding;
  }
  kv_budget = std::max(kv_budget, kFewestBlocks * block + kPadding);
  plan.pool = PlanPool(plan.layout, kv_budget);
  plan.kv_tokens = uint64_t{plan.pool.num_blocks.front()} * plan.layout.block_tokens;
  if (plan.total_bytes() > limit) return DoesNotFit(plan, limit_words);
  return plan;
}

}  // namespace baton

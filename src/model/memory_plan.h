// What a worker will hold in memory, worked out from the model's header before anything is loaded, said in
// words, and refused when it cannot fit.
#pragma once

#include <cstdint>
#include <string>

#include "baton/kv_layout.h"
#include "baton/status.h"
#include "model/model_file.h"

namespace baton {

inline constexpr uint64_t kFewestKvBlocks = 4;  // of a pool; a smaller request is raised to it

struct MemoryRequest {
  uint64_t budget_bytes = 0;     // 0: 80 % of what the machine has available now
  uint64_t available_bytes = 0;  // what the machine has available; 0: read MemAvailable
  uint64_t kv_tokens = 0;        // 0: what the budget leaves, at most max_auto_kv_bytes
  uint64_t max_auto_kv_bytes = uint64_t{4} << 30;
  uint32_t block_tokens = 32;  // 16, 32, 64 or 128
  DType kv_dtype = DType::kBF16;
  uint64_t workspace_bytes = 0;  // CpuModelRunner::WorkspaceBytes
};

struct MemoryPlan {
  uint64_t weights_bytes = 0;  // packed
  uint64_t workspace_bytes = 0;
  KvLayout layout;
  KvPoolPlan pool;            // pool.total_bytes of KV
  uint64_t kv_tokens = 0;     // blocks x block_tokens
  uint64_t budget_bytes = 0;  // the limit that was applied
  uint64_t total_bytes() const { return weights_bytes + workspace_bytes + pool.total_bytes; }
  // "weights 79.1 MiB + KV 360.0 MiB (16384 tokens, 512 blocks of 32) + workspace 31.0 MiB = ... of ..."
  std::string Words() const;
};

// RESOURCE_EXHAUSTED, with the plan in words and what to change, when it does not fit: at least one block
// more than the model's shortest use (two blocks) must fit.
StatusOr<MemoryPlan> PlanMemory(const ModelFile& file, const MemoryRequest& request);

std::string ByteWords(uint64_t bytes);  // "79.1 MiB"
// MemAvailable, or what the cgroup's limit leaves, whichever is less; 0: unknown.
uint64_t AvailableMemoryBytes();

}  // namespace baton

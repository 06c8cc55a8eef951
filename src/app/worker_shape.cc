#include "app/worker_shape.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <string>

#include "app/model_source.h"
#include "device/cpu/cpu_features.h"

namespace baton {
namespace {

// Private memory costs nothing until it is touched; shared memory is there, zeroed, from the start, which
// takes time. So a worker that shares its pool begins small: this much, or one full context.
constexpr uint64_t kMostAutoKvBytes = uint64_t{1} << 30;
constexpr uint64_t kLeastSharedAutoKvBytes = uint64_t{256} << 20;
constexpr double kShareOfSharedMemory = 0.8;

DType KvDType(const Settings& settings) {
  const std::string& name = settings.Text("kv-dtype");
  return name == "fp32" ? DType::kF32 : name == "fp16" ? DType::kF16 : name == "int8" ? DType::kI8 : DType::kBF16;
}

}  // namespace

uint64_t SharedMemoryRoom() {
  struct statvfs s {};
  if (statvfs("/dev/shm", &s) != 0) return 0;
  return uint64_t{s.f_bavail} * s.f_frsize;
}

Status CheckDescriptors(uint64_t soft_limit, uint64_t hard_limit) {
  if (soft_limit >= kFewestDescriptors) return OkStatus();
  constexpr uint64_t kPlenty = 1024;
  const std::string what = std::to_string(soft_limit) + " file descriptors are allowed, a worker needs " +
                           std::to_string(kFewestDescriptors) + ": ";
  if (hard_limit >= kFewestDescriptors) {
    return ResourceExhaustedError(what + "ulimit -n " + std::to_string(std::min(hard_limit, kPlenty)));
  }
  return ResourceExhaustedError(what + "raise the hard limit as well, which is " + std::to_string(hard_limit));
}

Status CheckDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return OkStatus();
  return CheckDescriptors(limit.rlim_cur, limit.rlim_max);
}

bool SharesPool(const Settings& settings) {
  return settings.Text("transport") == "auto" || settings.Text("transport") == "ucx-shm";
}

uint64_t AutoSharedPoolBytes(uint64_t one_context, uint64_t room, uint64_t share) {
  const uint64_t wanted = std::max(kLeastSharedAutoKvBytes, one_context);
  if (room == 0) return wanted;
  return std::min(wanted, static_cast<uint64_t>(static_cast<double>(room) * kShareOfSharedMemory) / share);
}

StatusOr<WorkerShape> PlanShape(const Settings& settings, const ModelFile& file, bool alone) {
  WorkerShape out;
  out.threads = static_cast<int>(settings.Integer("threads"));
  if (out.threads == 0) out.threads = UsableCpuCores();
  BATON_ASSIGN_OR_RETURN(out.max_context_tokens, ContextLimit(settings, file));
  out.runner.max_step_tokens = static_cast<uint32_t>(settings.Integer("max-step-tokens"));

  const auto share = alone ? uint64_t{1} : static_cast<uint64_t>(settings.Integer("host-share"));
  MemoryRequest request;
  request.budget_bytes = settings.Bytes("memory");
  request.block_tokens = static_cast<uint32_t>(settings.Integer("block-tokens"));
  request.workspace_bytes = CpuModelRunner::WorkspaceBytes(file.decoder(), out.runner);
  request.max_auto_kv_bytes = kMostAutoKvBytes;
  request.kv_dtype = KvDType(settings);
  const size_t bytes_per_token = MakeKvLayout(file.decoder(), request.block_tokens, request.kv_dtype).BytesPerToken();
  if (!alone && SharesPool(settings)) {
    const uint64_t one_context = uint64_t{out.max_context_tokens + 2 * request.block_tokens} * bytes_per_token;
    request.max_auto_kv_bytes = AutoSharedPoolBytes(one_context, SharedMemoryRoom(), share);
  }
  if (const uint64_t kv = settings.Bytes("kv-memory"); kv != 0) {
    const uint64_t least = kFewestKvBlocks * request.block_tokens * bytes_per_token;
    if (kv < least) {
      return InvalidArgumentError("--kv-memory " + settings.Text("kv-memory") + ": " + std::to_string(least) +
                                  " bytes is the least, " + std::to_string(kFewestKvBlocks) + " blocks of " +
                                  std::to_string(request.block_tokens) + " tokens of this model");
    }
    request.kv_tokens = std::max<uint64_t>(1, kv / bytes_per_token);
  }
  BATON_ASSIGN_OR_RETURN(out.memory, PlanMemory(file, request));
  return out;
}

}  // namespace baton

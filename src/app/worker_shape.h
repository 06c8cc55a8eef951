// What a worker will use of this machine for this model: threads, memory and steps, planned from the settings and the
// model's header before anything is allocated. The worker and `baton doctor` plan alike.
#pragma once

#include <cstdint>

#include "app/settings.h"
#include "baton/status.h"
#include "model/memory_plan.h"
#include "model/model_file.h"
#include "runner/cpu_model_runner.h"

namespace baton {

struct WorkerShape {
  int threads = 1;
  CpuRunnerOptions runner;
  MemoryPlan memory;
  uint32_t max_context_tokens = 0;
};

// `alone`: the only worker of its process's router, whose pool nobody shares.
StatusOr<WorkerShape> PlanShape(const Settings& settings, const ModelFile& file, bool alone);

// What an idle worker holds (27), with room for a router and a few peers. With fewer UCX and gRPC end the process
// instead of reporting what they lack, so a worker refuses to start.
inline constexpr uint64_t kFewestDescriptors = 64;
Status CheckDescriptors(uint64_t soft_limit, uint64_t hard_limit);
Status CheckDescriptors();  // of this process

// Whether a worker that is not alone keeps its pool in shared memory.
bool SharesPool(const Settings& settings);
// The pool of a worker that shares it, with `room` bytes free in /dev/shm (0: unknown) among `share` workers, for a
// model whose full context takes `one_context` bytes, when nothing else is asked for.
uint64_t AutoSharedPoolBytes(uint64_t one_context, uint64_t room, uint64_t share);
// What /dev/shm has free; 0: unknown.
uint64_t SharedMemoryRoom();

}  // namespace baton

// What `baton doctor` knows of this machine, as a plain value; gathering it is machine_facts.cc's, judging it is
// machine_findings'. Nothing here says what is good or bad.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/settings.h"
#include "baton/status.h"
#include "transport/loopback.h"
#include "transport/ucx/lanes.h"

namespace baton {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct Limit {
  uint64_t soft = kUnlimited;
  uint64_t hard = kUnlimited;
};

// A transport of Baton, measured inside this process.
struct MeasuredPath {
  std::string name;  // "ucx-shm", "ucx-tcp", "grpc" (encrypted)
  Status status;     // not ok: it cannot be used here, and why
  LoopbackRate rate;
};

struct MachineFacts {
  // What the settings ask for.
  std::string transport;  // auto, ucx-shm, ucx-rdma, ucx-tcp, grpc
  std::string listen;     // HOST:PORT
  bool loopback_only = true;
  std::string model;         // "": none was named
  Status plan;               // of its memory; ok without a model
  std::string plan_words;    // "": no model
  uint64_t pool_bytes = 0;   // of one worker
  bool pool_wanted = false;  // somebody asked for that size, or a model needs it; else it is what fits
  bool shares_pool = true;   // it lies in /dev/shm
  std::string state_dir;     // where start counters live
  Status state_dir_status;

  std::string cpu;
  Status cores_status;              // of those that were asked for
  int cores = 1;                    // that this process may use
  int threads = 1;                  // that a worker would use
  std::vector<std::string> tables;  // of kernels that run here, slowest first
  std::string kernels;              // the one that was chosen; "": none
  Status kernels_status;

  uint64_t memory_total = 0;
  uint64_t memory_available = 0;
  bool shm_there = false;
  uint64_t shm_total = 0, shm_free = 0;
  Limit descriptors;
  Limit locked_memory;
  bool pidfd = false;
  std::string pidfd_error;
  bool first_pid_namespace = true;
  std::optional<int> ptrace_scope;  // nothing: this kernel has no Yama

  std::vector<std::string> rdma_devices;  // as the kernel names them
  bool rdma_verbs = false;                // programs can reach them
  bool ucx_asked = true;                  // false: with so few descriptors it would end the process
  Status ucx_status;
  UcxOffer ucx;
  std::vector<MeasuredPath> paths;
  double memcpy_bytes_per_second = 0;
};

// Measures for about two seconds; allocates 64 MiB meanwhile, half of it in /dev/shm.
MachineFacts GatherMachineFacts(const Settings& settings);

}  // namespace baton

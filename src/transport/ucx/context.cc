#include "transport/ucx/context.h"

#include <sys/mman.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMinHeader = 1024;  // a data message's header is smaller
constexpr const char* kShmDir = "/dev/shm";

std::string MiB(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

Status CheckShmRoom(size_t bytes) {
  struct statvfs fs {};
  if (statvfs(kShmDir, &fs) != 0) {
    return FailedPreconditionError(std::string("KV pool: /dev/shm is not usable (") + std::strerror(errno) +
                                   "); mount a tmpfs there or set transport tls=tcp");
  }
  const uint64_t room = uint64_t{fs.f_bavail} * fs.f_frsize;
  if (room >= bytes) return OkStatus();
  return ResourceExhaustedError("KV pool: " + MiB(bytes) + " wanted, /dev/shm has room for " + MiB(room) +
                                "; enlarge it (docker run --shm-size), lower the KV memory budget, or set "
                                "transport tls=tcp");
}

// Whether the mapping at `address` is shared ("rw-s"), which is what makes a pool one-sided.
bool IsSharedMapping(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char perms[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, perms) != 3) continue;
    if (wanted >= begin && wanted < end) return perms[3] == 's';
  }
  return false;
}

}  // namespace

std::string UcxText(ucs_status_t status) { return ucs_status_string(status); }

Status FromUcx(ucs_status_t status, const std::string& what) {
  Code code = Code::kUnavailable;
  if (status == UCS_ERR_NO_MEMORY) code = Code::kResourceExhausted;
  if (status == UCS_ERR_INVALID_PARAM) code = Code::kInvalidArgument;
  if (status == UCS_ERR_CANCELED) code = Code::kCancelled;
  return {code, what + ": " + UcxText(status)};
}

StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const std::string& tls, const std::string& net_devices,
                                                         std::vector<std::string> put_transports) {
  if (tls != "shm" && tls != "tcp" && tls != "rdma" && tls != "auto") {
    return InvalidArgumentError("transport tls \"" + tls + "\" is not known; use auto, shm, rdma or tcp");
  }
  if (tls == "rdma" && put_transports.empty()) {
    return FailedPreconditionError(
        "transport tls=rdma: UCX has no lane here that writes a peer's memory without its help "
        "(net_devices=" +
        net_devices + "); `baton doctor` says what is missing");
  }
  std::unique_ptr<UcxContext> context(new UcxContext);
  context->shared_ = tls == "shm" || tls == "auto";
  context->must_put_ = tls == "rdma";
  context->put_transports_ = std::move(put_transports);
  BATON_RETURN_IF_ERROR(context->Init(tls, net_devices));
  BATON_RETURN_IF_ERROR(context->MakeWorker());
  return context;
}

Status UcxContext::Init(const std::string& tls, const std::string& net_devices) {
  ucp_config_t* config = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) return FromUcx(s, "ucx: config");
  // posix carries the pool and nothing else: peer error mode excludes it from messages as long as MM_ERROR_HANDLING
  // stays off, and must. A process's shared-memory message queue is one for all senders; a sender that is killed
  // while it holds an entry stops the queue for good, for every other sender too. TCP connections fail one by one.
  // TX_SEG_SIZE: twice the bandwidth of the default 8 KiB. Through ucp_config_modify the key has no TCP_ before it
  // (the environment's has).
  std::string transports = shared_ ? "posix,tcp" : "tcp";
  for (const std::string& transport : put_transports_) transports += transport == "tcp" ? "" : "," + transport;
  std::vector<std::pair<const char*, const char*>> settings = {{"TLS", transports.c_str()},
                                                               {"NET_DEVICES", net_devices.c_str()},
                                                               {"KEEPALIVE_INTERVAL", "200ms"},
                                                               {"TX_SEG_SIZE", "64K"}};
  if (shared_) settings.emplace_back("MM_ERROR_HANDLING", "n");  // UCX warns about keys that nobody takes
  // A cache of registrations would give two peers one key.
  if (!put_transports_.empty()) settings.emplace_back("RCACHE_ENABLE", "n");
  for (const auto& [key, value] : settings) {
    const ucs_status_t s = ucp_config_modify(config, key, value);
    if (s == UCS_OK) continue;
    ucp_config_release(config);
    return FromUcx(s, std::string("ucx: setting ") + key + "=" + value);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  // Not where nobody puts: over TCP UCX carries out a put to whatever address the sender names.
  if (shared_ || !put_transports_.empty()) params.features |= UCP_FEATURE_RMA;
  params.name = "baton";
  const ucs_status_t s = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (s != UCS_OK) {
    return FromUcx(s, "ucx: no usable transport for tls=" + tls + ", net_devices=" + net_devices +
                          " (see ip link for device names)");
  }
  return OkStatus();
}

Status UcxContext::MakeWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made by one thread, then used by the progress thread
  if (ucs_status_t s = ucp_worker_create(context_, &params, &worker_); s != UCS_OK) {
    return FromUcx(s, "ucx: worker");
  }
  if (ucs_status_t s = ucp_worker_get_efd(worker_, &event_fd_); s != UCS_OK) return FromUcx(s, "ucx: event fd");
  ucp_worker_attr_t attr{};
  attr.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  if (ucs_status_t s = ucp_worker_query(worker_, &attr); s != UCS_OK) return FromUcx(s, "ucx: worker address");
  const auto* bytes = reinterpret_cast<const std::byte*>(attr.address);
  address_.assign(bytes, bytes + attr.address_length);
  ucp_worker_release_address(worker_, attr.address);
  if (attr.max_am_header < kMinHeader) {
    return UnavailableError("ucx: message headers of " + std::to_string(attr.max_am_header) + " bytes, need " +
                            std::to_string(kMinHeader));
  }
  return OkStatus();
}

Status UcxContext::AllocatePool(size_t bytes) {
  BATON_RETURN_IF_ERROR(shared_ ? MapShared(bytes) : MapPrivate(bytes));
  return put_transports_.empty() ? OkStatus() : PreparePuts();
}

Status UcxContext::PreparePuts() {
  auto key = MakeKey();
  if (key.ok()) {
    source_ = key->memory;
    return OkStatus();
  }
  if (must_put_) return key.status();
  put_transports_.clear();
  return OkStatus();
}

Status UcxContext::MapShared(size_t bytes) {
  BATON_RETURN_IF_ERROR(CheckShmRoom(bytes));
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  if (ucs_status_t s = ucp_mem_map(context_, &params, &memory_); s != UCS_OK) {
    return FromUcx(s, "KV pool: shared memory of " + MiB(bytes));
  }
  ucp_mem_attr_t attr{};
  attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  if (ucs_status_t s = ucp_mem_query(memory_, &attr); s != UCS_OK) return FromUcx(s, "KV pool: query");
  if (!IsSharedMapping(attr.address) || attr.length < bytes) {
    return FailedPreconditionError("KV pool: UCX did not allocate shared memory; set transport tls=tcp");
  }
  BATON_CHECK(reinterpret_cast<uintptr_t>(attr.address) % 4096 == 0, "shared memory is page-aligned");
  pool_ = {static_cast<std::byte*>(attr.address), bytes};
  BATON_ASSIGN_OR_RETURN(rkey_, PackKey(memory_));
  return OkStatus();
}

StatusOr<std::vector<std::byte>> UcxContext::PackKey(ucp_mem_h memory) {
  void* rkey = nullptr;
  size_t rkey_bytes = 0;
  if (ucs_status_t s = ucp_rkey_pack(context_, memory, &rkey, &rkey_bytes); s != UCS_OK) {
    return FromUcx(s, "KV pool: remote key");
  }
  std::vector<std::byte> out(static_cast<std::byte*>(rkey), static_cast<std::byte*>(rkey) + rkey_bytes);
  ucp_rkey_buffer_release(rkey);
  return out;
}

StatusOr<UcxContext::PoolKey> UcxContext::MakeKey() {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = pool_.data();
  params.length = pool_.size();
  PoolKey key;
  if (ucs_status_t s = ucp_mem_map(context_, &params, &key.memory); s != UCS_OK) {
    return FromUcx(s, "KV pool: registering " + MiB(pool_.size()) + " for a peer's puts (see ulimit -l)");
  }
  auto packed = PackKey(key.memory);
  if (!packed.ok()) {
    WithdrawKey(key.memory);
    return packed.status();
  }
  key.packed = *std::move(packed);
  return key;
}

Status UcxContext::MapPrivate(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhaustedError("KV pool: cannot map " + MiB(bytes) + ": " + std::strerror(errno));
  }
  pool_ = {static_cast<std::byte*>(memory), bytes};
  return OkStatus();
}

UcxContext::~UcxContext() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (source_ != nullptr) ucp_mem_unmap(context_, source_);
  if (memory_ != nullptr) {
    ucp_mem_unmap(context_, memory_);
  } else if (!pool_.empty()) {
    munmap(pool_.data(), pool_.size());
  }
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace baton

#include "app/machine_facts.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

#include "app/process.h"
#include "app/worker_shape.h"
#include "credentials/issue.h"
#include "device/cpu/cpu_features.h"
#include "model/memory_plan.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr Duration kPerPath = std::chrono::milliseconds(500);
constexpr Duration kForMemcpy = std::chrono::milliseconds(150);
// The inode of the PID namespace that the machine started with, a constant of Linux.
constexpr uint64_t kFirstPidNamespace = 0xEFFFFFFC;

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

uint64_t TotalMemory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
}

Limit LimitOf(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return {};
  const auto value = [](rlim_t v) { return v == RLIM_INFINITY ? kUnlimited : static_cast<uint64_t>(v); };
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

std::vector<std::string> NamesIn(const char* folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// A folder that is there must be writable, one that is not must have a writable ancestor.
Status CanKeepState(const std::string& folder) {
  fs::path at(folder);
  std::error_code error;
  while (!fs::exists(at, error) && at.has_parent_path() && at != at.parent_path()) at = at.parent_path();
  if (!fs::is_directory(at, error)) return FailedPreconditionError(at.string() + " is no folder");
  if (access(at.c_str(), W_OK | X_OK) == 0) return OkStatus();
  return FailedPreconditionError(at.string() + ": " + std::strerror(errno));
}

void AddPlan(const Settings& settings, MachineFacts* f) {
  f->transport = settings.Text("transport");
  f->listen = settings.Text("listen");
  f->loopback_only = IsLoopback(settings.Address("listen").host);
  f->model = settings.Text("model");
  f->shares_pool = SharesPool(settings);
  f->pool_bytes = settings.Bytes("kv-memory");
  f->pool_wanted = f->pool_bytes != 0;
  if (!f->pool_wanted) f->pool_bytes = AutoSharedPoolBytes(0, f->shm_free, 1);
  f->threads = static_cast<int>(settings.Integer("threads"));
  if (f->threads == 0) f->threads = f->cores;
  f->state_dir = StateDirectory(settings);
  f->state_dir_status = CanKeepState(f->state_dir);
  if (f->model.empty()) return;
  auto file = ModelFile::Open(f->model);
  f->plan = file.status();
  if (!file.ok()) return;
  auto shape = PlanShape(settings, **file, false);
  f->plan = shape.status();
  if (!shape.ok()) return;
  f->plan_words = shape->memory.Words();
  f->pool_bytes = shape->memory.pool.total_bytes;
  f->pool_wanted = true;
}

void AddSystem(MachineFacts* f) {
  f->cpu = CpuName();
  f->cores = UsableCpuCores();
  for (const KernelTable* table : AvailableCpuKernels()) f->tables.emplace_back(table->name);
  f->memory_total = TotalMemory();
  f->memory_available = AvailableMemoryBytes();
  struct statvfs shm {};
  f->shm_there = statvfs("/dev/shm", &shm) == 0;
  f->shm_total = uint64_t{shm.f_blocks} * shm.f_frsize;
  f->shm_free = uint64_t{shm.f_bavail} * shm.f_frsize;
  f->descriptors = LimitOf(RLIMIT_NOFILE);
  f->locked_memory = LimitOf(RLIMIT_MEMLOCK);
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  f->pidfd = fd >= 0;
  if (f->pidfd)
    close(fd);
  else
    f->pidfd_error = std::strerror(errno);
  struct stat ns {};
  f->first_pid_namespace = stat("/proc/self/ns/pid", &ns) != 0 || ns.st_ino == kFirstPidNamespace;
  if (int scope = 0; std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope) f->ptrace_scope = scope;
  f->rdma_devices = NamesIn("/sys/class/infiniband");
  const auto verbs = NamesIn("/dev/infiniband");
  f->rdma_verbs =
      std::any_of(verbs.begin(), verbs.end(), [](const std::string& name) { return name.starts_with("uverbs"); });
}

void AddPath(std::string name, const TransportMaker& make, MachineFacts* f) {
  MeasuredPath path{std::move(name), {}, {}};
  auto rate = MeasureLoopback(make, kPerPath);
  path.status = rate.status();
  if (rate.ok()) path.rate = *rate;
  f->paths.push_back(std::move(path));
}

void AddUcxPaths(MachineFacts* f) {
  for (const std::string tls : {"shm", "tcp"}) {
    const auto make = [&tls](const ProcessId& self, Waker* waker) -> StatusOr<std::unique_ptr<KvTransport>> {
      UcxOptions options;
      options.self = self;
      options.tls = tls;
      auto made = UcxTransport::Create(std::move(options), waker);
      if (!made.ok()) return made.status();
      return std::unique_ptr<KvTransport>(*std::move(made));
    };
    AddPath("ucx-" + tls, make, f);
  }
}

// Encrypted, with certificates of this moment.
void AddGrpcPath(MachineFacts* f) {
  const Validity now{std::time(nullptr) - 3600, std::time(nullptr) + 3600};
  const auto authority = MakeAuthority("baton doctor", now);
  const auto make = [&](const ProcessId& self, Waker* waker) -> StatusOr<std::unique_ptr<KvTransport>> {
    if (!authority.ok()) return authority.status();
    BATON_ASSIGN_OR_RETURN(const KeyedCertificate own,
                           IssueCertificate(*authority, {CertifiedRole::kUnified, self.name}, {}, now));
    GrpcOptions options;
    options.self = self;
    options.tls = {authority->certificate, own.certificate, own.key};
    auto made = GrpcTransport::Create(std::move(options), waker);
    if (!made.ok()) return made.status();
    return std::unique_ptr<KvTransport>(*std::move(made));
  };
  AddPath("grpc", make, f);
}

}  // namespace

MachineFacts GatherMachineFacts(const Settings& settings) {
  MachineFacts f;
  SilenceUcx();
  if (const auto cores = settings.Cores("cores"); !cores.empty()) f.cores_status = UseCores(cores);
  AddSystem(&f);
  const auto kernels = CpuKernelsByName(settings.Text("kernels"));
  f.kernels_status = kernels.status();
  if (kernels.ok()) f.kernels = (*kernels)->name;
  AddPlan(settings, &f);
  f.memcpy_bytes_per_second = MeasureMemcpy(kForMemcpy);
  f.ucx_asked = CheckDescriptors(f.descriptors.soft, f.descriptors.hard).ok();
  if (!f.ucx_asked) return f;
  auto offer = QueryUcx();
  f.ucx_status = offer.status();
  if (offer.ok()) f.ucx = *std::move(offer);
  AddUcxPaths(&f);
  AddGrpcPath(&f);
  return f;
}

}  // namespace baton

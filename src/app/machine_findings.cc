#include "app/machine_findings.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "app/worker_shape.h"
#include "model/memory_plan.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWidth = 80;
constexpr uint64_t kSmallPool = uint64_t{64} << 20;  // less is too little for anything but trials

std::string LimitWords(uint64_t bytes) { return bytes == kUnlimited ? "unlimited" : ByteWords(bytes); }

std::string RateWords(double bytes_per_second) {
  return bytes_per_second <= 0 ? "-" : ByteWords(static_cast<uint64_t>(bytes_per_second)) + "/s";
}

std::string TimeWords(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", 1e6 * seconds) : fmt::format("{:.1f} ms", 1e3 * seconds);
}

bool HasRdmaLane(const MachineFacts& f) {
  return std::any_of(f.ucx.lanes.begin(), f.ucx.lanes.end(), [](const UcxLane& lane) { return lane.rdma(); });
}

const MeasuredPath* PathOf(const MachineFacts& f, std::string_view name) {
  for (const MeasuredPath& path : f.paths) {
    if (path.name == name) return &path;
  }
  return nullptr;
}

// "a, b and c"
std::string List(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return out;
}

class Judge {
 public:
  explicit Judge(const MachineFacts& facts) : f_(facts) {}

  std::vector<Finding> All() {
    Processor();
    Model();
    SharedMemory();
    Descriptors();
    State();
    Transports();
    Rdma();
    std::stable_sort(out_.begin(), out_.end(), [](const Finding& a, const Finding& b) { return a.weight < b.weight; });
    return std::move(out_);
  }

 private:
  void Say(Weight weight, std::string subject, std::string text) {
    out_.push_back({weight, std::move(subject), std::move(text)});
  }

  void Processor() {
    if (!f_.cores_status.ok()) Say(Weight::kRefuses, "cpu", f_.cores_status.message());
    if (!f_.kernels_status.ok()) Say(Weight::kRefuses, "kernels", f_.kernels_status.message());
    if (f_.kernels == "reference") {
      Say(Weight::kSlower, "kernels",
          f_.tables.size() > 1 ? "the reference kernels were asked for; " + f_.tables.back() + " is much faster"
                               : "no AVX2 with FMA and F16C here: the reference kernels run, many times slower");
    }
    if (f_.kernels_status.ok() && f_.threads > f_.cores) {
      Say(Weight::kSlower, "cpu",
          fmt::format("{} threads on {} usable core(s): they take each other's time; lower --threads", f_.threads,
                      f_.cores));
    }
  }

  void Model() {
    if (!f_.plan.ok()) Say(Weight::kRefuses, "memory", f_.plan.message());
  }

  void SharedMemory() {
    const bool must = f_.transport == "ucx-shm";
    if (!f_.shares_pool) {
      Say(Weight::kSlower, "shm",
          "--transport " + f_.transport + " leaves shared memory unused, also between workers of this host");
      return;
    }
    if (!f_.shm_there) {
      return Say(Weight::kRefuses, "shm", "/dev/shm is not there: mount a tmpfs on it, or choose --transport ucx-tcp");
    }
    if (f_.pool_wanted && f_.pool_bytes > f_.shm_free) {
      return Say(Weight::kRefuses, "shm",
                 "a pool of " + ByteWords(f_.pool_bytes) + " does not fit into the " + ByteWords(f_.shm_free) +
                     " that /dev/shm has free: enlarge it (mount -o remount,size=..., docker run --shm-size), lower "
                     "--kv-memory, or choose --transport ucx-tcp");
    }
    if (!f_.pool_wanted && f_.pool_bytes < kSmallPool) {
      Say(Weight::kSlower, "shm",
          "/dev/shm has only " + ByteWords(f_.shm_free) + " free, so a worker's pool is at most " +
              ByteWords(f_.pool_bytes) + ": enlarge it (mount -o remount,size=..., docker run --shm-size)");
    }
    if (!f_.pidfd) {
      Say(must ? Weight::kRefuses : Weight::kSlower, "pidfd",
          "pidfd_open: " + f_.pidfd_error +
              ". Without it the death of a writer cannot be proven, so hand-offs through shared memory are refused: "
              "use "
              "Linux 5.3 or later, let the container's seccomp profile pass it, or choose --transport ucx-tcp");
    }
    if (!f_.first_pid_namespace) {
      Say(Weight::kNote, "namespace",
          "this process lives in a PID namespace of its own (a container): only workers in the same one share memory, "
          "others of this host go over TCP; start the containers with --pid=host, or one with --pid=container:OTHER");
    }
  }

  void Descriptors() {
    if (const Status s = CheckDescriptors(f_.descriptors.soft, f_.descriptors.hard); !s.ok()) {
      return Say(Weight::kRefuses, "descriptors", s.message());
    }
    if (f_.descriptors.soft < kGoodDescriptors) {
      Say(Weight::kNote, "descriptors",
          fmt::format("{} file descriptors are few for many peers and clients: ulimit -n {}", f_.descriptors.soft,
                      std::min(f_.descriptors.hard, kGoodDescriptors)));
    }
  }

  void State() {
    if (f_.state_dir_status.ok()) return;
    Say(Weight::kRefuses, "state-dir",
        "the start counter cannot be kept in " + f_.state_dir + " (" + f_.state_dir_status.message() +
            "): choose another --state-dir");
  }

  void Transports() {
    const bool grpc = f_.transport == "grpc";
    if (!f_.ucx_status.ok()) Say(grpc ? Weight::kNote : Weight::kRefuses, "ucx", f_.ucx_status.ToString());
    for (const MeasuredPath& path : f_.paths) {
      if (path.status.ok()) continue;
      // Every path of UCX sends its messages over TCP; shared memory is needed by those who share their pool.
      const bool needed = grpc ? path.name == "grpc"
                               : path.name == "ucx-tcp" || (path.name == "ucx-shm" && f_.shares_pool && f_.shm_there);
      Say(needed ? Weight::kRefuses : Weight::kNote, path.name,
          path.name + " cannot be used: " + path.status.message());
    }
    if (f_.loopback_only) {
      Say(Weight::kNote, "listen",
          "it listens on " + f_.listen + ": workers of other hosts cannot reach it; see --listen and --advertise");
    }
  }

  void Rdma() {
    if (!f_.ucx_asked || f_.transport == "grpc") return;
    const bool must = f_.transport == "ucx-rdma";
    const Weight missing = must ? Weight::kRefuses : Weight::kSlower;
    if (must && f_.loopback_only) {
      Say(Weight::kRefuses, "rdma",
          "--transport ucx-rdma uses no device while it listens on " + f_.listen + " alone: see --listen");
    }
    if (HasRdmaLane(f_)) {
      if (f_.locked_memory.soft < f_.pool_bytes) {
        Say(must ? Weight::kRefuses : Weight::kSlower, "memlock",
            "RDMA must lock the pool of " + ByteWords(f_.pool_bytes) + " in memory, and " +
                LimitWords(f_.locked_memory.soft) + " is allowed: ulimit -l unlimited");
      }
      return;
    }
    const MeasuredPath* const tcp = PathOf(f_, "ucx-tcp");
    const std::string meanwhile =
        tcp != nullptr && tcp->status.ok()
            ? " Until then hosts hand off over TCP, at most " + RateWords(tcp->rate.bytes_per_second) + " here."
            : "";
    if (f_.rdma_devices.empty()) {
      return Say(missing, "rdma",
                 "no RDMA device: /sys/class/infiniband is empty. A device that is there needs its kernel module "
                 "(mlx5_ib, irdma, efa, ...); RoCE in software is rdma_rxe." +
                     meanwhile);
    }
    const std::string devices = List(f_.rdma_devices);
    if (!f_.rdma_verbs) {
      return Say(missing, "rdma",
                 devices +
                     " cannot be reached by programs: load the kernel module ib_uverbs, or give the container "
                     "/dev/infiniband (docker run --device /dev/infiniband)." +
                     meanwhile);
    }
    if (!f_.ucx.rdma_built) {
      return Say(missing, "rdma",
                 "UCX " + f_.ucx.version + " lacks its part for RDMA devices, so it does not see " + devices +
                     ": install one with it (libuct_ib.so)." + meanwhile);
    }
    Say(missing, "rdma",
        "UCX opens no lane on " + devices + ": is a port up (cat /sys/class/infiniband/*/ports/*/state), is " +
            LimitWords(f_.locked_memory.soft) + " of locked memory enough (ulimit -l)?" + meanwhile);
  }

  const MachineFacts& f_;
  std::vector<Finding> out_;
};

std::string_view Word(Weight weight) {
  switch (weight) {
    case Weight::kRefuses:
      return "refuses";
    case Weight::kSlower:
      return "slower";
    case Weight::kNote:
      return "note";
  }
  return "?";
}

// `text` after `head`, in lines of 80 columns, the later ones indented as far as the head is wide.
std::string Wrapped(const std::string& head, const std::string& text) {
  std::string out = head;
  size_t column = head.size();
  bool first = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t size = end - at;
    if (!first && column + 1 + size > kWidth) {
      out += "\n" + std::string(head.size(), ' ');
      column = head.size();
      first = true;
    }
    if (!first) out += ' ';
    out.append(text, at, size);
    column += size + (first ? 0 : 1);
    first = false;
    at = end + 1;
  }
  return out + "\n";
}

std::string Row(const std::string& name, const std::string& text) { return Wrapped(fmt::format("{:<14}", name), text); }

std::string Can(const UcxLane& lane) {
  std::string out;
  const auto add = [&out](bool can, const char* word) {
    out += can ? (out.empty() ? "" : " ") + std::string(word) : "";
  };
  add(lane.maps, "map");
  add(lane.put, "put");
  add(lane.get, "get");
  add(lane.messages, "am");
  add(lane.remote_key, "rkey");
  return out;
}

std::string LaneRows(const MachineFacts& f) {
  std::string out =
      fmt::format("{:<9} {:<11} {:<13} {:<16} {:<14} {}\n", "LANE", "DEVICE", "KIND", "CAN", "FENCE", "USED FOR");
  for (const UcxLane& lane : f.ucx.lanes) {
    out += fmt::format("{:<9} {:<11} {:<13} {:<16} {:<14} {}\n", lane.transport, lane.device, Word(lane.kind),
                       Can(lane), FenceOf(lane), UseOf(lane, f));
  }
  return out;
}

std::string PathRows(const MachineFacts& f) {
  std::string out =
      fmt::format("{:<10} {:<16} {:>11}  {:<10} {}\n", "TRANSPORT", "MODE", "MEASURED", "OF MEMCPY", "4 KiB ARRIVE IN");
  for (const MeasuredPath& path : f.paths) {
    if (!path.status.ok()) continue;
    const double share = f.memcpy_bytes_per_second > 0 ? path.rate.bytes_per_second / f.memcpy_bytes_per_second : 0;
    out += fmt::format("{:<10} {:<16} {:>11}  {:<10} {}\n", path.name,
                       path.rate.mode == TransferMode::kOneSided ? "one-sided" : "receiver-posted",
                       RateWords(path.rate.bytes_per_second), fmt::format("{:.2f}", share),
                       TimeWords(path.rate.small_seconds));
  }
  return out + fmt::format("{:<10} {:<16} {:>11}\n", "memcpy", "one thread", RateWords(f.memcpy_bytes_per_second));
}

Json LimitJson(const Limit& limit) {
  const auto value = [](uint64_t v) { return v == kUnlimited ? Json(nullptr) : Json(v); };
  return {{"soft", value(limit.soft)}, {"hard", value(limit.hard)}};
}

}  // namespace

std::vector<Finding> FindingsOf(const MachineFacts& facts) { return Judge(facts).All(); }

bool WouldStart(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.weight == Weight::kRefuses; });
}

std::string_view UseOf(const UcxLane& lane, const MachineFacts& facts) {
  if (lane.transport == "posix" && facts.shares_pool) return "pools";
  const bool rdma = lane.rdma() && !facts.loopback_only && (facts.transport == "auto" || facts.transport == "ucx-rdma");
  if (rdma) return "KV";
  if (lane.transport != "tcp" || facts.transport == "grpc" || (facts.loopback_only && lane.device != "lo")) return "-";
  return facts.transport == "ucx-shm" || facts.transport == "ucx-rdma" ? "messages" : "messages, KV";
}

std::string_view FenceOf(const UcxLane& lane) {
  if (lane.maps) return "writer's death";
  if (lane.rdma()) return "key withdrawn";
  return lane.kind == UcxLaneKind::kNetwork ? "reader stops" : "-";
}

std::string DoctorReport(const MachineFacts& f, const std::vector<Finding>& findings) {
  std::string out;
  out += Row("cpu", f.cpu);
  out += Row("cores", fmt::format("{} usable, a worker would use {} thread(s)", f.cores, f.threads));
  out += Row("kernels", (f.kernels.empty() ? "none" : f.kernels) + " (here run: " + List(f.tables) + ")");
  out += Row("memory", ByteWords(f.memory_available) + " available of " + ByteWords(f.memory_total));
  if (!f.plan_words.empty()) out += Row("model", f.model + ": " + f.plan_words);
  out += Row("KV pool", (f.pool_wanted ? "" : "up to ") + ByteWords(f.pool_bytes) + " of a worker, " +
                            (f.shares_pool ? "in /dev/shm" : "private"));
  out += Row("/dev/shm", f.shm_there ? ByteWords(f.shm_free) + " free of " + ByteWords(f.shm_total) : "not there");
  out += Row("limits", fmt::format("{} file descriptors, {} of locked memory",
                                   f.descriptors.soft == kUnlimited ? "unlimited" : std::to_string(f.descriptors.soft),
                                   LimitWords(f.locked_memory.soft)));
  out +=
      Row("processes", std::string(f.pidfd ? "pidfd" : "no pidfd") + ", " +
                           (f.first_pid_namespace ? "the machine's own PID namespace" : "a PID namespace of its own") +
                           (f.ptrace_scope ? ", ptrace_scope " + std::to_string(*f.ptrace_scope) : ""));
  out += Row("RDMA", f.rdma_devices.empty() ? "no device" : List(f.rdma_devices));
  out += Row("UCX", f.ucx.version + (f.ucx.rdma_built ? "" : ", without its part for RDMA devices"));
  out += "\n" + LaneRows(f) + "\n" + PathRows(f) + "\n";
  for (const Finding& finding : findings) out += Wrapped(fmt::format("{:<9}", Word(finding.weight)), finding.text);
  return out + (WouldStart(findings) ? "A worker would start here.\n" : "A worker would refuse to start here.\n");
}

std::string DoctorJson(const MachineFacts& f, const std::vector<Finding>& findings) {
  Json out = {{"would_start", WouldStart(findings)},
              {"cpu",
               {{"name", f.cpu},
                {"cores", f.cores},
                {"threads", f.threads},
                {"kernels", f.kernels},
                {"kernels_that_run", f.tables}}},
              {"memory", {{"total", f.memory_total}, {"available", f.memory_available}}},
              {"pool", {{"bytes", f.pool_bytes}, {"exact", f.pool_wanted}, {"shared", f.shares_pool}}},
              {"shm", {{"there", f.shm_there}, {"total", f.shm_total}, {"free", f.shm_free}}},
              {"descriptors", LimitJson(f.descriptors)},
              {"locked_memory", LimitJson(f.locked_memory)},
              {"pidfd", f.pidfd},
              {"first_pid_namespace", f.first_pid_namespace},
              {"ptrace_scope", f.ptrace_scope ? Json(*f.ptrace_scope) : Json(nullptr)},
              {"rdma_devices", f.rdma_devices},
              {"ucx", {{"version", f.ucx.version}, {"rdma_built", f.ucx.rdma_built}}},
              {"lanes", Json::array()},
              {"transports", Json::array()},
              {"memcpy_bytes_per_second", f.memcpy_bytes_per_second},
              {"findings", Json::array()}};
  if (!f.model.empty()) out["model"] = {{"path", f.model}, {"plan", f.plan_words}};
  for (const UcxLane& lane : f.ucx.lanes) {
    out["lanes"].push_back({{"transport", lane.transport},
                            {"device", lane.device},
                            {"kind", Word(lane.kind)},
                            {"messages", lane.messages},
                            {"put", lane.put},
                            {"get", lane.get},
                            {"remote_key", lane.remote_key},
                            {"maps", lane.maps},
                            {"peer_failure", lane.peer_failure},
                            {"rdma", lane.rdma()},
                            {"fence", FenceOf(lane)},
                            {"used_for", UseOf(lane, f)},
                            {"estimated_bytes_per_second", lane.bytes_per_second},
                            {"estimated_latency_s", lane.latency_seconds}});
  }
  for (const MeasuredPath& path : f.paths) {
    Json entry = {{"name", path.name}, {"usable", path.status.ok()}};
    if (path.status.ok()) {
      entry["one_sided"] = path.rate.mode == TransferMode::kOneSided;
      entry["bytes_per_second"] = path.rate.bytes_per_second;
      entry["small_s"] = path.rate.small_seconds;
    } else {
      entry["why"] = path.status.message();
    }
    out["transports"].push_back(std::move(entry));
  }
  for (const Finding& finding : findings) {
    out["findings"].push_back({{"weight", Word(finding.weight)}, {"subject", finding.subject}, {"text", finding.text}});
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton

#include "app/cluster_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kSilent = std::chrono::milliseconds(1500);  // heartbeats come twice a second

std::string Cut(const std::string& text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 1) + "~";
}

std::string Age(Duration d) {
  const double s = Seconds(d);
  if (s < 10) return fmt::format("{:.1f}s", s);
  if (s < 60) return fmt::format("{:.0f}s", s);
  if (s < 3600) return fmt::format("{:.0f}m{:02.0f}s", std::floor(s / 60), std::floor(std::fmod(s, 60)));
  if (s < 86400) return fmt::format("{:.0f}h{:02.0f}m", std::floor(s / 3600), std::floor(std::fmod(s, 3600) / 60));
  return fmt::format("{:.0f}d{:02.0f}h", std::floor(s / 86400), std::floor(std::fmod(s, 86400) / 3600));
}

std::string StepTime(double seconds) {
  if (seconds <= 0) return "-";
  return seconds < 1 ? fmt::format("{:.1f}ms", 1e3 * seconds) : fmt::format("{:.1f}s", std::min(seconds, 99999.0));
}

std::string Size(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) bytes /= 1024, ++unit;
  return fmt::format("{:.{}f}{}", bytes, bytes < 10 && unit > 0 ? 1 : 0, kUnits[unit]);
}

uint64_t Sum(const std::vector<uint32_t>& counts) { return std::accumulate(counts.begin(), counts.end(), uint64_t{0}); }

std::string StateOf(const WorkerDescription& w) {
  if (w.heard_ago > kSilent) return "silent";
  if (!w.confirmed) return "ordered";
  if (w.draining) return w.running + w.waiting == 0 ? "drained" : "draining";
  return "ok";
}

std::string WorkerLine(const WorkerDescription& w) {
  uint64_t cached = 0;
  for (const BlockReport& blocks : w.blocks) cached += blocks.cached;
  return fmt::format("{:<18} {:<7} {:<8} {:>5} {:>5} {:>11} {:>6} {:>4} {:>8}\n", Cut(w.name, 18), RoleWord(w.roles),
                     StateOf(w), w.running, w.waiting, fmt::format("{}/{}", Sum(w.free_blocks), Sum(w.total_blocks)),
                     cached, Sum(w.quarantined_blocks), StepTime(w.decode_step_seconds));
}

std::string LaneLine(const WorkerDescription& w, const LaneDescription& lane) {
  const std::string& from = lane.incoming ? lane.peer : w.name;
  const std::string& to = lane.incoming ? w.name : lane.peer;
  const std::string mode = lane.mode == "receiver-posted" ? "receiver" : lane.mode;
  return fmt::format("{:<26} {:<9} {:<4} {:>5} {:>7} {:>7} {:>9} {}\n", Cut(from, 11) + " -> " + Cut(to, 11), mode,
                     lane.up ? "up" : "down", std::min(lane.hand_offs, 99999u),
                     Size(static_cast<double>(lane.in_flight_bytes)), Size(static_cast<double>(lane.bytes)),
                     lane.bytes_per_second > 0 ? Size(lane.bytes_per_second) + "/s" : "-",
                     lane.lane.empty() ? "-" : Cut(lane.lane, 6));
}

}  // namespace

std::string_view RoleWord(const RoleMask& roles) {
  return roles.prefill && roles.decode ? "unified" : roles.decode ? "decode" : "prefill";
}

std::string ClusterTable(const ClusterDescription& cluster) {
  std::string out =
      fmt::format("{}: {}, {}; up {}, {} live, {} queued\n", Cut(cluster.router, 16), Cut(cluster.model, 12),
                  cluster.draining  ? "draining"
                  : cluster.serving ? "serving"
                                    : "not serving",
                  Age(cluster.uptime), cluster.live, cluster.queued);
  if (cluster.workers.empty()) return out + "no worker is connected\n";
  out += fmt::format("{:<18} {:<7} {:<8} {:>5} {:>5} {:>11} {:>6} {:>4} {:>8}\n", "WORKER", "ROLE", "STATE", "RUN",
                     "WAIT", "FREE/BLOCKS", "CACHED", "QUAR", "STEP");
  for (const WorkerDescription& w : cluster.workers) out += WorkerLine(w);
  // Each path once, as its writer sees it.
  std::string lanes, quarantines;
  for (const WorkerDescription& w : cluster.workers) {
    for (const LaneDescription& lane : w.lanes) {
      if (!lane.incoming) lanes += LaneLine(w, lane);
      if (lane.quarantined_blocks == 0) continue;
      quarantines += fmt::format("{}: {} blocks wait until {}#{} is quiet, the oldest for {}\n", w.name,
                                 lane.quarantined_blocks, lane.peer, lane.incarnation, Age(lane.oldest_quarantine));
    }
  }
  if (!lanes.empty()) {
    out += fmt::format("{:<26} {:<9} {:<4} {:>5} {:>7} {:>7} {:>9} {}\n", "PATH", "MODE", "IS", "MOVE", "FLYING",
                       "MOVED", "RATE", "LANE");
  }
  return out + lanes + quarantines;
}

std::string ClusterJson(const ClusterDescription& cluster) {
  Json out = {{"router", cluster.router},
              {"model", cluster.model},
              {"serving", cluster.serving},
              {"draining", cluster.draining},
              {"uptime_s", Seconds(cluster.uptime)},
              {"live", cluster.live},
              {"queued", cluster.queued},
              {"workers", Json::array()},
              {"counters", Json::object()}};
  for (const WorkerDescription& w : cluster.workers) {
    Json worker = {{"name", w.name},
                   {"incarnation", w.incarnation},
                   {"address", w.address},
                   {"role", RoleWord(w.roles)},
                   {"draining", w.draining},
                   {"confirmed", w.confirmed},
                   {"running", w.running},
                   {"waiting", w.waiting},
                   {"steps", w.steps},
                   {"heard_ago_s", Seconds(w.heard_ago)},
                   {"connected_s", Seconds(w.connected_for)},
                   {"uptime_s", Seconds(w.uptime)},
                   {"block_tokens", w.block_tokens},
                   {"total_blocks", w.total_blocks},
                   {"free_blocks", w.free_blocks},
                   {"quarantined_blocks", w.quarantined_blocks},
                   {"blocks", Json::array()},
                   {"tickets", w.tickets},
                   {"hand_offs", w.hand_offs},
                   {"transport", w.transport},
                   {"lanes", Json::array()},
                   {"prefill_tokens_per_second", w.prefill_tokens_per_second},
                   {"decode_step_s", w.decode_step_seconds},
                   {"metrics", w.metrics}};
    for (const BlockReport& b : w.blocks) {
      worker["blocks"].push_back(
          {{"free", b.free}, {"owned", b.owned}, {"cached", b.cached}, {"quarantined", b.quarantined}});
    }
    for (const LaneDescription& lane : w.lanes) {
      worker["lanes"].push_back({{"peer", lane.peer},
                                 {"incarnation", lane.incarnation},
                                 {"incoming", lane.incoming},
                                 {"up", lane.up},
                                 {"mode", lane.mode},
                                 {"hand_offs", lane.hand_offs},
                                 {"quarantined_blocks", lane.quarantined_blocks},
                                 {"oldest_quarantine_s", Seconds(lane.oldest_quarantine)},
                                 {"bytes", lane.bytes},
                                 {"bytes_per_second", lane.bytes_per_second},
                                 {"lane", lane.lane},
                                 {"in_flight_bytes", lane.in_flight_bytes},
                                 {"queued_bytes", lane.queued_bytes},
                                 {"credit_bytes", lane.credit_bytes},
                                 {"credit_tickets", lane.credit_tickets},
                                 {"states", lane.states}});
    }
    out["workers"].push_back(std::move(worker));
  }
  for (const auto& [name, value] : cluster.counters) out["counters"][name] = value;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton

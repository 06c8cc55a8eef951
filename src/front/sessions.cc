#include "front/sessions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "baton/check.h"

namespace baton {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr uint32_t kMaxBlockTokens = 4096;
constexpr size_t kMaxGroups = 64;
constexpr uint32_t kMaxBlocks = 1u << 28;
constexpr uint32_t kMaxContext = 1u << 24;
constexpr uint32_t kMaxCredits = 1u << 20;

bool IsPrintable(std::string_view text) {  // ASCII without spaces
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

Status CheckLayout(const WorkerHello& h) {
  const KvLayout& layout = h.layout;
  if (layout.block_tokens == 0 || layout.block_tokens > kMaxBlockTokens || layout.block_tokens % kPageTokens != 0) {
    return FailedPreconditionError(fmt::format("hello: blocks of {} tokens; a multiple of {} up to {} is needed",
                                               layout.block_tokens, kPageTokens, kMaxBlockTokens));
  }
  if (layout.groups.empty() || layout.groups.size() > kMaxGroups || layout.groups.size() != h.num_blocks.size()) {
    return FailedPreconditionError(
        fmt::format("hello: {} KV groups and {} pools; equal numbers from 1 to {} are needed", layout.groups.size(),
                    h.num_blocks.size(), kMaxGroups));
  }
  for (const KvGroup& g : layout.groups) {
    if (g.num_layers == 0 || g.num_layers > 4096 || g.num_kv_heads == 0 || g.num_kv_heads > 65536 || g.head_dim == 0 ||
        g.head_dim > 65536 || g.head_dim % 2 != 0) {
      return FailedPreconditionError(
          fmt::format("hello: a KV group of {} layers, {} heads, head_dim {}; 1 to 4096, 1 to 65536, and even up to "
                      "65536 are needed",
                      g.num_layers, g.num_kv_heads, g.head_dim));
    }
    if (g.dtype != DType::kF32 && g.dtype != DType::kF16 && g.dtype != DType::kBF16 && g.dtype != DType::kI8) {
      return FailedPreconditionError("hello: KV of a weight's quantised type is not known here");
    }
  }
  for (const uint32_t blocks : h.num_blocks) {
    if (blocks == 0 || blocks > kMaxBlocks) {
      return FailedPreconditionError(
          fmt::format("hello: a KV pool of {} blocks; 1 to {} are needed", blocks, kMaxBlocks));
    }
  }
  return OkStatus();
}

// What other workers dial. Empty: it serves none, and then must do everything itself.
Status CheckAddress(const WorkerHello& h) {
  const std::string& address = h.self.address;
  if (address.empty()) {
    if (h.roles.prefill && h.roles.decode) return OkStatus();
    return FailedPreconditionError("hello: a prefill or a decode worker needs an address that other workers can dial");
  }
  const size_t colon = address.rfind(':');
  const std::string_view host = std::string_view(address).substr(0, colon);
  const std::string_view port =
      colon == std::string::npos ? std::string_view() : std::string_view(address).substr(colon + 1);
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos;
  const int number = digits ? std::atoi(std::string(port).c_str()) : 0;
  // 0.0.0.0, [::] and their other spellings name every interface here and nothing elsewhere.
  const bool wildcard = host.find_first_not_of("0.:[]*") == std::string_view::npos;
  if (!digits || number < 1 || number > 65535 || wildcard || !IsPrintable(address)) {
    return FailedPreconditionError(fmt::format(
        "hello: other workers cannot dial {}; a host and a port from 1 to 65535 are needed, see --advertise",
        IsPrintable(address) ? address : "an address with spaces or control characters"));
  }
  return OkStatus();
}

// Everything that the front and the Router rely on in a Hello, whoever sent it.
Status CheckHello(const WorkerHello& h) {
  const std::string& name = h.self.process.name;
  if (name.empty() || name.size() > kMaxNameBytes || !IsPrintable(name)) {
    return FailedPreconditionError(
        fmt::format("hello: a worker name of {} bytes; 1 to {}, printable ASCII without spaces, are needed",
                    name.size(), kMaxNameBytes));
  }
  if (!h.roles.prefill && !h.roles.decode) {
    return FailedPreconditionError("hello: neither prefill nor decode; at least one role is needed");
  }
  BATON_RETURN_IF_ERROR(CheckAddress(h));
  BATON_RETURN_IF_ERROR(CheckLayout(h));
  if (h.max_context_tokens < 2 || h.max_context_tokens > kMaxContext) {
    return FailedPreconditionError(
        fmt::format("hello: a context of {} tokens; 2 to {} are needed", h.max_context_tokens, kMaxContext));
  }
  if (h.submit_credits == 0 || h.submit_credits > kMaxCredits) {
    return FailedPreconditionError(
        fmt::format("hello: room for {} requests; 1 to {} are needed", h.submit_credits, kMaxCredits));
  }
  return OkStatus();
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

Status Sessions::Admit(const WorkerHello& hello, const FrontOptions& options) const {
  BATON_RETURN_IF_ERROR(CheckHello(hello));
  BATON_RETURN_IF_ERROR(CommonProtocol(options.protocol, hello.protocol).status().Annotate("hello"));
  const std::string& name = hello.self.process.name;
  if (hello.model.weights != options.model.weights) {
    return FailedPreconditionError(
        fmt::format("worker {} has model \"{}\" ({:016x}), this router serves \"{}\" ({:016x})", name, hello.model.name,
                    hello.model.weights.low, options.model.name, options.model.weights.low));
  }
  const auto seen = highest_.find(name);
  if (seen != highest_.end()) {
    const Incarnation& mine = hello.self.process.incarnation;
    const Incarnation& known = seen->second.incarnation;
    if (mine.counter < known.counter || (mine.counter == known.counter && mine.random != known.random)) {
      return FailedPreconditionError(fmt::format(
          "superseded: the name {0} was taken by start {1} ({2}), this is start {3} ({4}); give this worker another "
          "--name, or the --state-dir that counts the starts of {0}",
          name, known.counter, seen->second.address, mine.counter, hello.self.address));
    }
  } else if (highest_.size() >= kMaxWorkers * 4) {
    return ResourceExhaustedError(fmt::format("{} worker names were seen; no more are admitted", highest_.size()));
  }
  if (by_worker_.size() >= kMaxWorkers && !by_name_.contains(name)) {
    return ResourceExhaustedError(fmt::format("{} workers are connected, at most {}", by_worker_.size(), kMaxWorkers));
  }
  return OkStatus();
}

const WorkerSession* Sessions::OfName(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : Find(it->second);
}

std::optional<Contender> Sessions::Contend(Contender contender) {
  const ProcessId& mine = contender.hello.self.process;
  const auto [it, first] = contenders_.try_emplace(mine.name, contender);
  if (first) return std::nullopt;
  const ProcessId& other = it->second.hello.self.process;
  if (mine != other && mine.incarnation.counter <= other.incarnation.counter) return contender;
  return std::exchange(it->second, std::move(contender));
}

std::optional<Contender> Sessions::TakeContender(const std::string& name) {
  const auto node = contenders_.extract(name);
  return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
}

std::optional<Contender> Sessions::RefutedBy(const WorkerSession& session, TimePoint now) {
  if (contenders_.empty()) return std::nullopt;
  const auto it = contenders_.find(session.self.process.name);
  if (it == contenders_.end() || now < it->second.since + kAliveAfter) return std::nullopt;
  return TakeContender(session.self.process.name);
}

std::vector<std::string> Sessions::Names() const {
  std::vector<std::string> out;
  for (const auto& [name, worker] : by_name_) out.push_back(name);
  return out;
}

void Sessions::ForgetContender(LinkId link) {
  std::erase_if(contenders_, [&](const auto& c) { return c.second.link == link; });
}

void Sessions::Add(LinkId link, WorkerId worker, const WorkerHello& hello, TimePoint now, Duration hung_after) {
  WorkerSession s;
  s.link = link;
  s.worker = worker;
  s.self = hello.self;
  s.may = hello.may;
  s.host = HostOf(hello.self.address);
  s.draining = hello.draining;
  s.heard = now;
  s.expires = now + hung_after;
  next_check_ = std::min(next_check_, s.expires);
  BATON_CHECK(by_name_.emplace(hello.self.process.name, worker).second, "two sessions of one worker name");
  BATON_CHECK(by_link_.emplace(link, worker).second, "a link is up twice");
  highest_[hello.self.process.name] = {hello.self.process.incarnation, hello.self.address};
  by_worker_.emplace(worker, std::move(s));
}

void Sessions::Remove(WorkerId worker) {
  const auto it = by_worker_.find(worker);
  if (it == by_worker_.end()) return;
  by_link_.erase(it->second.link);
  by_name_.erase(it->second.self.process.name);
  by_worker_.erase(it);
}

WorkerSession* Sessions::Find(LinkId link) {
  const auto it = by_link_.find(link);
  return it == by_link_.end() ? nullptr : &by_worker_.at(it->second);
}

void Sessions::MarkStuck(const ProcessId& process) {
  const auto it = by_name_.find(process.name);
  if (it == by_name_.end()) return;
  WorkerSession& session = by_worker_.at(it->second);
  if (session.self.process == process) session.stuck = true;
}

const WorkerSession* Sessions::Find(WorkerId worker) const {
  const auto it = by_worker_.find(worker);
  return it == by_worker_.end() ? nullptr : &it->second;
}

void Sessions::OnHeartbeat(WorkerSession* session, const Heartbeat& heartbeat, TimePoint now, Duration hung_after) {
  session->heard = now;
  session->steps = heartbeat.steps;
  session->once_hit_in_step = heartbeat.once_hit_in_step;
  session->draining = heartbeat.draining;
  // A running step has a deadline of its own, from its prediction (L4); negative: it has passed.
  const Duration step = std::min<Duration>(heartbeat.step_overdue_in, std::chrono::minutes(10));
  session->expires = step < Duration::zero() ? now : now + std::max(hung_after, step);
  next_check_ = std::min(next_check_, session->expires);
}

std::vector<WorkerId> Sessions::Expired(TimePoint now) const {
  std::vector<WorkerId> out;
  for (const auto& [id, s] : by_worker_) {
    if (s.expires <= now) out.push_back(id);
  }
  return out;
}

void Sessions::Rescan() {
  next_check_ = kNever;
  for (const auto& [id, s] : by_worker_) next_check_ = std::min(next_check_, s.expires);
}

void Sessions::Send(WorkerId worker, FrontCommand command, FrontOutput* out) const {
  if (const WorkerSession* s = Find(worker)) out->to_workers.emplace_back(s->link, std::move(command));
}

}  // namespace baton

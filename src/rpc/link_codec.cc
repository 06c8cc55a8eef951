// The worker-router protocol. The worker-worker protocol is pair_codec.cc; shared values are value_codec.cc.
#include "rpc/link_codec.h"

#include <utility>

#include "rpc/value_codec.h"

namespace baton {

namespace {
using namespace codec;

// ---- child events -----------------------------------------------------------------------------------------

struct EventWriter {
  wire::ChildEvent* to;

  template <typename Event>
  void Name(const Event& event) const {
    Put(event.child, to->mutable_child());
    to->set_epoch(event.epoch);
  }
  void operator()(const TokenEvent& event) const {
    Name(event);
    wire::TokenEvent* token = to->mutable_token();
    token->set_index(event.index);
    Put(event.token, token->mutable_token());
    token->set_finish(static_cast<uint32_t>(event.finish));
  }
  void operator()(const HandedOff& event) const {
    Name(event);
    to->mutable_handed_off();
  }
  void operator()(const HandoffFailed& event) const {
    Name(event);
    to->mutable_handoff_failed()->set_why(static_cast<uint32_t>(event.why));
    to->mutable_handoff_failed()->set_detail(CutText(event.detail));
  }
  void operator()(const Running& event) const {
    Name(event);
    to->mutable_running();
  }
  void operator()(const NotHeld& event) const {
    Name(event);
    to->mutable_not_held();
  }
  void operator()(const ChildFailed& event) const {
    Name(event);
    Put(event.why, to->mutable_failed());
  }
  void operator()(const ReceiptEvent& event) const {
    Name(event);
    const Receipt& from = event.receipt;
    wire::Receipt* receipt = to->mutable_receipt();
    receipt->set_queue_ns(from.queue.count());
    receipt->set_prefill_ns(from.prefill.count());
    receipt->set_reserve_ns(from.reserve.count());
    receipt->set_transfer_ns(from.transfer.count());
    receipt->set_exposed_ns(from.exposed.count());
    receipt->set_transfer_bytes(from.transfer_bytes);
    receipt->set_transfer_blocks(from.transfer_blocks);
    receipt->set_hidden_bytes(from.hidden_bytes);
    receipt->set_prompt_tokens(from.prompt_tokens);
    receipt->set_cached_tokens(from.cached_tokens);
    receipt->set_preemptions(from.preemptions);
  }
};

Receipt GetReceipt(const wire::Receipt& from, Checker* check) {
  for (int64_t ns : {from.queue_ns(), from.prefill_ns(), from.reserve_ns(), from.transfer_ns(), from.exposed_ns()}) {
    check->NotNegative("receipt", ns);
  }
  Receipt receipt;
  receipt.queue = Duration(from.queue_ns());
  receipt.prefill = Duration(from.prefill_ns());
  receipt.reserve = Duration(from.reserve_ns());
  receipt.transfer = Duration(from.transfer_ns());
  receipt.exposed = Duration(from.exposed_ns());
  receipt.transfer_bytes = from.transfer_bytes();
  receipt.transfer_blocks = from.transfer_blocks();
  receipt.hidden_bytes = from.hidden_bytes();
  receipt.prompt_tokens = from.prompt_tokens();
  receipt.cached_tokens = from.cached_tokens();
  receipt.preemptions = from.preemptions();
  return receipt;
}

ChildEvent GetEvent(const wire::ChildEvent& from, Checker* check) {
  check->Require("event.child", from.has_child());
  const ChildId child = GetChild(from.child());
  const Epoch epoch = from.epoch();
  switch (from.kind_case()) {
    case wire::ChildEvent::kToken: {
      TokenEvent event{child, epoch, from.token().index(), GetToken(from.token().token(), check), {}};
      event.finish = ToEnum(check, "token.finish", from.token().finish(), FinishReason::kLength);
      return event;
    }
    case wire::ChildEvent::kHandedOff:
      return HandedOff{child, epoch};
    case wire::ChildEvent::kHandoffFailed: {
      const auto& failed = from.handoff_failed();
      check->AtMost("handoff_failed.detail length", failed.detail().size(), kMaxWireText);
      return HandoffFailed{child, epoch,
                           ToEnum(check, "handoff_failed.why", failed.why(), HandoffFailure::kNotAdmitted),
                           failed.detail()};
    }
    case wire::ChildEvent::kRunning:
      return Running{child, epoch};
    case wire::ChildEvent::kNotHeld:
      return NotHeld{child, epoch};
    case wire::ChildEvent::kFailed: {
      ChildFailed event{child, epoch, GetStatus(from.failed(), check)};
      if (event.why.ok()) check->Fail("failed.code", "a failure with code OK");
      return event;
    }
    case wire::ChildEvent::kReceipt:
      return ReceiptEvent{child, epoch, GetReceipt(from.receipt(), check)};
    case wire::ChildEvent::KIND_NOT_SET:
      break;
  }
  check->Fail("event", "of no known kind");
  return NotHeld{};
}

// ---- heartbeat, cache, hello ------------------------------------------------------------------------------

void Put(const Heartbeat& from, wire::Heartbeat* to) {
  to->set_steps(from.steps);
  to->set_step_overdue_in_ns(from.step_overdue_in.count());
  to->set_draining(from.draining);
  to->set_idle(from.idle);
  codec::Put(from.roles, to->mutable_roles());
  to->set_order(from.order);
  to->set_waiting(from.waiting);
  to->set_running(from.running);
  to->set_queued_tokens(from.queued_tokens);
  to->set_context_tokens(from.context_tokens);
  to->set_queued_work_ns(from.queued_work.count());
  to->mutable_free_blocks()->Add(from.free_blocks.begin(), from.free_blocks.end());
  to->mutable_quarantined_blocks()->Add(from.quarantined_blocks.begin(), from.quarantined_blocks.end());
  for (const Quarantine& q : from.quarantines) {
    wire::Quarantine* out = to->add_quarantines();
    codec::Put(q.writer, out->mutable_writer());
    out->set_pid(q.pid);
    out->set_blocks(q.blocks);
    out->set_age_ns(q.age.count());
    out->set_stuck(q.stuck);
  }
  for (const ChildId& child : from.once_hit_in_step) codec::Put(child, to->add_once_hit_in_step());
  to->mutable_cost()->Add(from.cost.begin(), from.cost.end());
}

Heartbeat GetHeartbeat(const wire::Heartbeat& from, Checker* check) {
  Heartbeat beat;
  beat.steps = from.steps();
  beat.step_overdue_in = Duration(from.step_overdue_in_ns());
  beat.draining = from.draining();
  beat.idle = from.idle();
  beat.order = from.order();
  beat.roles = GetRoles(from.roles());
  beat.waiting = from.waiting();
  beat.running = from.running();
  beat.queued_tokens = from.queued_tokens();
  beat.context_tokens = from.context_tokens();
  beat.queued_work = Duration(from.queued_work_ns());
  check->NotNegative("heartbeat.queued_work", from.queued_work_ns());
  beat.free_blocks = GetGroupCounts("heartbeat.free_blocks", from.free_blocks(), check);
  beat.quarantined_blocks = GetGroupCounts("heartbeat.quarantined_blocks", from.quarantined_blocks(), check);
  check->AtMost("heartbeat.quarantines", from.quarantines_size(), kMaxWireQuarantines);
  check->AtMost("heartbeat.once_hit_in_step", from.once_hit_in_step_size(), kMaxWireOnceHit);
  check->AtMost("heartbeat.cost", from.cost_size(), kMaxWireCost);
  if (!check->ok()) return beat;
  for (const wire::Quarantine& q : from.quarantines()) {
    check->NotNegative("heartbeat.quarantines.age", q.age_ns());
    beat.quarantines.push_back({GetProcess(q.writer(), check), q.pid(), q.blocks(), Duration(q.age_ns()), q.stuck()});
  }
  for (const wire::ChildId& child : from.once_hit_in_step()) beat.once_hit_in_step.push_back(GetChild(child));
  for (double coefficient : from.cost()) check->Finite("heartbeat.cost", coefficient);
  beat.cost.assign(from.cost().begin(), from.cost().end());
  return beat;
}

void Put(const WorkerReport& from, wire::WorkerReport* to) {
  to->set_uptime_ns(from.uptime.count());
  to->set_transport(from.transport);
  for (const BlockReport& blocks : from.blocks) {
    wire::BlockReport* out = to->add_blocks();
    out->set_free(blocks.free);
    out->set_owned(blocks.owned);
    out->set_cached(blocks.cached);
    out->set_quarantined(blocks.quarantined);
  }
  to->mutable_tickets()->Add(from.tickets.begin(), from.tickets.end());
  to->mutable_sends()->Add(from.sends.begin(), from.sends.end());
  for (const PeerReport& peer : from.peers) {
    wire::PeerReport* out = to->add_peers();
    out->set_name(peer.name);
    out->set_incarnation(peer.incarnation);
    out->set_up(peer.up);
    out->set_writes_here(peer.writes_here);
    out->set_one_sided(peer.mode == TransferMode::kOneSided);
    out->set_mode(static_cast<uint32_t>(peer.mode) + 1);
    out->set_lane(peer.lane);
    out->set_hand_offs(peer.hand_offs);
    out->set_quarantined_blocks(peer.quarantined_blocks);
    out->set_oldest_quarantine_ns(peer.oldest_quarantine.count());
    out->set_bytes(peer.bytes);
    out->set_transfer_time_ns(peer.transfer_time.count());
    out->set_bytes_per_second(peer.bytes_per_second);
    out->set_in_flight_bytes(peer.in_flight_bytes);
    out->set_queued_bytes(peer.queued_bytes);
    out->set_credit_bytes(peer.credit_bytes);
    out->set_credit_tickets(peer.credit_tickets);
    out->mutable_states()->Add(peer.states.begin(), peer.states.end());
  }
  for (const Metric& metric : from.metrics) {
    wire::Metric* out = to->add_metrics();
    out->set_name(metric.name);
    out->set_value(metric.value);
  }
}

WorkerReport GetReport(const wire::WorkerReport& from, Checker* check) {
  WorkerReport report;
  report.uptime = Duration(from.uptime_ns());
  report.transport = from.transport();
  check->NotNegative("report.uptime", from.uptime_ns());
  check->AtMost("report.transport length", from.transport().size(), kMaxWireName);
  check->PlainWord("report.transport", from.transport());
  check->AtMost("report.blocks", from.blocks_size(), kMaxWireGroups);
  report.tickets = GetGroupCounts("report.tickets", from.tickets(), check);
  report.sends = GetGroupCounts("report.sends", from.sends(), check);
  check->AtMost("report.peers", from.peers_size(), kMaxWirePeers);
  check->AtMost("report.metrics", from.metrics_size(), kMaxWireMetrics);
  if (!check->ok()) return report;
  for (const wire::BlockReport& blocks : from.blocks()) {
    report.blocks.push_back({blocks.free(), blocks.owned(), blocks.cached(), blocks.quarantined()});
  }
  for (const wire::PeerReport& peer : from.peers()) {
    PeerReport& to = report.peers.emplace_back();
    to.name = peer.name();
    to.incarnation = peer.incarnation();
    to.up = peer.up();
    to.writes_here = peer.writes_here();
    to.mode = peer.one_sided() ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
    if (peer.mode() != 0) to.mode = ToEnum(check, "report.peer.mode", peer.mode() - 1, TransferMode::kKeyedPut);
    to.lane = peer.lane();
    to.hand_offs = peer.hand_offs();
    to.quarantined_blocks = peer.quarantined_blocks();
    to.oldest_quarantine = Duration(peer.oldest_quarantine_ns());
    to.bytes = peer.bytes();
    to.transfer_time = Duration(peer.transfer_time_ns());
    to.bytes_per_second = peer.bytes_per_second();
    to.in_flight_bytes = peer.in_flight_bytes();
    to.queued_bytes = peer.queued_bytes();
    to.credit_bytes = peer.credit_bytes();
    to.credit_tickets = peer.credit_tickets();
    to.states = GetGroupCounts("report.peer.states", peer.states(), check);
    check->AtMost("report.peer.lane length", peer.lane().size(), kMaxWireName);
    check->PlainWord("report.peer.lane", peer.lane());
    check->Finite("report.peer.bytes_per_second", peer.bytes_per_second());
    check->AtMost("report.peer.name length", peer.name().size(), kMaxWireName);
    check->PlainWord("report.peer.name", peer.name());
    check->NotNegative("report.peer.oldest_quarantine", peer.oldest_quarantine_ns());
    check->NotNegative("report.peer.transfer_time", peer.transfer_time_ns());
  }
  for (const wire::Metric& metric : from.metrics()) {
    check->AtMost("report.metric.name length", metric.name().size(), kMaxWireMetricName);
    check->PlainWord("report.metric.name", metric.name());
    check->Finite("report.metric.value", metric.value());
    report.metrics.push_back({metric.name(), metric.value()});
  }
  return report;
}

WorkerHello GetHello(const wire::WorkerHello& from, Checker* check) {
  WorkerHello hello;
  check->Require("hello.layout", from.has_layout());
  hello.self = GetPeer(from.self(), check);
  hello.roles = GetRoles(from.roles());
  hello.model = GetModel(from.model(), check);
  hello.layout = GetLayout(from.layout(), check);
  hello.num_blocks = GetGroupCounts("hello.num_blocks", from.num_blocks(), check);
  if (hello.num_blocks.size() != hello.layout.groups.size()) {
    check->Fail("hello.num_blocks", "has not one number per group of the layout");
  }
  hello.numeric = GetHash(from.numeric());
  hello.max_context_tokens = from.max_context_tokens();
  hello.submit_credits = from.submit_credits();
  hello.draining = from.draining();
  hello.protocol = from.protocol();
  check->AtLeast("hello.self.process.name length", hello.self.process.name.size(), 1);
  return hello;
}

// ---- commands ---------------------------------------------------------------------------------------------

struct CommandWriter {
  wire::FrontCommand* to;

  void operator()(const FrontHello& hello) const {
    codec::Put(hello.front, to->mutable_hello()->mutable_front());
    to->mutable_hello()->set_fingerprint(hello.fingerprint);
  }
  void operator()(const PrefillCommand& command) const {
    wire::PrefillCommand* prefill = to->mutable_prefill();
    codec::Put(*command.request, prefill->mutable_request());
    codec::Put(command.progress, prefill->mutable_progress());
    prefill->set_epoch(command.epoch);
    codec::Put(command.decode, prefill->mutable_decode());
  }
  void operator()(const DecodeCommand& command) const {
    wire::DecodeCommand* decode = to->mutable_decode();
    codec::Put(*command.request, decode->mutable_request());
    codec::Put(command.progress, decode->mutable_progress());
    decode->set_epoch(command.epoch);
  }
  void operator()(const CancelCommand& command) const {
    codec::Put(command.child, to->mutable_cancel()->mutable_child());
    to->mutable_cancel()->set_epoch(command.epoch);
  }
  void operator()(const AdoptCommand& command) const {
    codec::Put(command.child, to->mutable_adopt()->mutable_child());
    to->mutable_adopt()->set_epoch(command.epoch);
    to->mutable_adopt()->set_once_hit(command.once_hit);
  }
  void operator()(const MigrateCommand& command) const {
    wire::Migrate* migrate = to->mutable_migrate();
    codec::Put(command.child, migrate->mutable_child());
    migrate->set_epoch(command.epoch);
    migrate->set_next(command.next);
    migrate->set_delivered(command.delivered);
    codec::Put(command.to, migrate->mutable_to());
  }
  void operator()(const DrainCommand& command) const {
    to->mutable_drain()->set_order(command.order);
    to->mutable_drain()->set_undo(command.undo);
  }
  void operator()(const SetRoleCommand& command) const {
    to->mutable_set_role()->set_order(command.order);
    codec::Put(command.roles, to->mutable_set_role()->mutable_roles());
  }
  void operator()(const CacheResyncCommand&) const { to->mutable_cache_resync(); }
};

FrontCommand GetCommand(const wire::FrontCommand& in, Checker* check) {
  switch (in.kind_case()) {
    case wire::FrontCommand::kHello:
      return FrontHello{GetProcess(in.hello().front(), check), in.hello().fingerprint()};
    case wire::FrontCommand::kPrefill: {
      const wire::PrefillCommand& from = in.prefill();
      check->AtLeast("prefill.epoch", from.epoch(), 1);
      return PrefillCommand{GetRequest(from.request(), check), GetProgress(from.progress(), check), from.epoch(),
                            GetPeer(from.decode(), check)};
    }
    case wire::FrontCommand::kDecode: {
      const wire::DecodeCommand& from = in.decode();
      check->AtLeast("decode.epoch", from.epoch(), 1);
      return DecodeCommand{GetRequest(from.request(), check), GetProgress(from.progress(), check), from.epoch()};
    }
    case wire::FrontCommand::kCancel:
      return CancelCommand{GetChild(in.cancel().child()), in.cancel().epoch()};
    case wire::FrontCommand::kAdopt:
      return AdoptCommand{GetChild(in.adopt().child()), in.adopt().epoch(), in.adopt().once_hit()};
    case wire::FrontCommand::kMigrate: {
      const wire::Migrate& from = in.migrate();
      check->AtLeast("migrate.epoch", from.epoch(), 1);
      check->AtLeast("migrate.next", from.next(), uint64_t{from.epoch()} + 1);
      return MigrateCommand{GetChild(from.child()), from.epoch(), from.next(), from.delivered(),
                            GetPeer(from.to(), check)};
    }
    case wire::FrontCommand::kDrain:
      return DrainCommand{in.drain().order(), in.drain().undo()};
    case wire::FrontCommand::kSetRole: {
      const RoleMask roles = GetRoles(in.set_role().roles());
      if (!roles.prefill && !roles.decode) check->Fail("set_role.roles", "neither prefill nor decode");
      return SetRoleCommand{in.set_role().order(), roles};
    }
    case wire::FrontCommand::kCacheResync:
      return CacheResyncCommand{};
    case wire::FrontCommand::KIND_NOT_SET:
      break;
  }
  check->Fail("command", "of no known kind");
  return DrainCommand{};
}

}  // namespace

void Encode(const WorkerMessage& message, wire::WorkerMessage* out) {
  if (const auto* hello = std::get_if<WorkerHello>(&message)) {
    wire::WorkerHello* to = out->mutable_hello();
    codec::Put(hello->self, to->mutable_self());
    codec::Put(hello->roles, to->mutable_roles());
    codec::Put(hello->model, to->mutable_model());
    codec::Put(hello->layout, to->mutable_layout());
    to->mutable_num_blocks()->Add(hello->num_blocks.begin(), hello->num_blocks.end());
    codec::Put(hello->numeric, to->mutable_numeric());
    to->set_max_context_tokens(hello->max_context_tokens);
    to->set_submit_credits(hello->submit_credits);
    to->set_draining(hello->draining);
    to->set_protocol(hello->protocol);
    return;
  }
  const auto& batch = std::get<WorkerBatch>(message);
  wire::WorkerBatch* to = out->mutable_batch();
  for (const ChildEvent& event : batch.events) std::visit(EventWriter{to->add_events()}, event);
  Put(batch.heartbeat, to->mutable_heartbeat());
  to->mutable_cache()->set_sequence(batch.cache.sequence);
  to->mutable_cache()->set_snapshot(batch.cache.snapshot);
  codec::Put(batch.cache.stored, to->mutable_cache()->mutable_stored());
  codec::Put(batch.cache.removed, to->mutable_cache()->mutable_removed());
  for (const WorkerReport& report : batch.report) Put(report, to->add_report());
}

void Encode(const FrontCommand& command, wire::FrontCommand* out) { std::visit(CommandWriter{out}, command); }

StatusOr<WorkerMessage> Decode(const wire::WorkerMessage& in) {
  Checker check;
  WorkerMessage out;
  switch (in.kind_case()) {
    case wire::WorkerMessage::kHello:
      out = GetHello(in.hello(), &check);
      break;
    case wire::WorkerMessage::kBatch: {
      WorkerBatch batch;
      batch.events.reserve(in.batch().events_size());
      for (const wire::ChildEvent& event : in.batch().events()) batch.events.push_back(GetEvent(event, &check));
      check.Require("batch.heartbeat", in.batch().has_heartbeat());
      batch.heartbeat = GetHeartbeat(in.batch().heartbeat(), &check);
      batch.cache.sequence = in.batch().cache().sequence();
      batch.cache.snapshot = in.batch().cache().snapshot();
      batch.cache.stored = GetHashes("cache.stored", in.batch().cache().stored(), &check);
      batch.cache.removed = GetHashes("cache.removed", in.batch().cache().removed(), &check);
      check.AtMost("batch.report", in.batch().report_size(), 1);
      if (check.ok() && in.batch().report_size() == 1) {
        batch.report.push_back(GetReport(in.batch().report(0), &check));
      }
      out = std::move(batch);
      break;
    }
    case wire::WorkerMessage::KIND_NOT_SET:
      check.Fail("message", "of no known kind");
      break;
  }
  if (!check.ok()) return check.status().Annotate("worker message");
  return out;
}

StatusOr<FrontCommand> Decode(const wire::FrontCommand& in) {
  Checker check;
  FrontCommand out = GetCommand(in, &check);
  if (!check.ok()) return check.status().Annotate("router command");
  return out;
}

}  // namespace baton

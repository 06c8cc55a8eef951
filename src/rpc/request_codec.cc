#include "rpc/request_codec.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "baton/internal/v1/rpc_status.pb.h"
#include "baton/v1/cluster.pb.h"
#include "baton/v1/inference.pb.h"
#include "rpc/inference_client.h"

namespace baton {

namespace {

// Lists what the client set and nobody serves yet.
class Unsupported {
 public:
  explicit Unsupported(std::vector<std::string>* names) : names_(names) {}
  void If(bool is_set, std::string name) {
    if (is_set) names_->push_back(std::move(name));
  }

 private:
  std::vector<std::string>* names_;
};

void SamplingFromWire(const v1::Sampling& in, ClientRequest* out) {
  Unsupported unsupported(&out->unsupported);
  if (in.has_temperature()) out->temperature = in.temperature();
  if (in.has_top_p()) out->top_p = in.top_p();
  if (in.has_top_k()) out->top_k = in.top_k();
  if (in.has_seed()) out->seed = in.seed();
  if (in.has_n()) out->n = in.n();
  // A map has no order of its own; ascending ids make equal requests equal.
  const std::map<int32_t, float> bias(in.logit_bias().begin(), in.logit_bias().end());
  out->logit_bias.assign(bias.begin(), bias.end());
  unsupported.If(in.has_min_p() && in.min_p() != 0, "sampling.min_p");
  unsupported.If(in.has_repetition_penalty() && in.repetition_penalty() != 1, "sampling.repetition_penalty");
  unsupported.If(in.has_frequency_penalty() && in.frequency_penalty() != 0, "sampling.frequency_penalty");
  unsupported.If(in.has_presence_penalty() && in.presence_penalty() != 0, "sampling.presence_penalty");
}

void StoppingFromWire(const v1::Stopping& in, ClientRequest* out) {
  if (in.has_max_tokens()) out->max_tokens = in.max_tokens();
  if (in.has_min_tokens()) out->min_tokens = in.min_tokens();
  out->stop.assign(in.stop().begin(), in.stop().end());
  out->stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out->ignore_eos = in.ignore_eos();
  out->include_stop_text = in.include_stop_text();
}

void OutputFromWire(const v1::Output& in, ClientRequest* out) {
  Unsupported unsupported(&out->unsupported);
  if (in.has_text()) out->want_text = in.text();
  out->want_token_ids = in.token_ids();
  if (in.has_logprobs()) out->logprobs = in.logprobs();
  if (in.has_skip_special_tokens()) out->skip_special_tokens = in.skip_special_tokens();
  out->timings = in.timings();
  unsupported.If(in.has_prompt_logprobs(), "output.prompt_logprobs");
  unsupported.If(in.usage_every_event(), "output.usage_every_event");
}

PlacementHint HintFromWire(v1::Placement::Mode mode) {
  switch (mode) {
    case v1::Placement::DISAGGREGATED:
      return PlacementHint::kDisaggregated;
    case v1::Placement::COLOCATED:
      return PlacementHint::kColocated;
    default:
      return PlacementHint::kAuto;
  }
}

v1::Placement::Mode HintToWire(PlacementHint hint) {
  switch (hint) {
    case PlacementHint::kDisaggregated:
      return v1::Placement::DISAGGREGATED;
    case PlacementHint::kColocated:
      return v1::Placement::COLOCATED;
    case PlacementHint::kAuto:
      break;
  }
  return v1::Placement::AUTO;
}

}  // namespace

// ---- requests ---------------------------------------------------------------------------------------------

ChatPrompt FromWire(const v1::Chat& in, const std::string& prefix, std::vector<std::string>* names) {
  Unsupported unsupported(names);
  ChatPrompt chat;
  bool name = false, call_id = false, calls = false;
  for (const v1::ChatMessage& message : in.messages()) {
    chat.messages.push_back({message.role(), message.content(), ""});
    name |= !message.name().empty();
    call_id |= !message.tool_call_id().empty();
    calls |= !message.tool_calls().empty();
  }
  if (in.has_add_generation_prompt()) chat.add_generation_prompt = in.add_generation_prompt();
  unsupported.If(in.tools_size() > 0, prefix + ".tools");
  unsupported.If(!in.tool_choice().empty(), prefix + ".tool_choice");
  unsupported.If(!in.template_kwargs().empty(), prefix + ".template_kwargs");
  unsupported.If(in.continue_final(), prefix + ".continue_final");
  unsupported.If(name, prefix + ".messages.name");
  unsupported.If(call_id, prefix + ".messages.tool_call_id");
  unsupported.If(calls, prefix + ".messages.tool_calls");
  return chat;
}

StatusOr<ClientRequest> FromWire(const v1::GenerateRequest& in) {
  ClientRequest out;
  out.request_id = in.request_id();
  out.model = in.model();
  switch (in.prompt_case()) {
    case v1::GenerateRequest::kText:
      out.prompt = TextPrompt{in.text()};
      break;
    case v1::GenerateRequest::kTokenIds:
      out.prompt = TokenPrompt{{in.token_ids().ids().begin(), in.token_ids().ids().end()}};
      break;
    case v1::GenerateRequest::kChat:
      out.prompt = FromWire(in.chat(), "chat", &out.unsupported);
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  SamplingFromWire(in.sampling(), &out);
  StoppingFromWire(in.stopping(), &out);
  OutputFromWire(in.output(), &out);
  out.priority = in.priority();
  out.cache_salt = in.cache().salt();
  out.placement = HintFromWire(in.placement().mode());
  out.prefill_worker = in.placement().prefill_worker();
  out.decode_worker = in.placement().decode_worker();
  if (in.slo().has_e2e_ms()) {
    const double ms = in.slo().e2e_ms();
    if (!(ms > 0) || !std::isfinite(ms)) {
      return InvalidArgumentError("slo.e2e_ms: " + std::to_string(ms) + " is no positive number");
    }
    out.deadline = FromSeconds(std::min(ms / 1e3, 1e8));
  }
  Unsupported unsupported(&out.unsupported);
  unsupported.If(in.has_constraint() && in.constraint().kind_case() != v1::Constraint::KIND_NOT_SET, "constraint");
  unsupported.If(in.media_size() > 0, "media");
  unsupported.If(in.slo().has_ttft_ms(), "slo.ttft_ms");
  unsupported.If(in.slo().has_tpot_ms(), "slo.tpot_ms");
  unsupported.If(in.cache().no_store(), "cache.no_store");
  unsupported.If(!in.cache().session_id().empty(), "cache.session_id");
  unsupported.If(!in.adapter().empty(), "adapter");
  unsupported.If(!v1::Placement::Mode_IsValid(in.placement().mode()), "placement.mode");
  return out;
}

void ToWire(const ChatPrompt& in, v1::Chat* out) {
  for (const ChatMessage& turn : in.messages) {
    v1::ChatMessage* message = out->add_messages();
    message->set_role(turn.role);
    message->set_content(turn.content);
  }
  out->set_add_generation_prompt(in.add_generation_prompt);
}

void ToWire(const ClientRequest& in, v1::GenerateRequest* out) {
  out->set_request_id(in.request_id);
  out->set_model(in.model);
  if (const auto* text = std::get_if<TextPrompt>(&in.prompt)) out->set_text(text->text);
  if (const auto* tokens = std::get_if<TokenPrompt>(&in.prompt)) {
    v1::TokenIds* ids = out->mutable_token_ids();
    for (int64_t id : tokens->ids) ids->add_ids(static_cast<int32_t>(id));
  }
  if (const auto* chat = std::get_if<ChatPrompt>(&in.prompt)) ToWire(*chat, out->mutable_chat());
  v1::Sampling* sampling = out->mutable_sampling();
  if (in.temperature) sampling->set_temperature(static_cast<float>(*in.temperature));
  if (in.top_p) sampling->set_top_p(static_cast<float>(*in.top_p));
  if (in.top_k) sampling->set_top_k(static_cast<int32_t>(*in.top_k));
  if (in.seed) sampling->set_seed(*in.seed);
  if (in.n) sampling->set_n(static_cast<int32_t>(*in.n));
  for (const auto& [id, bias] : in.logit_bias) {
    (*sampling->mutable_logit_bias())[static_cast<int32_t>(id)] = static_cast<float>(bias);
  }
  v1::Stopping* stopping = out->mutable_stopping();
  if (in.max_tokens) stopping->set_max_tokens(static_cast<int32_t>(*in.max_tokens));
  if (in.min_tokens) stopping->set_min_tokens(static_cast<int32_t>(*in.min_tokens));
  for (const std::string& stop : in.stop) stopping->add_stop(stop);
  for (int64_t id : in.stop_token_ids) stopping->add_stop_token_ids(static_cast<int32_t>(id));
  if (in.ignore_eos) stopping->set_ignore_eos(true);
  if (in.include_stop_text) stopping->set_include_stop_text(true);
  v1::Output* output = out->mutable_output();
  output->set_text(in.want_text);
  output->set_token_ids(in.want_token_ids);
  output->set_skip_special_tokens(in.skip_special_tokens);
  output->set_timings(in.timings);
  if (in.logprobs) output->set_logprobs(static_cast<int32_t>(*in.logprobs));
  if (in.priority != 0) out->set_priority(static_cast<int32_t>(in.priority));
  if (!in.cache_salt.empty()) out->mutable_cache()->set_salt(in.cache_salt);
  v1::Placement* placement = out->mutable_placement();
  placement->set_mode(HintToWire(in.placement));
  placement->set_prefill_worker(in.prefill_worker);
  placement->set_decode_worker(in.decode_worker);
}

// ---- events -----------------------------------------------------------------------------------------------

namespace {

uint64_t Micros(Duration d) { return d.count() <= 0 ? 0 : static_cast<uint64_t>(d.count()) / 1000; }
Duration FromMicros(uint64_t us) { return std::chrono::microseconds(std::min<uint64_t>(us, uint64_t{1} << 52)); }

v1::FinishReason ReasonToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kNone:
      break;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}
FinishReason ReasonFromWire(v1::FinishReason reason) {
  if (reason == v1::FINISH_REASON_STOP) return FinishReason::kStop;
  if (reason == v1::FINISH_REASON_LENGTH) return FinishReason::kLength;
  return FinishReason::kNone;
}

void LogprobsToWire(const std::vector<OutputToken>& in, google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* out) {
  for (const OutputToken& token : in) {
    v1::TokenLogprobs* to = out->Add();
    to->set_token_id(token.id);
    to->set_logprob(token.logprob);
    for (const TokenLogprob& top : token.top) {
      v1::TopLogprob* t = to->add_top();
      t->set_token_id(top.id);
      t->set_logprob(top.logprob);
    }
  }
}
std::vector<OutputToken> LogprobsFromWire(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& in) {
  std::vector<OutputToken> out;
  for (const v1::TokenLogprobs& token : in) {
    OutputToken& to = out.emplace_back(OutputToken{token.token_id(), token.logprob(), {}});
    for (const v1::TopLogprob& top : token.top()) to.top.push_back({top.token_id(), top.logprob()});
  }
  return out;
}

void StartedToWire(const Started& in, v1::Started* out) {
  out->set_request_id(in.request_id);
  out->set_model(in.model);
  out->set_prompt_tokens(in.prompt_tokens);
  out->set_cached_tokens(in.cached_tokens);
  out->set_prefill_worker(in.prefill_worker);
  out->set_decode_worker(in.decode_worker);
}
Started StartedFromWire(const v1::Started& in) {
  return {in.request_id(), in.model(), in.prompt_tokens(), in.cached_tokens(), in.prefill_worker(), in.decode_worker()};
}

void ReceiptToWire(const Receipt& in, v1::Receipt* out) {
  out->set_queue_us(Micros(in.queue));
  out->set_prefill_us(Micros(in.prefill));
  out->set_reserve_us(Micros(in.reserve));
  out->set_transfer_us(Micros(in.transfer));
  out->set_exposed_us(Micros(in.exposed));
  out->set_transfer_bytes(in.transfer_bytes);
  out->set_transfer_blocks(in.transfer_blocks);
  out->set_hidden_bytes(in.hidden_bytes);
  out->set_prompt_tokens(in.prompt_tokens);
  out->set_cached_tokens(in.cached_tokens);
  out->set_preemptions(in.preemptions);
}
Receipt ReceiptFromWire(const v1::Receipt& in) {
  Receipt out;
  out.queue = FromMicros(in.queue_us());
  out.prefill = FromMicros(in.prefill_us());
  out.reserve = FromMicros(in.reserve_us());
  out.transfer = FromMicros(in.transfer_us());
  out.exposed = FromMicros(in.exposed_us());
  out.transfer_bytes = in.transfer_bytes();
  out.transfer_blocks = in.transfer_blocks();
  out.hidden_bytes = in.hidden_bytes();
  out.prompt_tokens = in.prompt_tokens();
  out.cached_tokens = in.cached_tokens();
  out.preemptions = in.preemptions();
  return out;
}

void UsageToWire(const Usage& in, v1::Usage* out) {
  out->set_prompt_tokens(in.prompt_tokens);
  out->set_completion_tokens(in.completion_tokens);
  out->set_cached_tokens(in.cached_tokens);
}
Usage UsageFromWire(const v1::Usage& in) { return {in.prompt_tokens(), in.completion_tokens(), in.cached_tokens()}; }

void TimingsToWire(const Timings& in, v1::Timings* out) {
  out->set_first_dispatch_us(Micros(in.first_dispatch));
  out->set_first_token_us(Micros(in.first_token));
  out->set_last_token_us(Micros(in.last_token));
  out->set_done_us(Micros(in.done));
  out->set_tokens_per_second(in.tokens_per_second);
  out->set_placements(in.placements);
  out->set_retries(in.retries);
  out->set_migrations(in.migrations);
  out->set_disaggregated(in.disaggregated);
  out->set_placement_why(in.placement_why);
  out->set_prefill_worker(in.prefill_worker);
  out->set_decode_worker(in.decode_worker);
  ReceiptToWire(in.prefill, out->mutable_prefill());
  ReceiptToWire(in.decode, out->mutable_decode());
}
Timings TimingsFromWire(const v1::Timings& in) {
  Timings out;
  out.first_dispatch = FromMicros(in.first_dispatch_us());
  out.first_token = FromMicros(in.first_token_us());
  out.last_token = FromMicros(in.last_token_us());
  out.done = FromMicros(in.done_us());
  out.tokens_per_second = in.tokens_per_second();
  out.placements = in.placements();
  out.retries = in.retries();
  out.migrations = in.migrations();
  out.disaggregated = in.disaggregated();
  out.placement_why = in.placement_why();
  out.prefill_worker = in.prefill_worker();
  out.decode_worker = in.decode_worker();
  out.prefill = ReceiptFromWire(in.prefill());
  out.decode = ReceiptFromWire(in.decode());
  return out;
}

v1::Choice* ChoiceOf(uint32_t index, v1::GenerateResult* result) {
  while (result->choices_size() <= static_cast<int>(index)) {
    result->add_choices()->set_index(result->choices_size() - 1);
  }
  return result->mutable_choices(static_cast<int>(index));
}

}  // namespace

void ToWire(const ClientEvent& in, bool timings, v1::GenerateEvent* out) {
  if (const auto* started = std::get_if<Started>(&in)) {
    StartedToWire(*started, out->mutable_started());
  } else if (const auto* delta = std::get_if<Delta>(&in)) {
    v1::Delta* to = out->mutable_delta();
    to->set_index(delta->choice);
    to->set_text(delta->text);
    to->mutable_token_ids()->Add(delta->token_ids.begin(), delta->token_ids.end());
    LogprobsToWire(delta->logprobs, to->mutable_logprobs());
  } else if (const auto* finished = std::get_if<Finished>(&in)) {
    v1::Finished* to = out->mutable_finished();
    to->set_index(finished->choice);
    to->set_reason(ReasonToWire(finished->reason));
    to->set_matched_stop(finished->matched_stop);
    if (finished->matched_token >= 0) to->set_matched_token_id(static_cast<int32_t>(finished->matched_token));
  } else if (const auto* done = std::get_if<Done>(&in)) {
    UsageToWire(done->usage, out->mutable_done()->mutable_usage());
    if (timings) TimingsToWire(done->timings, out->mutable_done()->mutable_timings());
  }
}

bool FromWire(const v1::GenerateEvent& in, ClientEvent* out) {
  switch (in.event_case()) {
    case v1::GenerateEvent::kStarted:
      *out = StartedFromWire(in.started());
      return true;
    case v1::GenerateEvent::kDelta:
      *out = Delta{in.delta().index(),
                   in.delta().text(),
                   {in.delta().token_ids().begin(), in.delta().token_ids().end()},
                   LogprobsFromWire(in.delta().logprobs())};
      return true;
    case v1::GenerateEvent::kFinished:
      *out = Finished{in.finished().index(), ReasonFromWire(in.finished().reason()), in.finished().matched_stop(),
                      in.finished().has_matched_token_id() ? in.finished().matched_token_id() : -1};
      return true;
    case v1::GenerateEvent::kDone:
      *out = Done{UsageFromWire(in.done().usage()), TimingsFromWire(in.done().timings())};
      return true;
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;
  }
  return false;
}

void AddToResult(const ClientEvent& in, bool timings, v1::GenerateResult* result) {
  if (const auto* started = std::get_if<Started>(&in)) {
    StartedToWire(*started, result->mutable_started());
    result->set_request_id(started->request_id);
    result->set_model(started->model);
  } else if (const auto* delta = std::get_if<Delta>(&in)) {
    v1::Choice* choice = ChoiceOf(delta->choice, result);
    choice->mutable_text()->append(delta->text);
    choice->mutable_token_ids()->Add(delta->token_ids.begin(), delta->token_ids.end());
    LogprobsToWire(delta->logprobs, choice->mutable_logprobs());
  } else if (const auto* finished = std::get_if<Finished>(&in)) {
    v1::Choice* choice = ChoiceOf(finished->choice, result);
    choice->set_reason(ReasonToWire(finished->reason));
    choice->set_matched_stop(finished->matched_stop);
    if (finished->matched_token >= 0) choice->set_matched_token_id(static_cast<int32_t>(finished->matched_token));
  } else if (const auto* done = std::get_if<Done>(&in)) {
    UsageToWire(done->usage, result->mutable_usage());
    if (timings) TimingsToWire(done->timings, result->mutable_timings());
  }
}

std::vector<ClientEvent> FromWire(const v1::GenerateResult& in) {
  std::vector<ClientEvent> out;
  if (in.has_started()) out.push_back(StartedFromWire(in.started()));
  for (const v1::Choice& choice : in.choices()) {
    out.push_back(Delta{choice.index(),
                        choice.text(),
                        {choice.token_ids().begin(), choice.token_ids().end()},
                        LogprobsFromWire(choice.logprobs())});
    out.push_back(Finished{choice.index(), ReasonFromWire(choice.reason()), choice.matched_stop(),
                           choice.has_matched_token_id() ? choice.matched_token_id() : -1});
  }
  out.push_back(Done{UsageFromWire(in.usage()), TimingsFromWire(in.timings())});
  return out;
}

bool MergeDelta(const v1::GenerateEvent& later, v1::GenerateEvent* earlier) {
  if (!later.has_delta() || !earlier->has_delta()) return false;
  if (later.delta().index() != earlier->delta().index()) return false;
  v1::Delta* to = earlier->mutable_delta();
  to->mutable_text()->append(later.delta().text());
  to->mutable_token_ids()->MergeFrom(later.delta().token_ids());
  to->mutable_logprobs()->MergeFrom(later.delta().logprobs());
  return true;
}

// ---- cluster ----------------------------------------------------------------------------------------------

namespace {

constexpr const char* kTicketStates[] = {"reserved", "receiving", "ready", "running", "quarantined"};
constexpr const char* kSendStates[] = {"reserving", "held", "pushing", "committing", "stopping"};

template <size_t N>
void CountsToWire(const std::vector<uint32_t>& counts, const char* const (&names)[N],
                  google::protobuf::Map<std::string, uint32_t>* out) {
  for (size_t i = 0; i < std::min(N, counts.size()); ++i) (*out)[names[i]] = counts[i];
}

void ReportToWire(const WorkerSnapshot& in, v1::WorkerState* out) {
  const WorkerReport& report = in.report;
  if (report.blocks.empty()) return;  // none came yet
  out->set_uptime_us(Micros(report.uptime));
  out->set_report_age_us(Micros(in.report_age));
  out->set_transport(report.transport);
  for (const BlockReport& blocks : report.blocks) {
    v1::BlockState* to = out->add_blocks();
    to->set_free(blocks.free);
    to->set_owned(blocks.owned);
    to->set_cached(blocks.cached);
    to->set_quarantined(blocks.quarantined);
  }
  CountsToWire(report.tickets, kTicketStates, out->mutable_tickets());
  CountsToWire(report.sends, kSendStates, out->mutable_hand_offs());
  for (const PeerReport& peer : report.peers) {
    v1::Lane* lane = out->add_lanes();
    lane->set_peer(peer.name);
    lane->set_incarnation(peer.incarnation);
    lane->set_incoming(peer.writes_here);
    lane->set_up(peer.up);
    lane->set_mode(std::string(Word(peer.mode)));
    lane->set_lane(peer.lane);
    lane->set_hand_offs(peer.hand_offs);
    lane->set_quarantined_blocks(peer.quarantined_blocks);
    lane->set_oldest_quarantine_us(Micros(peer.oldest_quarantine));
    lane->set_bytes(peer.bytes);
    lane->set_bytes_per_second(peer.bytes_per_second);
    lane->set_in_flight_bytes(peer.in_flight_bytes);
    lane->set_queued_bytes(peer.queued_bytes);
    lane->set_credit_bytes(peer.credit_bytes);
    lane->set_credit_tickets(peer.credit_tickets);
    if (peer.writes_here) {
      CountsToWire(peer.states, kTicketStates, lane->mutable_states());
    } else {
      CountsToWire(peer.states, kSendStates, lane->mutable_states());
    }
  }
  for (const Metric& metric : report.metrics) (*out->mutable_metrics())[metric.name] = metric.value;
}

void WorkerToWire(const WorkerSnapshot& in, v1::WorkerState* out) {
  out->set_name(in.process.name);
  out->set_incarnation(in.process.incarnation.counter);
  out->set_address(in.address);
  out->set_prefill(in.roles.prefill);
  out->set_decode(in.roles.decode);
  out->set_draining(in.draining);
  out->set_model(in.model);
  out->set_waiting(in.heartbeat.waiting);
  out->set_running(in.heartbeat.running);
  out->set_queued_tokens(in.heartbeat.queued_tokens);
  out->set_context_tokens(in.heartbeat.context_tokens);
  out->set_steps(in.heartbeat.steps);
  out->set_heard_ago_us(Micros(in.heard_ago));
  out->mutable_total_blocks()->Add(in.num_blocks.begin(), in.num_blocks.end());
  out->mutable_free_blocks()->Add(in.heartbeat.free_blocks.begin(), in.heartbeat.free_blocks.end());
  out->mutable_quarantined_blocks()->Add(in.heartbeat.quarantined_blocks.begin(),
                                         in.heartbeat.quarantined_blocks.end());
  out->set_block_tokens(in.layout.block_tokens);
  out->set_kv_bytes_per_token(in.layout.BytesPerToken());
  out->set_max_context_tokens(in.max_context_tokens);
  out->set_credits(in.credits);
  out->set_credits_used(in.credits_used);
  out->set_cached_pages(in.cached_pages);
  for (const Quarantine& q : in.heartbeat.quarantines) {
    v1::Quarantine* to = out->add_quarantines();
    to->set_writer(q.writer.name);
    to->set_writer_incarnation(q.writer.incarnation.counter);
    to->set_pid(q.pid);
    to->set_blocks(q.blocks);
    to->set_age_us(Micros(q.age));
    to->set_stuck(q.stuck);
  }
  out->set_confirmed(in.confirmed);
  out->set_connected_us(Micros(in.connected_for));
  out->set_prefill_tokens_per_second(in.prefill_tokens_per_second);
  out->set_decode_step_us(in.decode_step_seconds * 1e6);
  ReportToWire(in, out);
}

}  // namespace

void ToWire(const ClusterSnapshot& in, bool serving, v1::ClusterSnapshot* out) {
  out->set_router(in.front.name + "#" + std::to_string(in.front.incarnation.counter));
  out->set_model(in.model);
  out->set_serving(serving);
  out->set_draining(in.draining);
  out->set_live_requests(in.live);
  out->set_queued_requests(in.queued);
  out->set_uptime_us(Micros(in.uptime));
  for (const WorkerSnapshot& worker : in.workers) WorkerToWire(worker, out->add_workers());
  std::sort(out->mutable_workers()->pointer_begin(), out->mutable_workers()->pointer_end(),
            [](const v1::WorkerState* a, const v1::WorkerState* b) { return a->name() < b->name(); });
  const FrontCounters& c = in.counters;
  auto& counters = *out->mutable_counters();
  counters["requests_submitted"] = c.submitted;
  counters["requests_finished"] = c.finished;
  counters["requests_failed"] = c.failed;
  counters["requests_cancelled"] = c.cancelled;
  counters["requests_rejected"] = c.rejected;
  counters["tokens_delivered"] = c.tokens;
  counters["tokens_duplicate"] = c.duplicates;
  counters["replay_faults"] = c.replay_faults;
  counters["index_gaps"] = c.index_gaps;
  counters["finish_faults"] = c.finish_faults;
  counters["stray_events"] = c.stray_events;
  counters["replacements"] = c.replacements;
  counters["adopts"] = c.adopts;
  counters["handoff_failures"] = c.handoff_failures;
  counters["migrations"] = c.migrations;
  counters["migrated"] = c.migrated;
  counters["migrations_failed"] = c.migrations_failed;
  counters["poisoned"] = c.poisoned;
  counters["hung_workers"] = c.hung_workers;
  counters["superseded"] = c.superseded;
}

void ClearAges(v1::ClusterSnapshot* snapshot) {
  snapshot->clear_uptime_us();
  for (v1::WorkerState& worker : *snapshot->mutable_workers()) {
    worker.clear_heard_ago_us();
    worker.clear_connected_us();
    worker.clear_uptime_us();
    worker.clear_report_age_us();
    for (v1::Lane& lane : *worker.mutable_lanes()) lane.clear_oldest_quarantine_us();
  }
}

ClusterDescription FromWire(const v1::ClusterSnapshot& in) {
  ClusterDescription out;
  out.router = in.router();
  out.model = in.model();
  out.serving = in.serving();
  out.draining = in.draining();
  out.live = in.live_requests();
  out.queued = in.queued_requests();
  out.uptime = FromMicros(in.uptime_us());
  for (const v1::WorkerState& worker : in.workers()) {
    WorkerDescription& to = out.workers.emplace_back();
    to.name = worker.name();
    to.incarnation = worker.incarnation();
    to.address = worker.address();
    to.roles = {worker.prefill(), worker.decode()};
    to.draining = worker.draining();
    to.waiting = worker.waiting();
    to.running = worker.running();
    to.steps = worker.steps();
    to.heard_ago = FromMicros(worker.heard_ago_us());
    to.total_blocks.assign(worker.total_blocks().begin(), worker.total_blocks().end());
    to.free_blocks.assign(worker.free_blocks().begin(), worker.free_blocks().end());
    to.quarantined_blocks.assign(worker.quarantined_blocks().begin(), worker.quarantined_blocks().end());
    to.block_tokens = worker.block_tokens();
    for (const v1::Quarantine& q : worker.quarantines()) {
      to.quarantines.push_back(
          {{q.writer(), {q.writer_incarnation(), 0}}, q.pid(), q.blocks(), FromMicros(q.age_us()), q.stuck()});
    }
    to.confirmed = worker.confirmed();
    to.connected_for = FromMicros(worker.connected_us());
    to.uptime = FromMicros(worker.uptime_us());
    to.transport = worker.transport();
    for (const v1::BlockState& b : worker.blocks()) {
      to.blocks.push_back({b.free(), b.owned(), b.cached(), b.quarantined()});
    }
    to.tickets.insert(worker.tickets().begin(), worker.tickets().end());
    to.hand_offs.insert(worker.hand_offs().begin(), worker.hand_offs().end());
    for (const v1::Lane& lane : worker.lanes()) {
      to.lanes.push_back({lane.peer(),
                          lane.incarnation(),
                          lane.incoming(),
                          lane.up(),
                          lane.mode(),
                          lane.hand_offs(),
                          lane.quarantined_blocks(),
                          FromMicros(lane.oldest_quarantine_us()),
                          lane.bytes(),
                          lane.bytes_per_second(),
                          lane.lane(),
                          lane.in_flight_bytes(),
                          lane.queued_bytes(),
                          lane.credit_bytes(),
                          lane.credit_tickets(),
                          {lane.states().begin(), lane.states().end()}});
    }
    to.metrics.insert(worker.metrics().begin(), worker.metrics().end());
    to.prefill_tokens_per_second = worker.prefill_tokens_per_second();
    to.decode_step_seconds = worker.decode_step_us() * 1e-6;
  }
  const std::map<std::string, uint64_t> counters(in.counters().begin(), in.counters().end());
  out.counters.assign(counters.begin(), counters.end());
  return out;
}

// ---- errors -----------------------------------------------------------------------------------------------

std::string CutMessage(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t end = limit - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string EncodeErrorDetail(const Failed& failed) {
  v1::ErrorDetail detail;
  detail.set_reason(failed.reason);
  detail.set_domain("baton");
  if (!failed.request_id.empty()) (*detail.mutable_metadata())["request_id"] = failed.request_id;
  if (failed.retry_after.count() > 0) {
    detail.set_retry_after_ms(std::max<uint64_t>(1, Micros(failed.retry_after) / 1000));
  }
  internal::v1::RpcStatus status;
  status.set_code(static_cast<int32_t>(failed.status.code()));
  status.set_message(failed.status.message());
  status.add_details()->PackFrom(detail);
  return status.SerializeAsString();
}

void DecodeErrorDetail(const std::string& bytes, Failed* failed) {
  internal::v1::RpcStatus status;
  if (bytes.empty() || !status.ParseFromString(bytes)) return;
  for (const google::protobuf::Any& any : status.details()) {
    v1::ErrorDetail detail;
    if (!any.UnpackTo(&detail)) continue;
    failed->reason = detail.reason();
    const auto id = detail.metadata().find("request_id");
    if (id != detail.metadata().end()) failed->request_id = id->second;
    const uint64_t ms = std::min<uint64_t>(detail.retry_after_ms(), 86'400'000);
    failed->retry_after = std::chrono::milliseconds(ms);
  }
}

}  // namespace baton

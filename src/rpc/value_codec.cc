#include "rpc/value_codec.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace baton::codec {

void Checker::Fail(std::string_view field, std::string_view what) {
  if (!status_.ok()) return;
  status_ = InvalidArgumentError(std::string(field) + ": " + std::string(what));
}
void Checker::AtMost(std::string_view field, uint64_t value, uint64_t limit) {
  if (value > limit) Fail(field, std::to_string(value) + " is above the limit of " + std::to_string(limit));
}
void Checker::AtLeast(std::string_view field, uint64_t value, uint64_t limit) {
  if (value < limit) Fail(field, std::to_string(value) + " is below the least of " + std::to_string(limit));
}
void Checker::NotNegative(std::string_view field, int64_t value) {
  if (value < 0) Fail(field, std::to_string(value) + " is negative");
}
void Checker::Require(std::string_view field, bool present) {
  if (!present) Fail(field, "missing");
}
void Checker::PlainWord(std::string_view field, std::string_view value) {
  const bool plain = std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain) Fail(field, "is not printable ASCII without spaces");
}
void Checker::Finite(std::string_view field, double value) {
  if (!std::isfinite(value)) Fail(field, std::to_string(value) + " is not a finite number");
}

std::string CutText(std::string_view text) { return std::string(text.substr(0, kMaxWireText)); }

// ---- to the wire ------------------------------------------------------------------------------------------

void Put(const Status& from, wire::Status* to) {
  to->set_code(static_cast<uint32_t>(from.code()));
  to->set_message(CutText(from.message()));
}
void Put(const Incarnation& from, wire::Incarnation* to) {
  to->set_counter(from.counter);
  to->set_random(from.random);
}
void Put(const ProcessId& from, wire::ProcessId* to) {
  to->set_name(from.name);
  Put(from.incarnation, to->mutable_incarnation());
}
void Put(const ChildId& from, wire::ChildId* to) {
  to->set_front(from.front);
  to->set_number(from.number);
  to->set_choice(from.choice);
}
void Put(const Hash128& from, wire::Hash128* to) {
  to->set_high(from.high);
  to->set_low(from.low);
}
void Put(const PeerAddress& from, wire::PeerAddress* to) {
  Put(from.process, to->mutable_process());
  to->set_address(from.address);
}
void Put(const ModelIdentity& from, wire::ModelIdentity* to) {
  to->set_name(from.name);
  Put(from.weights, to->mutable_weights());
}
void Put(const KvLayout& from, wire::KvLayout* to) {
  to->set_block_tokens(from.block_tokens);
  to->set_tile(static_cast<uint32_t>(from.tile));
  for (const KvGroup& group : from.groups) {
    wire::KvGroup* g = to->add_groups();
    g->set_kind(static_cast<uint32_t>(group.kind));
    g->set_num_layers(group.num_layers);
    g->set_num_kv_heads(group.num_kv_heads);
    g->set_head_dim(group.head_dim);
    g->set_dtype(static_cast<uint32_t>(group.dtype));
  }
}
void Put(const RoleMask& from, wire::RoleMask* to) {
  to->set_prefill(from.prefill);
  to->set_decode(from.decode);
}
void Put(const OutputToken& from, wire::OutputToken* to) {
  to->set_id(from.id);
  to->set_logprob(from.logprob);
  for (const TokenLogprob& top : from.top) {
    wire::TokenLogprob* t = to->add_top();
    t->set_id(top.id);
    t->set_logprob(top.logprob);
  }
}
void Put(const Progress& from, wire::Progress* to) {
  to->mutable_tokens()->Reserve(static_cast<int>(from.tokens.size()));
  for (const OutputToken& token : from.tokens) Put(token, to->add_tokens());
  to->set_delivered(from.delivered);
  to->set_deadline_remaining_ns(from.deadline_remaining.count());
  to->set_once_hit(from.once_hit);
}
void Put(const Request& from, wire::Request* to) {
  Put(from.id, to->mutable_id());
  to->mutable_prompt()->Add(from.prompt.begin(), from.prompt.end());
  wire::Sampling* s = to->mutable_sampling();
  s->set_temperature(from.sampling.temperature);
  s->set_top_k(from.sampling.top_k);
  s->set_top_p(from.sampling.top_p);
  s->set_seed(from.sampling.seed);
  for (const auto& [id, bias] : from.sampling.logit_bias) {
    s->add_bias_ids(id);
    s->add_bias_values(bias);
  }
  s->set_logprobs(from.sampling.logprobs);
  wire::StopRules* stop = to->mutable_stop();
  stop->set_max_tokens(from.stop.max_tokens);
  stop->set_min_tokens(from.stop.min_tokens);
  stop->set_ignore_eos(from.stop.ignore_eos);
  stop->mutable_stop_token_ids()->Add(from.stop.stop_token_ids.begin(), from.stop.stop_token_ids.end());
  stop->mutable_eos_token_ids()->Add(from.stop.eos_token_ids.begin(), from.stop.eos_token_ids.end());
  to->set_priority(from.priority);
  to->set_cache_salt(from.cache_salt);
}
void Put(const std::vector<Hash128>& from, google::protobuf::RepeatedField<uint64_t>* to) {
  to->Reserve(static_cast<int>(2 * from.size()));
  for (const Hash128& hash : from) {
    to->Add(hash.high);
    to->Add(hash.low);
  }
}

// ---- from the wire ----------------------------------------------------------------------------------------

Status GetStatus(const wire::Status& from, Checker* check) {
  const Code code = ToEnum(check, "status.code", from.code(), Code::kUnauthenticated);
  check->AtMost("status.message length", from.message().size(), kMaxWireText);
  return Status(code, from.message());
}
Incarnation GetIncarnation(const wire::Incarnation& from) { return {from.counter(), from.random()}; }
ProcessId GetProcess(const wire::ProcessId& from, Checker* check) {
  check->AtMost("process.name length", from.name().size(), kMaxWireName);
  check->PlainWord("process.name", from.name());
  return {from.name(), GetIncarnation(from.incarnation())};
}
ChildId GetChild(const wire::ChildId& from) { return {from.front(), from.number(), from.choice()}; }
Hash128 GetHash(const wire::Hash128& from) { return {from.high(), from.low()}; }
PeerAddress GetPeer(const wire::PeerAddress& from, Checker* check) {
  check->AtMost("address length", from.address().size(), kMaxWireName);
  check->PlainWord("address", from.address());
  return {GetProcess(from.process(), check), from.address()};
}
ModelIdentity GetModel(const wire::ModelIdentity& from, Checker* check) {
  check->AtMost("model.name length", from.name().size(), kMaxWireName);
  return {from.name(), GetHash(from.weights())};
}

// Bounded so that every product of KvLayout's arithmetic stays far from 64 bits.
KvLayout GetLayout(const wire::KvLayout& from, Checker* check) {
  KvLayout layout;
  layout.block_tokens = from.block_tokens();
  check->AtLeast("layout.block_tokens", layout.block_tokens, kPageTokens);
  check->AtMost("layout.block_tokens", layout.block_tokens, 4096);
  if (layout.block_tokens % kPageTokens != 0) {
    check->Fail("layout.block_tokens", std::to_string(layout.block_tokens) + " is no multiple of 16");
  }
  layout.tile = ToEnum(check, "layout.tile", from.tile(), TileForm::kTokenMajor);
  check->AtLeast("layout.groups", from.groups_size(), 1);
  check->AtMost("layout.groups", from.groups_size(), kMaxWireGroups);
  if (!check->ok()) return layout;
  for (const wire::KvGroup& g : from.groups()) {
    KvGroup group;
    group.kind = ToEnum(check, "layout.kind", g.kind(), KvKind::kFull);
    group.num_layers = g.num_layers();
    group.num_kv_heads = g.num_kv_heads();
    group.head_dim = g.head_dim();
    group.dtype = ToEnum(check, "layout.dtype", g.dtype(), DType::kI8);
    if (group.dtype > DType::kBF16 && group.dtype != DType::kI8) {
      check->Fail("layout.dtype", std::string(Traits(group.dtype).name) + " is a type of weights, not of a KV cache");
    }
    for (uint32_t count : {group.num_layers, group.num_kv_heads, group.head_dim}) {
      check->AtLeast("layout.group", count, 1);
      check->AtMost("layout.group", count, 65536);
    }
    if (group.head_dim % 2 != 0) check->Fail("layout.head_dim", std::to_string(group.head_dim) + " is odd");
    layout.groups.push_back(group);
  }
  return layout;
}
RoleMask GetRoles(const wire::RoleMask& from) { return {from.prefill(), from.decode()}; }

namespace {
void CheckToken(std::string_view field, int32_t id, Checker* check) { check->NotNegative(field, id); }
void CheckLogprob(float value, Checker* check) {
  if (std::isnan(value)) check->Fail("logprob", "is not a number");
}
}  // namespace

OutputToken GetToken(const wire::OutputToken& from, Checker* check) {
  OutputToken token{from.id(), from.logprob(), {}};
  CheckToken("token.id", token.id, check);
  CheckLogprob(token.logprob, check);
  check->AtMost("token.top", from.top_size(), kMaxTopLogprobs);
  if (!check->ok()) return token;
  for (const wire::TokenLogprob& t : from.top()) {
    CheckToken("token.top.id", t.id(), check);
    CheckLogprob(t.logprob(), check);
    token.top.push_back({t.id(), t.logprob()});
  }
  return token;
}
Progress GetProgress(const wire::Progress& from, Checker* check) {
  Progress progress;
  check->AtMost("progress.tokens", from.tokens_size(), kMaxWireTokens);
  check->AtMost("progress.delivered", from.delivered(), from.tokens_size());
  if (!check->ok()) return progress;
  progress.tokens.reserve(from.tokens_size());
  for (const wire::OutputToken& token : from.tokens()) progress.tokens.push_back(GetToken(token, check));
  progress.delivered = from.delivered();
  progress.deadline_remaining = Duration(from.deadline_remaining_ns());
  progress.once_hit = from.once_hit();
  return progress;
}

namespace {
SamplingParams GetSampling(const wire::Sampling& from, Checker* check) {
  SamplingParams s;
  s.temperature = from.temperature();
  s.top_k = from.top_k();
  s.top_p = from.top_p();
  s.seed = from.seed();
  s.logprobs = from.logprobs();
  if (!(s.temperature >= 0 && s.temperature <= 100)) check->Fail("temperature", "is outside [0, 100]");
  if (!(s.top_p > 0 && s.top_p <= 1)) check->Fail("top_p", "is outside (0, 1]");
  if (s.logprobs < -1 || s.logprobs > kMaxTopLogprobs) check->Fail("logprobs", "is outside [-1, 20]");
  check->AtMost("logit_bias", from.bias_ids_size(), kMaxWireBias);
  if (from.bias_ids_size() != from.bias_values_size()) check->Fail("logit_bias", "ids and values differ in number");
  if (!check->ok()) return s;
  for (int i = 0; i < from.bias_ids_size(); ++i) {
    const TokenId id = from.bias_ids(i);
    CheckToken("logit_bias.id", id, check);
    check->Finite("logit_bias.value", from.bias_values(i));
    if (!s.logit_bias.empty() && s.logit_bias.back().first >= id) check->Fail("logit_bias", "ids do not ascend");
    s.logit_bias.emplace_back(id, from.bias_values(i));
  }
  return s;
}
std::vector<TokenId> GetTokenIds(std::string_view field, const google::protobuf::RepeatedField<int32_t>& from,
                                 size_t limit, Checker* check) {
  check->AtMost(field, from.size(), limit);
  if (!check->ok()) return {};
  for (int32_t id : from) CheckToken(field, id, check);
  return {from.begin(), from.end()};
}
}  // namespace

RequestPtr GetRequest(const wire::Request& from, Checker* check) {
  auto request = std::make_shared<Request>();
  check->Require("request.id", from.has_id());
  request->id = GetChild(from.id());
  check->AtLeast("request.prompt", from.prompt_size(), 1);
  request->prompt = GetTokenIds("request.prompt", from.prompt(), kMaxWireTokens, check);
  request->sampling = GetSampling(from.sampling(), check);
  StopRules& stop = request->stop;
  stop.max_tokens = from.stop().max_tokens();
  stop.min_tokens = from.stop().min_tokens();
  stop.ignore_eos = from.stop().ignore_eos();
  check->AtLeast("max_tokens", stop.max_tokens, 1);
  check->AtMost("max_tokens", stop.max_tokens, kMaxWireTokens);
  stop.stop_token_ids = GetTokenIds("stop_token_ids", from.stop().stop_token_ids(), kMaxWireStopIds, check);
  stop.eos_token_ids = GetTokenIds("eos_token_ids", from.stop().eos_token_ids(), kMaxWireStopIds, check);
  request->priority = from.priority();
  check->AtMost("cache_salt length", from.cache_salt().size(), kMaxWireSalt);
  request->cache_salt = from.cache_salt();
  return request;
}
std::vector<Hash128> GetHashes(std::string_view field, const google::protobuf::RepeatedField<uint64_t>& from,
                               Checker* check) {
  std::vector<Hash128> hashes;
  if (from.size() % 2 != 0) check->Fail(field, "holds half a hash");
  if (!check->ok()) return hashes;
  hashes.reserve(from.size() / 2);
  for (int i = 0; i < from.size(); i += 2) hashes.push_back({from.Get(i), from.Get(i + 1)});
  return hashes;
}
std::vector<uint32_t> GetGroupCounts(std::string_view field, const google::protobuf::RepeatedField<uint32_t>& from,
                                     Checker* check) {
  check->AtMost(field, from.size(), kMaxWireGroups);
  if (!check->ok()) return {};
  return {from.begin(), from.end()};
}

}  // namespace baton::codec

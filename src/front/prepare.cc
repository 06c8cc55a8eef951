#include "front/prepare.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "text/stop_strings.h"
#include "text/utf8.h"

namespace baton {
namespace {

template <typename... Args>
Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}

Status CheckId(std::string_view field, const std::string& value, size_t limit) {
  if (value.size() > limit) return Invalid("{}: {} bytes, at most {}", field, value.size(), limit);
  return ValidateUtf8(value, field);
}

// Every token id that a client names lies in the vocabulary.
Status CheckTokens(std::string_view field, const std::vector<int64_t>& ids, uint32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Invalid("{}[{}]: token {} is not in the vocabulary of {}", field, i, ids[i], vocab_size);
    }
  }
  return OkStatus();
}

Status CheckSampling(const ClientRequest& c, uint32_t vocab_size, const FrontLimits& limits, SamplingParams* out) {
  const double temperature = c.temperature.value_or(1.0);
  if (!(temperature >= 0 && temperature <= 100)) {
    return Invalid("sampling.temperature: {} is not in [0, 100]", temperature);
  }
  const double top_p = c.top_p.value_or(1.0);
  if (!(top_p > 0 && top_p <= 1)) return Invalid("sampling.top_p: {} is not in (0, 1]", top_p);
  const int64_t top_k = c.top_k.value_or(0);
  if (top_k < 0) return Invalid("sampling.top_k: {} is negative; 0 means all", top_k);
  if (c.logit_bias.size() > limits.max_logit_bias) {
    return Invalid("sampling.logit_bias: {} entries, at most {}", c.logit_bias.size(), limits.max_logit_bias);
  }
  for (const auto& [id, bias] : c.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return Invalid("sampling.logit_bias: token {} is not in the vocabulary of {}", id, vocab_size);
    }
    if (!(std::abs(bias) <= 1e4)) return Invalid("sampling.logit_bias[{}]: {} is not in [-10000, 10000]", id, bias);
    out->logit_bias.emplace_back(static_cast<TokenId>(id), static_cast<float>(bias));
  }
  std::sort(out->logit_bias.begin(), out->logit_bias.end());
  for (size_t i = 1; i < out->logit_bias.size(); ++i) {
    if (out->logit_bias[i].first == out->logit_bias[i - 1].first) {
      return Invalid("sampling.logit_bias: token {} is named twice", out->logit_bias[i].first);
    }
  }
  if (c.logprobs && (*c.logprobs < 0 || *c.logprobs > kMaxTopLogprobs)) {
    return Invalid("output.logprobs: {} is not in [0, {}]", *c.logprobs, kMaxTopLogprobs);
  }
  out->temperature = static_cast<float>(temperature);
  // A value that rounds to 0 as a float still keeps the most likely token.
  out->top_p = std::max(static_cast<float>(top_p), 1e-9f);
  out->top_k = static_cast<uint32_t>(std::min<int64_t>(top_k, vocab_size));
  out->seed = c.seed.value_or(0);
  out->logprobs = static_cast<int32_t>(c.logprobs.value_or(-1));
  return OkStatus();
}

// `room`: tokens of answer that the context leaves, >= 1.
Status CheckStopping(const ClientRequest& c, const Tokenizer& tokenizer, const FrontLimits& limits, uint32_t prompt,
                     uint32_t room, StopRules* out) {
  const uint32_t wanted = limits.default_max_tokens == 0 ? room : std::min(limits.default_max_tokens, room);
  const int64_t max_tokens = c.max_tokens.value_or(wanted);
  if (max_tokens < 1) return Invalid("stopping.max_tokens: {} is below 1", max_tokens);
  if (max_tokens > room) {
    return Invalid("stopping.max_tokens: {} after a prompt of {} tokens passes the context of {}; at most {} fit",
                   max_tokens, prompt, uint64_t{prompt} + room, room);
  }
  const int64_t min_tokens = c.min_tokens.value_or(0);
  if (min_tokens < 0) return Invalid("stopping.min_tokens: {} is negative", min_tokens);
  if (min_tokens > max_tokens) {
    return Invalid("stopping.min_tokens: {} is above max_tokens {}", min_tokens, max_tokens);
  }
  if (c.stop.size() > limits.max_stop_strings) {
    return Invalid("stopping.stop: {} strings, at most {}", c.stop.size(), limits.max_stop_strings);
  }
  if (Status s = ValidateStopStrings(c.stop); !s.ok()) return s.Annotate("stopping.stop");
  if (c.stop_token_ids.size() > limits.max_stop_token_ids) {
    return Invalid("stopping.stop_token_ids: {} ids, at most {}", c.stop_token_ids.size(), limits.max_stop_token_ids);
  }
  BATON_RETURN_IF_ERROR(CheckTokens("stopping.stop_token_ids", c.stop_token_ids, tokenizer.vocab_size()));
  out->max_tokens = static_cast<uint32_t>(max_tokens);
  out->min_tokens = static_cast<uint32_t>(min_tokens);
  out->ignore_eos = c.ignore_eos;
  out->stop_token_ids.assign(c.stop_token_ids.begin(), c.stop_token_ids.end());
  out->eos_token_ids = tokenizer.eos_ids();
  return OkStatus();
}

StatusOr<std::vector<TextSpan>> RenderChat(const ChatPrompt& prompt, const FrontOptions& options,
                                           const ChatTemplate* chat) {
  if (chat == nullptr) {
    return FailedPreconditionError("chat: this model has no chat template; send text or token_ids");
  }
  if (prompt.messages.empty()) return Invalid("chat.messages: at least one is needed");
  if (prompt.messages.size() > options.limits.max_messages) {
    return Invalid("chat.messages: {} messages, at most {}", prompt.messages.size(), options.limits.max_messages);
  }
  size_t bytes = 0;
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    const ChatMessage& m = prompt.messages[i];
    if (m.role.empty()) return Invalid("chat.messages[{}].role: is empty", i);
    BATON_RETURN_IF_ERROR(ValidateUtf8(m.role, fmt::format("chat.messages[{}].role", i)));
    BATON_RETURN_IF_ERROR(ValidateUtf8(m.content, fmt::format("chat.messages[{}].content", i)));
    bytes += m.role.size() + m.content.size() + m.more_json.size();
  }
  if (bytes > options.limits.max_prompt_bytes) {
    return Invalid("chat.messages: {} bytes, at most {}", bytes, options.limits.max_prompt_bytes);
  }
  RenderOptions render = options.chat;
  render.add_generation_prompt = prompt.add_generation_prompt;
  auto spans = chat->Render(prompt.messages, render);
  if (!spans.ok()) return spans.status().Annotate("chat");
  return spans;
}

std::string ReasonOf(const Status& status) {
  switch (status.code()) {
    case Code::kUnimplemented:
      return "UNSUPPORTED_FIELD";
    case Code::kNotFound:
      return "UNKNOWN_MODEL";
    case Code::kFailedPrecondition:
      return "NO_CHAT_TEMPLATE";
    case Code::kResourceExhausted:
      return "TOO_LARGE";
    default:
      return "BAD_FIELD";
  }
}

// Everything that needs no prompt.
Status CheckPlain(const ClientRequest& c, const FrontOptions& options, Prepared* out) {
  if (!c.unsupported.empty()) {
    return UnimplementedError(fmt::format("not supported yet: {}", fmt::join(c.unsupported, ", ")));
  }
  const FrontLimits& limits = options.limits;
  const std::string& served = options.served_name.empty() ? options.model.name : options.served_name;
  if (!c.model.empty() && c.model != served) {
    return NotFoundError(
        fmt::format("model: \"{}\" is not served here; served: \"{}\"",
                    c.model.substr(0, FirstInvalidUtf8(std::string_view(c.model).substr(0, 200))), served));
  }
  BATON_RETURN_IF_ERROR(CheckId("request_id", c.request_id, limits.max_request_id_bytes));
  BATON_RETURN_IF_ERROR(CheckId("cache.salt", c.cache_salt, limits.max_salt_bytes));
  BATON_RETURN_IF_ERROR(CheckId("placement.prefill_worker", c.prefill_worker, limits.max_request_id_bytes));
  BATON_RETURN_IF_ERROR(CheckId("placement.decode_worker", c.decode_worker, limits.max_request_id_bytes));
  if (c.n && *c.n < 1) return Invalid("sampling.n: {} is below 1", *c.n);
  if (c.n && *c.n > 1) return UnimplementedError("not supported yet: sampling.n above 1");
  if (c.priority < -1000 || c.priority > 1000) return Invalid("priority: {} is not in [-1000, 1000]", c.priority);
  if (c.deadline && *c.deadline <= Duration::zero()) return DeadlineExceededError("the deadline had passed at arrival");
  out->request.priority = static_cast<int32_t>(c.priority);
  out->request.cache_salt = c.cache_salt;
  out->deadline = std::min(c.deadline.value_or(limits.max_deadline), limits.max_deadline);
  out->placement = c.placement;
  out->prefill_worker = c.prefill_worker;
  out->decode_worker = c.decode_worker;
  out->draw_seed = !c.seed.has_value();
  out->stop_strings = c.stop;
  out->include_stop_text = c.include_stop_text;
  out->want_text = c.want_text;
  out->want_token_ids = c.want_token_ids;
  out->skip_special_tokens = c.skip_special_tokens;
  out->timings = c.timings;
  out->max_tokens_given = c.max_tokens.has_value();
  return OkStatus();
}

}  // namespace

StatusOr<std::vector<TokenId>> TokenizePrompt(const ClientRequest& client, const FrontOptions& options,
                                              const Tokenizer& tokenizer, const ChatTemplate* chat) {
  std::vector<TokenId> ids;
  if (const auto* tokens = std::get_if<TokenPrompt>(&client.prompt)) {
    if (tokens->ids.empty()) return Invalid("token_ids: is empty; at least one token is needed");
    BATON_RETURN_IF_ERROR(CheckTokens("token_ids", tokens->ids, tokenizer.vocab_size()));
    ids.assign(tokens->ids.begin(), tokens->ids.end());
    return ids;
  }
  if (const auto* text = std::get_if<TextPrompt>(&client.prompt)) {
    if (text->text.size() > options.limits.max_prompt_bytes) {
      return Invalid("text: {} bytes, at most {}", text->text.size(), options.limits.max_prompt_bytes);
    }
    BATON_RETURN_IF_ERROR(ValidateUtf8(text->text, "text"));
    tokenizer.Encode({{text->text, false}}, text->add_special, &ids);
    return ids;
  }
  if (const auto* turns = std::get_if<ChatPrompt>(&client.prompt)) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TextSpan> spans, RenderChat(*turns, options, chat));
    tokenizer.Encode(spans, /*add_special=*/false, &ids);  // the template writes begin tokens itself
    return ids;
  }
  return Invalid("prompt: one of text, token_ids and chat is needed");
}

std::variant<Prepared, Rejection> Prepare(const ClientRequest& client, const FrontOptions& options,
                                          const Tokenizer& tokenizer, const ChatTemplate* chat) {
  Prepared out;
  if (Status s = CheckPlain(client, options, &out); !s.ok()) {
    const std::string reason = s.code() == Code::kDeadlineExceeded ? "DEADLINE" : ReasonOf(s);
    return Rejection{std::move(s), reason, {}};
  }
  if (Status s = CheckSampling(client, tokenizer.vocab_size(), options.limits, &out.request.sampling); !s.ok()) {
    return Rejection{s, ReasonOf(s), {}};
  }
  auto ids = TokenizePrompt(client, options, tokenizer, chat);
  if (!ids.ok()) return Rejection{ids.status(), ReasonOf(ids.status()), {}};
  if (ids->empty()) return Rejection{Invalid("prompt: is empty; at least one token is needed"), "BAD_FIELD", {}};
  const uint32_t context = options.max_context_tokens;
  if (ids->size() >= context) {
    return Rejection{
        Invalid("prompt: {} tokens; the context is {} and an answer needs at least one", ids->size(), context),
        "NEVER_FITS",
        {}};
  }
  const auto prompt = static_cast<uint32_t>(ids->size());
  if (Status s = CheckStopping(client, tokenizer, options.limits, prompt, context - prompt, &out.request.stop);
      !s.ok()) {
    return Rejection{s, ReasonOf(s), {}};
  }
  out.request.prompt = *std::move(ids);
  return out;
}

}  // namespace baton

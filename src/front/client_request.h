// What a client asked for, decoded and not yet believed: rpc and http fill it, the front validates it. Numbers
// keep the range of the wire, so that a wrong value is refused with its own digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baton/clock.h"
#include "baton/ids.h"
#include "route/router.h"
#include "text/chat_template.h"

namespace baton {

struct TextPrompt {
  std::string text;
  bool add_special = true;  // begin and end tokens as the model's files ask for
};
struct TokenPrompt {
  std::vector<int64_t> ids;
};
struct ChatPrompt {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
};

struct ClientRequest {
  std::string request_id;  // "" = the front draws one
  std::string model;       // "" = the one that is served
  std::variant<std::monostate, TextPrompt, TokenPrompt, ChatPrompt> prompt;

  // Sampling. Absent = the server's default.
  std::optional<double> temperature;  // [0, 100]; default 1
  std::optional<double> top_p;        // (0, 1]; default 1
  std::optional<int64_t> top_k;       // 0 = all
  std::optional<uint64_t> seed;       // absent = drawn
  std::optional<int64_t> n;           // 1
  std::vector<std::pair<int64_t, double>> logit_bias;

  // Stopping.
  std::optional<int64_t> max_tokens;  // absent = the server's default, at most what fits
  std::optional<int64_t> min_tokens;  // 0
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_text = false;  // show the stop string, or the stop token's text, that ended the answer

  // Output.
  bool want_text = true;
  bool want_token_ids = false;
  bool skip_special_tokens = true;
  bool timings = false;             // Started, and Timings in Done
  std::optional<int64_t> logprobs;  // 0..20: the chosen token's and that many alternatives

  int64_t priority = 0;  // higher first
  std::string cache_salt;
  std::optional<Duration> deadline;  // remaining at arrival
  PlacementHint placement = PlacementHint::kAuto;
  std::string prefill_worker;  // names; "" = any
  std::string decode_worker;

  // Names of fields that the client set and that do not work yet ("sampling.min_p"). Not empty: the request
  // is refused with UNIMPLEMENTED, all of them named.
  std::vector<std::string> unsupported;
};

}  // namespace baton

// What a client is told, in this order: [Started] Delta* Finished Done, or Failed at any point; nothing follows
// Done or Failed. Text already sent stays valid.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "baton/clock.h"
#include "baton/front_link.h"
#include "baton/ids.h"
#include "baton/request.h"
#include "baton/sampling.h"
#include "baton/status.h"

namespace baton {

struct Started {  // only with `timings`
  std::string request_id;
  std::string model;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // as predicted by the router
  std::string prefill_worker;  // "" when one worker does everything
  std::string decode_worker;
};

// Whole UTF-8 characters; what may become a stop string is held back. Token ids are never held back.
struct Delta {
  uint32_t choice = 0;
  std::string text;
  std::vector<TokenId> token_ids;     // with want_token_ids
  std::vector<OutputToken> logprobs;  // with logprobs; one per token
};

struct Finished {
  uint32_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop;    // the stop string, "" otherwise
  int64_t matched_token = -1;  // the stop or end token, -1 otherwise
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
};

// Where the time went. Durations from the request's arrival unless said.
struct Timings {
  Duration first_dispatch{};  // waited at the front until then
  Duration first_token{};     // 0: none came
  Duration last_token{};
  Duration done{};
  double tokens_per_second = 0;  // (tokens - 1) / (last - first); 0 with fewer than two
  uint32_t placements = 0;       // epochs
  uint32_t retries = 0;          // placements after the first
  uint32_t migrations = 0;       // to another decode worker, in the middle of the answer
  bool disaggregated = false;    // of the last epoch
  std::string placement_why;
  std::string prefill_worker;  // of the last epoch; "" = none
  std::string decode_worker;
  Receipt prefill;  // the last epoch's receipts: P's (or the local worker's), and D's
  Receipt decode;
};

struct Done {
  Usage usage;
  Timings timings;
};

struct Failed {
  Status status;
  std::string reason;  // for ErrorDetail: "NEVER_FITS", "QUEUE_FULL", "WORKER_LOST", ...
  std::string request_id;
  Duration retry_after{};  // 0: no hint
};

using ClientEvent = std::variant<Started, Delta, Finished, Done, Failed>;

}  // namespace baton

// From what a client asked for to a Request that workers can trust: validate, render the chat template, tokenize,
// resolve defaults. Pure functions of their arguments.
//
// Always true: a prepared request has a prompt of 1 .. context - 1 tokens in the vocabulary, at least one token
// of answer that fits the context, finite numbers in their ranges. A refusal names the field, its value and the
// limit.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "baton/request.h"
#include "front/client_event.h"
#include "front/client_request.h"
#include "front/front.h"

namespace baton {

// Why a request was refused or failed, as ErrorDetail wants it.
struct Rejection {
  Status status;
  std::string reason;
  Duration retry_after{};
};

// A request that was accepted, as far as it does not depend on its number and seed.
struct Prepared {
  Request request;  // without id, and without seed when the client gave none
  bool draw_seed = false;
  std::vector<std::string> stop_strings;
  bool include_stop_text = false;
  bool want_text = true;
  bool want_token_ids = false;
  bool skip_special_tokens = true;
  bool timings = false;
  bool max_tokens_given = false;
  Duration deadline{};  // remaining at arrival; never beyond the server's maximum
  PlacementHint placement = PlacementHint::kAuto;
  std::string prefill_worker;
  std::string decode_worker;
};

std::variant<Prepared, Rejection> Prepare(const ClientRequest& client, const FrontOptions& options,
                                          const Tokenizer& tokenizer, const ChatTemplate* chat);

}  // namespace baton

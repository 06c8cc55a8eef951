// `chat` and `complete`: a request to a router, its answer streamed to stdout, its receipt to stderr.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/connect.h"
#include "app/process.h"
#include "app/receipt.h"
#include "rpc/inference_client.h"
#include "text/utf8.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

// One answer as it came.
struct Answer {
  std::string text;
  std::vector<TokenId> token_ids;
  Finished finished;
  Done done;
  CallResult result;
};

ClientRequest MakeRequest(const Settings& settings) {
  ClientRequest out;
  out.temperature = settings.Real("temperature");
  out.top_p = settings.Real("top-p");
  out.top_k = settings.Integer("top-k");
  if (settings.Integer("seed") >= 0) out.seed = static_cast<uint64_t>(settings.Integer("seed"));
  if (settings.Integer("max-tokens") > 0) out.max_tokens = settings.Integer("max-tokens");
  if (!settings.Text("stop").empty()) out.stop = {settings.Text("stop")};
  out.ignore_eos = settings.Flag("ignore-eos");
  const std::string& placement = settings.Text("placement");
  if (placement == "disaggregated") out.placement = PlacementHint::kDisaggregated;
  if (placement == "colocated") out.placement = PlacementHint::kColocated;
  out.deadline = settings.Time("timeout");
  out.timings = true;
  out.want_token_ids = settings.Flag("json");
  return out;
}

Answer Ask(InferenceClient* client, const ClientRequest& request, bool stream) {
  Answer answer;
  answer.result = client->Generate(request, [&](const ClientEvent& event) {
    if (const auto* delta = std::get_if<Delta>(&event)) {
      answer.text += delta->text;
      answer.token_ids.insert(answer.token_ids.end(), delta->token_ids.begin(), delta->token_ids.end());
      if (stream) {
        std::fwrite(delta->text.data(), 1, delta->text.size(), stdout);
        if (std::fflush(stdout) != 0) return false;  // nobody reads: the request ends
      }
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      answer.finished = *finished;
    } else if (const auto* done = std::get_if<Done>(&event)) {
      answer.done = *done;
    }
    return true;
  });
  return answer;
}

Json ToJson(const Answer& answer) {
  const Timings& t = answer.done.timings;
  Json out = {{"text", answer.text},
              {"token_ids", answer.token_ids},
              {"finish_reason", answer.finished.reason == FinishReason::kLength ? "length" : "stop"},
              {"usage",
               {{"prompt_tokens", answer.done.usage.prompt_tokens},
                {"completion_tokens", answer.done.usage.completion_tokens},
                {"cached_tokens", answer.done.usage.cached_tokens}}},
              {"timings",
               {{"queue_us", t.first_dispatch.count() / 1000},
                {"first_token_us", t.first_token.count() / 1000},
                {"done_us", t.done.count() / 1000},
                {"tokens_per_second", t.tokens_per_second},
                {"disaggregated", t.disaggregated},
                {"prefill_worker", t.prefill_worker},
                {"decode_worker", t.decode_worker},
                {"placements", t.placements},
                {"transfer_us", t.prefill.transfer.count() / 1000},
                {"exposed_us", t.prefill.exposed.count() / 1000},
                {"transfer_bytes", t.prefill.transfer_bytes},
                {"transfer_blocks", t.prefill.transfer_blocks},
                {"hidden_bytes", t.prefill.hidden_bytes}}}};
  return out;
}

// Shows what `answer` holds beyond its streamed text. The exit code.
int Show(const Settings& settings, const Answer& answer) {
  const bool json = settings.Flag("json");
  if (std::ferror(stdout) != 0) return FinishOutput(kExitFailed);
  if (!answer.result.status.ok()) {
    if (!json && !answer.text.empty()) std::fputs("\n", stdout);
    std::fflush(stdout);
    std::string message = settings.Text("server") + ": " + answer.result.status.ToString();
    if (!answer.result.reason.empty()) {
      message += " (" + answer.result.reason + ")";
    } else if (answer.result.status.code() == Code::kUnavailable && answer.text.empty()) {
      // Every router gives a reason: nobody answered.
      message += WhatToTry(settings, answer.result.status);
    }
    return Fail(kExitFailed, InternalError(message));
  }
  if (json) {
    std::printf("%s\n", ToJson(answer).dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::fputs("\n", stdout);
  }
  const int code = FinishOutput(kExitDone);
  if (settings.Flag("receipt")) std::fputs(ReceiptText(answer.done.usage, answer.done.timings).c_str(), stderr);
  return code;
}

std::vector<ChatMessage> Opening(const Settings& settings) {
  if (settings.Text("system").empty()) return {};
  return {{"system", settings.Text("system"), ""}};
}

// Turn after turn from standard input, until its end.
int Converse(const Settings& settings, InferenceClient* client, ClientRequest request) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  ChatPrompt prompt{Opening(settings)};
  int code = kExitDone;
  std::string line;
  while (true) {
    if (terminal) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (Status s = ValidateUtf8(line, "message"); !s.ok()) return Fail(kExitUsage, s);
    prompt.messages.push_back({"user", line, ""});
    request.prompt = prompt;
    const Answer answer = Ask(client, request, !settings.Flag("json"));
    code = Show(settings, answer);
    if (code != kExitDone && (!terminal || std::ferror(stdout) != 0)) return code;
    if (code == kExitDone) {
      prompt.messages.push_back({"assistant", answer.text, ""});
    } else {
      prompt.messages.pop_back();
    }
  }
  return code;
}

}  // namespace

int RunChat(const Settings& settings) {
  ClientRequest request = MakeRequest(settings);
  const auto client = Connect(settings);
  if (!client.ok()) return Fail(kExitUsage, client.status());
  if (!settings.Given("message")) return Converse(settings, client->get(), std::move(request));
  for (const char* name : {"message", "system"}) {
    if (Status s = ValidateUtf8(settings.Text(name), name); !s.ok()) return Fail(kExitUsage, s);
  }
  ChatPrompt prompt{Opening(settings)};
  prompt.messages.push_back({"user", settings.Text("message"), ""});
  request.prompt = std::move(prompt);
  return Show(settings, Ask(client->get(), request, !settings.Flag("json")));
}

int RunComplete(const Settings& settings) {
  ClientRequest request = MakeRequest(settings);
  if (settings.Given("ids")) {
    const auto ids = ParseTokenIds(settings.Text("ids"));
    if (!ids.ok()) return Fail(kExitUsage, ids.status().Annotate("--ids"));
    request.prompt = TokenPrompt{{ids->begin(), ids->end()}};
  } else {
    std::string text = settings.Text("prompt");
    if (!settings.Given("prompt")) {
      auto input = ReadAll(std::cin, "standard input");
      if (!input.ok()) return Fail(kExitUsage, input.status());
      text = *std::move(input);
    }
    if (Status s = ValidateUtf8(text, "prompt"); !s.ok()) return Fail(kExitUsage, s);
    request.prompt = TextPrompt{std::move(text), true};
  }
  const auto client = Connect(settings);
  if (!client.ok()) return Fail(kExitUsage, client.status());
  return Show(settings, Ask(client->get(), request, !settings.Flag("json")));
}

}  // namespace baton

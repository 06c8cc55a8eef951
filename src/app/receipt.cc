#include "app/receipt.h"

#include <cstdio>

#include "model/memory_plan.h"

namespace baton {
namespace {

std::string Milliseconds(Duration d) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", Seconds(d) * 1e3);
  return text;
}

std::string Line(const char* what, const std::string& value, const std::string& notes) {
  char text[160];
  std::snprintf(text, sizeof(text), "  %-12s %12s   %s", what, value.c_str(), notes.c_str());
  std::string out(text);
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

std::string Count(uint64_t n, const char* noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

}  // namespace

std::string ReceiptText(const Usage& usage, const Timings& t) {
  std::string out = "receipt: ";
  out += t.disaggregated ? t.prefill_worker + " -> " + t.decode_worker : t.decode_worker + " alone";
  if (!t.placement_why.empty()) out += " (" + t.placement_why + ")";
  if (t.retries > 0) out += ", placed again " + Count(t.retries, "time");
  if (t.migrations > 0) out += ", migrated " + Count(t.migrations, "time");
  out += "\n";
  out += Line("queue", Milliseconds(t.first_dispatch + t.prefill.queue), "at the router and at the worker");
  out += Line("prefill", Milliseconds(t.prefill.prefill),
              Count(usage.prompt_tokens, "token") + ", " + std::to_string(usage.cached_tokens) + " of them cached");
  if (t.disaggregated) {
    std::string notes = ByteWords(t.prefill.transfer_bytes) + " in " + Count(t.prefill.transfer_blocks, "block") +
                        ", exposed " + Milliseconds(t.prefill.exposed);
    if (t.prefill.transfer_bytes > 0) {
      notes +=
          ", " + std::to_string(t.prefill.hidden_bytes * 100 / t.prefill.transfer_bytes) + " % hidden behind compute";
    }
    out += Line("transfer", Milliseconds(t.prefill.transfer), notes);
  } else {
    out += Line("transfer", "none", "0 bytes, 0 blocks");
  }
  out += Line("first token", Milliseconds(t.first_token), "after the request arrived");
  char speed[32];
  std::snprintf(speed, sizeof(speed), "%.1f tokens/s", t.tokens_per_second);
  out += Line("speed", speed, Count(usage.completion_tokens, "token") + " in " + Milliseconds(t.done));
  return out;
}

}  // namespace baton

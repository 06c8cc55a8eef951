#include "app/option_list.h"

#include <cctype>
#include <cstdio>

namespace baton {
namespace {

using K = OptionKind;

// clang-format off: a table
constexpr OptionSpec kOptions[] = {
    {"model",
     K::kText,
     kServes | kDoctor,
     "",
     "a .gguf file, or a folder with config.json and safetensors",
     {},
     0,
     0,
     true},

    // Where things are.
    {"listen", K::kAddress, kUp | kRouter, "127.0.0.1:8700",
     "where clients and workers connect; port 0 takes a free one"},
    {"listen", K::kAddress, kWorkers | kDoctor, "127.0.0.1:0", "where other workers connect; port 0 takes a free one"},
    {"advertise", K::kAddress, kWorkers, "",
     "what other workers dial to reach this one, if not --listen; port 0 is that of --listen"},
    {"router", K::kAddresses, kWorkers, "127.0.0.1:8700", "routers to serve, separated by commas"},
    {"insecure-listen", K::kFlag, kServes, "false",
     "allow --listen beyond this machine without TLS or without API keys: whoever reaches the port can then read "
     "all that passes, join as a worker, or ask"},
    {"name", K::kText, kServes, "", "this process in logs and in the cluster; empty: its role and a number"},
    {"served-name", K::kText, kUp | kRouter, "", "what clients call the model; empty: its own name"},
    {"state-dir", K::kText, kServes | kDoctor, "",
     "where start counters live; empty: $XDG_STATE_HOME/baton or ~/.local/state/baton"},

    // Who may read and who may ask.
    {"tls-ca", K::kFile, kServes | kAsks, "",
     "PEM certificates that a peer's must come from; a client with it speaks TLS"},
    {"tls-cert", K::kFile, kServes, "",
     "PEM certificate of this process, then its intermediates; {name} is the process's name; with it, nothing but TLS "
     "is spoken"},
    {"tls-key", K::kFile, kServes, "", "PEM key of the certificate, without passphrase; {name} as above"},
    {"api-keys", K::kFile, kUp | kRouter, "",
     "keys that clients must show one of, a line each; health and reflection stay open"},
    {"require-encryption", K::kFlag, kServes, "false",
     "refuse whatever would send a prompt, an answer or KV unencrypted to another machine"},

    // Roles of `up`.
    {"prefill",
     K::kInteger,
     kUp,
     "0",
     "prefill processes; 0 with --decode 0: one process does everything",
     {},
     0,
     256},
    {"decode", K::kInteger, kUp, "0", "decode processes", {}, 0, 256},

    // What a worker may use.
    {"cores", K::kCores, kPlans, "",
     "cores to run on, such as 0-3,8; empty: all that this process may use"},
    {"threads", K::kInteger, kPlans, "0", "compute threads of a worker; 0: one a core", {}, 0, 1024},
    {"memory",
     K::kBytes,
     kPlans,
     "auto",
     "all memory of a worker; auto: 80 % of what is free now",
     {},
     0,
     1e15},
    {"kv-memory",
     K::kBytes,
     kPlans,
     "auto",
     "of it for the KV cache; auto: at most 1GiB, or 256MiB and a full context where it is shared",
     {},
     0,
     1e15},
    {"block-tokens", K::kChoice, kPlans, "32", "tokens of a KV block", "16|32|64|128"},
    {"kv-dtype", K::kChoice, kPlans, "bf16",
     "element type of the KV cache; int8, with scales, holds nearly twice as many tokens, fp16 and fp32 compute slower",
     "bf16|fp16|fp32|int8"},
    {"max-step-tokens",
     K::kInteger,
     kPlans,
     "512",
     "tokens computed in one step, over all sequences",
     {},
     16,
     65536},
    {"max-running", K::kInteger, kPlans, "64", "sequences that hold KV at once", {}, 1, 4096},
    {"max-queue",
     K::kInteger,
     kUp | kRouter,
     "1024",
     "requests that wait for a worker; beyond, they are refused",
     {},
     0,
     1e6},
    {"max-context",
     K::kInteger,
     kServes | kDoctor,
     "0",
     "prompt plus answer, in tokens, at least 2; 0: the model's own limit",
     {},
     0,
     1 << 24},
    {"kernels", K::kChoice, kPlans, "auto", "compute kernels; auto: the fastest that run here",
     "auto|reference|avx2"},
    {"transport", K::kChoice, kPlans, "auto",
     "how KV moves between workers; auto: shared memory on one machine, else RDMA where both have it, else TCP; grpc: TLS where there is a certificate",
     "auto|ucx-shm|ucx-rdma|ucx-tcp|grpc|local"},

    {"stuck-after", K::kDuration, kComputes, "10s",
     "a worker of this machine that ties up KV memory of another one for so long is killed by its supervisor",
     {}, 0.1, 3600},

    // Running.
    {"drain-timeout",
     K::kDuration,
     kServes,
     "5s",
     "after SIGTERM, how long running requests may go on",
     {},
     0,
     3600},
    {"protocol", K::kInteger, kServes, "2",
     "speak to the cluster as that version does: 1 is without live migration, for an upgrade that may have to go back",
     {}, 1, 2},
    {"log-level", K::kChoice, kServes, "info", "least level that is logged",
     "trace|debug|info|warn|error|off"},
    {"log-format", K::kChoice, kServes, "text", "form of log lines on stderr", "text|json"},
    {"status-fd", K::kInteger, kServes, "-1", "events for the supervisor", {}, -1, 1e6, false, true},
    {"router-fd", K::kInteger, kWorkers, "-1", "where the supervisor says the router's address", {}, -1, 1e6, false, true},
    {"expect-workers", K::kInteger, kRouter, "0", "workers of the supervisor", {}, 0, 1024, false, true},
    {"host-share",
     K::kInteger,
     kWorkers | kDoctor,
     "1",
     "workers that share this machine's memory",
     {},
     1,
     1024,
     false,
     true},

    // Clients.
    {"server", K::kAddress, kAsks, "127.0.0.1:8700", "the router to ask"},
    {"api-key", K::kSecret, kAsks, "",
     "key for a server that wants one; BATON_API_KEY keeps it out of the list of processes"},
    {"message", K::kText, kChat, "", "one question; without it, lines of standard input"},
    {"system", K::kText, kChat, "", "system message"},
    {"prompt",
     K::kText,
     kComplete,
     "",
     "the text to continue; without it, all of standard input",
     {},
     0,
     0,
     true},
    {"ids", K::kText, kComplete, "", "token ids instead of text: 1,2,3"},
    {"max-tokens",
     K::kInteger,
     kClients,
     "0",
     "tokens of the answer at most; 0: what the context leaves",
     {},
     0,
     1 << 24},
    {"temperature", K::kReal, kClients, "0", "0: always the most likely token", {}, 0, 100},
    {"top-p", K::kReal, kClients, "1", "least set of tokens whose probability reaches it", {}, 1e-6, 1},
    {"top-k", K::kInteger, kClients, "0", "only the k most likely tokens; 0: all", {}, 0, 1 << 24},
    {"seed", K::kInteger, kClients, "-1", "of the draw; -1: drawn by the server", {}, -1, 9e15},
    {"stop", K::kText, kClients, "", "text that ends the answer"},
    {"ignore-eos", K::kFlag, kClients, "false", "go on past the model's end token"},
    {"placement", K::kChoice, kClients, "auto",
     "disaggregated: prefill and decode on two workers; colocated: on one", "auto|disaggregated|colocated"},
    {"timeout", K::kDuration, kClients, "10m", "for the whole answer", {}, 0.001, 600},
    {"receipt", K::kFlag, kClients, "false", "say where the time went, on stderr"},
    {"json", K::kFlag, kClients, "false", "the answer as one JSON object, with token ids"},

    // Operators.
    {"worker", K::kText, kOrders, "", "its name, as `baton cluster` shows it", {}, 0, 0, true},
    {"role", K::kText, kRole, "", "prefill, decode or unified", {}, 0, 0, true},
    {"watch", K::kFlag, kCluster, "false", "again whenever something changed, until interrupted"},
    {"interval", K::kDuration, kCluster, "1s", "least time between two snapshots of --watch", {}, 0.1, 60},
    {"json", K::kFlag, kDoctor, "false", "the report as one JSON object"},
    {"json", K::kFlag, kCluster, "false", "one JSON object a line, with every metric"},
    {"wait", K::kDuration, kDrain, "60s", "for what runs to end; the drain stands in any case", {}, 0, 3600},
    {"wait", K::kDuration, kRole, "5s", "for the worker to confirm", {}, 0, 3600},
    {"undo", K::kFlag, kDrain, "false", "admit work again"},
    {"whole-router", K::kFlag, kDrain, "false", "the router itself instead of a worker"},
    {"force", K::kFlag, kOrders, "false", "although no other worker decodes"},
};
// clang-format on

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.15g", value);
  return text;
}

std::string Range(const OptionSpec& spec) {
  switch (spec.kind) {
    case K::kInteger:
    case K::kReal:
      return Number(spec.least) + " to " + Number(spec.most);
    case K::kDuration:
      return Number(spec.least) + "s to " + Number(spec.most) + "s";
    case K::kChoice: {
      std::string out;
      for (const char c : spec.choices) out += c == '|' ? std::string(", ") : std::string(1, c);
      return out;
    }
    default:
      return {};
  }
}

}  // namespace

std::span<const OptionSpec> AllOptions() { return kOptions; }

const OptionSpec* FindOption(std::string_view name, uint32_t command) {
  for (const OptionSpec& spec : kOptions) {
    if (spec.name == name && (spec.commands & command) != 0) return &spec;
  }
  return nullptr;
}

bool IsKnownOption(std::string_view name) { return FindOption(name, ~0u) != nullptr; }

std::string EnvironmentName(std::string_view name) {
  std::string out = "BATON_";
  for (const char c : name)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string_view Metavar(const OptionSpec& spec) {
  switch (spec.kind) {
    case K::kFlag:
      return "";
    case K::kInteger:
      return "N";
    case K::kReal:
      return "X";
    case K::kBytes:
      return "BYTES";
    case K::kDuration:
      return "TIME";
    case K::kChoice:
      return "WORD";
    case K::kAddress:
      return "HOST:PORT";
    case K::kAddresses:
      return "HOST:PORT,...";
    case K::kCores:
      return "LIST";
    case K::kFile:
      return "FILE";
    case K::kSecret:
      return "KEY";
    case K::kText:
      return "TEXT";
  }
  return "TEXT";
}

std::string HelpText(const OptionSpec& spec) {
  std::string out(spec.help);
  const std::string range = Range(spec);
  std::string notes;
  if (!range.empty()) notes += range;
  if (!spec.fallback.empty() && spec.kind != K::kFlag) {
    notes += (notes.empty() ? "default " : "; default ") + std::string(spec.fallback);
  }
  if (!notes.empty()) out += " (" + notes + ")";
  return out;
}

}  // namespace baton

// The one list of options. From it come the flags (--kv-memory), the environment (BATON_KV_MEMORY), the keys
// of a configuration file (kv-memory = "2GiB"), the ranges, the defaults and the help text. Plain data.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace baton {

// A set of subcommands.
enum CommandBit : uint32_t {
  kUp = 1u << 0,
  kRouter = 1u << 1,
  kPrefill = 1u << 2,
  kDecode = 1u << 3,
  kUnified = 1u << 4,
  kChat = 1u << 5,
  kComplete = 1u << 6,
  kCluster = 1u << 7,
  kDrain = 1u << 8,
  kRole = 1u << 9,
  kDoctor = 1u << 10,
};
inline constexpr uint32_t kWorkers = kPrefill | kDecode | kUnified;
inline constexpr uint32_t kComputes = kUp | kWorkers;
inline constexpr uint32_t kServes = kComputes | kRouter;
inline constexpr uint32_t kPlans = kComputes | kDoctor;  // know what a worker may use
inline constexpr uint32_t kClients = kChat | kComplete;
inline constexpr uint32_t kOrders = kDrain | kRole;
inline constexpr uint32_t kAsks = kClients | kCluster | kOrders;

// How a value is written. Every kind has one canonical text, which --print-config shows.
enum class OptionKind : uint8_t {
  kText,
  kFile,
  kSecret,  // a word that no output may hold
  kFlag,    // true, false
  kInteger,
  kReal,
  kBytes,      // 1048576, 512KiB, 2GiB, "auto" where 0 is allowed
  kDuration,   // 250ms, 5s, 2m
  kChoice,     // one of `choices`
  kAddress,    // host:port
  kAddresses,  // host:port,host:port
  kCores,      // 0-3,8
};

struct OptionSpec {
  std::string_view name;  // of the flag, without dashes
  OptionKind kind;
  uint32_t commands;          // CommandBits that know it
  std::string_view fallback;  // the default, as a user would write it
  std::string_view help;
  std::string_view choices = {};  // kChoice: "a|b|c"
  // kInteger and kReal: the value; kBytes: bytes; kDuration: seconds.
  double least = 0;
  double most = 9e15;
  bool positional = false;  // also given without its flag
  bool hidden = false;      // of the supervisor, for its children
};

std::span<const OptionSpec> AllOptions();
// The entry of that name which `command` knows, or nullptr. Entries of one name differ in their commands.
const OptionSpec* FindOption(std::string_view name, uint32_t command);
bool IsKnownOption(std::string_view name);           // of any command
std::string EnvironmentName(std::string_view name);  // "kv-memory" -> "BATON_KV_MEMORY"
std::string_view Metavar(const OptionSpec& spec);    // "BYTES"
// Help text with range, default and environment.
std::string HelpText(const OptionSpec& spec);

}  // namespace baton

#include "app/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace baton {
namespace {

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// A non-negative decimal number and what follows it.
bool SplitNumber(std::string_view text, double* number, std::string_view* unit) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, std::chars_format::fixed);
  if (error != std::errc() || *number < 0 || !std::isfinite(*number)) return false;
  *unit = Trim(text.substr(static_cast<size_t>(end - text.data())));
  return true;
}

struct Unit {
  std::string_view name;
  double factor;
};

const Unit* FindUnit(std::string_view name, std::initializer_list<Unit> const& units) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

constexpr double kK = 1024;
const std::initializer_list<Unit> kByteUnits = {
    {"", 1},     {"B", 1},    {"KiB", kK}, {"MiB", kK* kK}, {"GiB", kK* kK* kK}, {"TiB", kK* kK* kK* kK},
    {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
const std::initializer_list<Unit> kTimeUnits = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};

}  // namespace

StatusOr<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgumentError(Quoted(text) + " is not a whole number");
  }
  return value;
}

StatusOr<double> ParseReal(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return InvalidArgumentError(Quoted(text) + " is not a number");
  }
  return value;
}

StatusOr<uint64_t> ParseBytes(std::string_view text) {
  if (text == "auto") return uint64_t{0};
  double number = 0;
  std::string_view unit_name;
  const Unit* unit = nullptr;
  if (SplitNumber(text, &number, &unit_name)) unit = FindUnit(unit_name, kByteUnits);
  if (unit == nullptr || number * unit->factor > 9e15) {
    return InvalidArgumentError(Quoted(text) + " is not a size such as 512MiB, 2GiB or auto");
  }
  return static_cast<uint64_t>(number * unit->factor);
}

StatusOr<Duration> ParseDuration(std::string_view text) {
  double number = 0;
  std::string_view unit_name;
  const Unit* unit = nullptr;
  if (SplitNumber(text, &number, &unit_name)) unit = FindUnit(unit_name, kTimeUnits);
  if (unit == nullptr || number * unit->factor > 1e9) {
    return InvalidArgumentError(Quoted(text) + " is not a time such as 250ms, 5s or 2m");
  }
  return FromSeconds(number * unit->factor);
}

StatusOr<bool> ParseFlag(std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return InvalidArgumentError(Quoted(text) + " is neither true nor false");
}

StatusOr<std::vector<int>> ParseCores(std::string_view text) {
  std::set<int> cores;
  for (const std::string& piece : SplitList(text, ',')) {
    const size_t dash = piece.find('-');
    const auto first = ParseInteger(std::string_view(piece).substr(0, dash));
    const auto last = dash == std::string::npos ? first : ParseInteger(std::string_view(piece).substr(dash + 1));
    if (!first.ok() || !last.ok() || *first < 0 || *last < *first || *last > 4095) {
      return InvalidArgumentError(Quoted(piece) + " is not a core or a range of cores such as 0-3 (0 to 4095)");
    }
    for (int64_t core = *first; core <= *last; ++core) cores.insert(static_cast<int>(core));
  }
  return std::vector<int>(cores.begin(), cores.end());
}

std::string HostPort::ToString() const {
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return shown + ":" + std::to_string(port);
}

StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const Status bad = InvalidArgumentError(Quoted(text) + " is not HOST:PORT with a port of 0 to 65535");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return bad;
  std::string_view host = text.substr(0, colon);
  const auto port = ParseInteger(text.substr(colon + 1));
  if (!port.ok() || *port < 0 || *port > 65535) return bad;
  if (host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) return bad;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return InvalidArgumentError(Quoted(text) + ": write an IPv6 address in brackets, [::1]:8700");
  }
  const auto odd = [](char c) { return c <= ' ' || c == '/' || c == ',' || c == '[' || c == ']' || c == 127; };
  if (std::any_of(host.begin(), host.end(), odd)) return bad;
  return HostPort{std::string(host), static_cast<uint16_t>(*port)};
}

bool IsLoopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  // Only a dotted quad: 127.evil.example is a name.
  if (host.substr(0, 4) != "127.") return false;
  return host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool IsWildcard(std::string_view host) { return host.find_first_not_of("0.:*") == std::string_view::npos; }

StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text) {
  std::vector<int32_t> out;
  while (true) {
    const size_t end = text.find(',');
    const std::string_view piece = Trim(text.substr(0, end));
    BATON_ASSIGN_OR_RETURN(const int64_t id, ParseInteger(piece));
    if (id < 0 || id > INT32_MAX) return InvalidArgumentError(Quoted(piece) + " is not a token id");
    out.push_back(static_cast<int32_t>(id));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

bool IsPlainWord(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

std::vector<std::string> SplitList(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    const std::string_view piece = Trim(text.substr(0, end));
    if (!piece.empty()) out.emplace_back(piece);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace baton

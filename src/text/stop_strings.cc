#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace baton {

Status ValidateStopStrings(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopStrings) {
    return InvalidArgumentError("stop: " + std::to_string(stops.size()) + " strings, at most " +
                                std::to_string(kMaxStopStrings) + " are allowed");
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string place = "stop[" + std::to_string(i) + "]";
    if (stops[i].empty()) return InvalidArgumentError(place + ": empty; a stop string needs at least one character");
    if (stops[i].size() > kMaxStopStringBytes) {
      return InvalidArgumentError(place + ": " + std::to_string(stops[i].size()) + " bytes, at most " +
                                  std::to_string(kMaxStopStringBytes) + " are allowed");
    }
    BATON_RETURN_IF_ERROR(ValidateUtf8(stops[i], place));
  }
  return OkStatus();
}

StopStrings::StopStrings(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  for (std::string& stop : stops) {
    BATON_CHECK(!stop.empty(), "stop strings are validated before");
    Pattern& p = patterns_.emplace_back();
    p.text = std::move(stop);
    p.failure.assign(p.text.size() + 1, 0);
    for (size_t i = 1; i < p.text.size(); ++i) {
      uint32_t border = p.failure[i];
      while (border > 0 && p.text[i] != p.text[border]) border = p.failure[border];
      p.failure[i + 1] = p.text[i] == p.text[border] ? border + 1 : 0;
    }
  }
}

bool StopStrings::Push(std::string_view text, std::string* out) {
  BATON_CHECK(matched_ < 0, "text was pushed after a stop string matched");
  if (patterns_.empty()) {
    out->append(text);
    return false;
  }
  held_.append(text);
  const size_t already = held_.size() - text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    size_t longest = 0;
    for (size_t k = 0; k < patterns_.size(); ++k) {
      Pattern& p = patterns_[k];
      while (p.state > 0 && text[i] != p.text[p.state]) p.state = p.failure[p.state];
      if (text[i] == p.text[p.state]) ++p.state;
      if (p.state == p.text.size() && p.state > longest) {
        longest = p.state;
        matched_ = static_cast<int>(k);
      }
    }
    if (matched_ >= 0) {
      const size_t end = already + i + 1;
      out->append(held_, 0, include_stop_ ? end : end - longest);
      held_.clear();
      return true;
    }
  }
  size_t keep = 0;
  for (const Pattern& p : patterns_) keep = std::max<size_t>(keep, p.state);
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopStrings::Finish(std::string* out) {
  out->append(held_);
  held_.clear();
  for (Pattern& p : patterns_) p.state = 0;
}

}  // namespace baton

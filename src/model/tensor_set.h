// All tensors of a model's files by name, handed out one at a time against what the decoder expects; afterwards
// it knows what was missing, misshapen or never asked for. Used while a model is opened.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"
#include "model/model_file.h"

namespace baton {

class TensorSet {
 public:
  // INVALID_ARGUMENT when the name is there already.
  Status Add(std::string name, TensorView view);
  bool Has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  const TensorView* Find(std::string_view name) const;
  // The tensor, taken out; shape outermost first. Complaints are collected for Finish.
  SourceTensor Take(const std::string& name, const std::vector<uint64_t>& shape);
  void Ignore(std::string_view suffix);  // drops every tensor whose name ends so
  void Drop(std::string_view name);
  // OK when everything asked for was right and nothing is left over; else one message that lists names.
  Status Finish() const;
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::map<std::string, TensorView, std::less<>> tensors_;
  uint64_t total_bytes_ = 0;
  std::vector<std::string> missing_, wrong_;
};

}  // namespace baton

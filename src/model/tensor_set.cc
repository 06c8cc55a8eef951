#include "model/tensor_set.h"

#include <utility>

namespace baton {
namespace {

std::string ShapeWords(const std::vector<uint64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

std::string List(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) out += " and " + std::to_string(names.size() - kShown) + " more";
  return out;
}

}  // namespace

Status TensorSet::Add(std::string name, TensorView view) {
  total_bytes_ += view.bytes;
  const auto [it, fresh] = tensors_.emplace(std::move(name), std::move(view));
  return fresh ? OkStatus() : InvalidArgumentError("tensor '" + it->first + "' is in the files twice");
}

const TensorView* TensorSet::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

SourceTensor TensorSet::Take(const std::string& name, const std::vector<uint64_t>& shape) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    missing_.push_back(name);
    return {};
  }
  SourceTensor out{name, std::move(it->second)};
  tensors_.erase(it);
  if (out.view.shape != shape) {
    wrong_.push_back(name + " is " + ShapeWords(out.view.shape) + ", the description says " + ShapeWords(shape));
  } else if (shape.size() == 1 && Traits(out.view.dtype).block_elements != 1) {
    wrong_.push_back(name + " is a vector of type " + std::string(Traits(out.view.dtype).name));
  }
  return out;
}

void TensorSet::Ignore(std::string_view suffix) {
  if (suffix.empty()) return;
  std::erase_if(tensors_, [&](const auto& item) { return std::string_view(item.first).ends_with(suffix); });
}

void TensorSet::Drop(std::string_view name) {
  if (const auto it = tensors_.find(name); it != tensors_.end()) tensors_.erase(it);
}

Status TensorSet::Finish() const {
  std::vector<std::string> left;
  for (const auto& [name, view] : tensors_) left.push_back(name);
  std::string message;
  const auto add = [&](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) message += (message.empty() ? "" : "; ") + std::string(what) + ": " + List(names);
  };
  add("missing tensors", missing_);
  add("tensors of the wrong shape", wrong_);
  add("tensors that this model family does not use", left);
  return message.empty() ? OkStatus() : InvalidArgumentError(std::move(message));
}

}  // namespace baton

// What a runner knows of the sequences of its plans, which tell only what is new. Every runner keeps one, on the
// thread that runs its steps.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baton/check.h"
#include "baton/step_plan.h"

namespace baton {

struct SequenceTable {
  RequestPtr request;
  std::vector<std::vector<BlockId>> blocks;  // [group]: of every position up to the end of its last step, in order
  // The runner's own: what its last step that sampled gave; nothing before that, or if that failed.
  std::optional<TokenId> last_token;
};

class SequenceTables {
 public:
  // First of all for every plan, in launch order, also if the step is going to fail.
  void Apply(const StepPlan& plan) {
    for (const SequenceId id : plan.ended) tables_.erase(id);
    for (const TableUpdate& update : plan.updates) {
      SequenceTable& table = tables_[update.sequence];
      if (update.request != nullptr) table = {update.request, std::vector<std::vector<BlockId>>(plan.zero.size()), {}};
      BATON_CHECK(table.request != nullptr, "blocks of a sequence that never started");
      auto next = plan.blocks.begin() + update.first_block;
      for (std::vector<BlockId>& blocks : table.blocks) {
        blocks.insert(blocks.end(), next, next + update.num_blocks);
        next += update.num_blocks;
      }
    }
  }
  // Of a sequence that the last applied plan names. Valid until the next Apply.
  SequenceTable& At(SequenceId id) {
    const auto it = tables_.find(id);
    BATON_CHECK(it != tables_.end(), "a step of a sequence that never started");
    return it->second;
  }
  const SequenceTable& At(SequenceId id) const { return const_cast<SequenceTables*>(this)->At(id); }
  size_t size() const { return tables_.size(); }

 private:
  std::unordered_map<SequenceId, SequenceTable> tables_;  // never iterated
};

}  // namespace baton

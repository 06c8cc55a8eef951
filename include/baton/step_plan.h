// What one step computes (Scheduler -> ModelRunner, moved) and what it found (back). Plain data: the
// simulator's runner reads the same plan as the CPU's and the GPU's.
//
// A plan is flat (its parts are ranges of shared lists) and tells what is new: the runner knows a sequence's
// request and blocks from the plans before, in launch order (SequenceTables). So a decode costs the same
// whatever its context.
#pragma once

#include <cstdint>
#include <vector>

#include "baton/ids.h"
#include "baton/request.h"
#include "baton/status.h"

namespace baton {

// One sequence's part of a step: tokens at positions [first_position, first_position + num_tokens).
struct SequenceStep {
  SequenceId sequence{};
  uint32_t first_position = 0;
  uint32_t num_tokens = 0;
  // StepPlan::inputs[first_input, first_input + num_inputs): num_tokens values, or none: the one input is the
  // token that the previous launched step sampled for this sequence (which may still be in flight).
  uint32_t first_input = 0;
  uint32_t num_inputs = 0;
  uint32_t sample_index = 0;  // index of the sampled token in the answer
  // Sample after the last position: this step computes the last known token of the sequence.
  bool sample = false;
};

// What the runner does not know yet of a sequence of this step.
struct TableUpdate {
  SequenceId sequence{};
  RequestPtr request;  // not null: the sequence starts, or starts over; what was known of it is void
  // Behind the blocks known so far, in order, the same number in every group: StepPlan::blocks from first_block
  // on, num_blocks of group 0, then of group 1 ... Then the table covers every position of the sequence's part.
  // The launched step does not own blocks; EngineCore keeps them alive until the step retires.
  uint32_t first_block = 0;
  uint32_t num_blocks = 0;
};

// Copy-on-write: all layers of one block, before anything of the step is computed.
struct BlockCopy {
  uint32_t group = 0;
  BlockId from{};
  BlockId to{};
};

struct StepPlan {
  StepId id{};
  std::vector<SequenceStep> sequences;  // decodes first, then prefill chunks; order never changes a result
  std::vector<SequenceId> ended;        // no plan from this one on names them
  std::vector<TableUpdate> updates;     // of sequences of this step, each at most once
  std::vector<TokenId> inputs;
  std::vector<BlockId> blocks;
  std::vector<BlockCopy> copies;
  // [group]: blocks that enter use in this step; the runner zeroes them first, so that slots past the valid
  // count read as zero.
  std::vector<std::vector<BlockId>> zero;
  uint32_t NumTokens() const {
    uint32_t n = 0;
    for (const SequenceStep& s : sequences) n += s.num_tokens;
    return n;
  }
  // Says nothing any more, but keeps its memory.
  void Clear() {
    sequences.clear();
    ended.clear();
    updates.clear();
    inputs.clear();
    blocks.clear();
    copies.clear();
    for (std::vector<BlockId>& group : zero) group.clear();
  }
};

struct SampledToken {
  SequenceId sequence{};
  uint32_t index = 0;
  OutputToken token;
};

// A sequence whose part of the step gave no usable token (non-finite logits, an input outside the vocabulary):
// that request ends, the step and its other sequences count.
struct FailedSequence {
  SequenceId sequence{};
  Status why;
};

struct StepResult {
  StepId id{};
  Status status;                       // not ok: no token of this step counts, and its KV is not written
  std::vector<SampledToken> tokens;    // in plan order
  std::vector<FailedSequence> failed;  // in plan order; none of them is in tokens
  Duration compute{};                  // wall time on the device
  StepPlan plan;                       // the step's, given back for its memory; or an empty one
};

// The KV of layers [0, layers) of every sequence of the step is final and may be read by a transport.
struct LayersReady {
  StepId id{};
  uint32_t layers = 0;
};

}  // namespace baton

#include "runner/cpu_model_runner.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "baton/check.h"
#include "baton/sequence_tables.h"
#include "device/cpu/cpu_device.h"
#include "runner/forward_pass.h"
#include "runner/sampler.h"

namespace baton {
namespace {

// Names the arithmetic that every CPU kernel table gives bit for bit; raised when a change alters any result.
constexpr std::string_view kNumerics =
    "baton cpu numerics 1: fp32 activations, exact weights, one fma chain along k, attention pieces of 128, "
    "K and V rounded to ";

std::string_view KvWords(DType dtype) {
  return dtype == DType::kBF16  ? "bf16 in pair tiles"
         : dtype == DType::kF16 ? "fp16 in pair tiles, at most 65504"
         : dtype == DType::kI8  ? "int8 in pair tiles, a 17-bit scale a head and token"
                                : "fp32 in pair tiles";
}

// Inputs of one step, and who is out of it.
struct StepInputs {
  std::vector<SequenceTable*> tables;              // [sequence]
  std::vector<TokenId> ids;                        // one per row
  std::vector<Status> status;                      // [sequence]; not ok: computed with placeholders, result unused
  std::vector<uint32_t> wanted;                    // rows whose logits are needed, ascending
  std::vector<std::pair<size_t, uint32_t>> owner;  // per wanted row: sequence and its position
};

}  // namespace

class CpuModelRunner::Core {
 public:
  Core(const LoadedModel& model, CpuDevice& device, const KvPoolPlan& pool_plan, CpuRunnerOptions options,
       std::unique_ptr<ForwardPass> pass, const KvLayout& layout)
      : decoder_(model.decoder()),
        device_(device),
        pool_plan_(pool_plan),
        block_tokens_(layout.block_tokens),
        kv_dtype_(layout.groups[0].dtype),
        options_(std::move(options)),
        pass_(std::move(pass)),
        scratch_(static_cast<size_t>(device.pool().threads())) {
    thread_ = std::thread([this] { StepThread(); });
  }

  ~Core() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_one();
    thread_.join();
  }

  void Launch(StepPlan plan) {
    Check(plan);
    {
      std::lock_guard lock(mutex_);
      BATON_CHECK(in_flight_ < kMaxStepsInFlight, "more steps launched than may be in flight");
      ++in_flight_;
      steps_.push_back(std::move(plan));
    }
    work_.notify_one();
  }

  DType kv_dtype() const { return kv_dtype_; }

  void Convert(KvConversion conversion) {
    BATON_CHECK(conversion.groups.size() == 1, "one KV group");
    for (const KvConversion::Group& g : conversion.groups) {
      CheckInPool(g.staging);
      CheckInPool(g.target);
    }
    {
      std::lock_guard lock(mutex_);
      conversions_.push_back(std::move(conversion));
    }
    work_.notify_one();
  }

  void Poll(std::vector<RunnerEvent>* events) {
    std::lock_guard lock(mutex_);
    for (RunnerEvent& event : events_) {
      if (std::holds_alternative<StepResult>(event)) --in_flight_;
      events->push_back(std::move(event));
    }
    events_.clear();
  }

 private:
  // What the scheduler and the block manager answer for; a fault here is a bug of ours, never a client's.
  void Check(const StepPlan& plan) const {
    const uint32_t rows = plan.NumTokens();
    BATON_CHECK(rows > 0 && rows <= options_.max_step_tokens, "a step of " + std::to_string(rows) +
                                                                  " tokens, the runner takes 1 to " +
                                                                  std::to_string(options_.max_step_tokens));
    for (const SequenceStep& s : plan.sequences) {
      const uint64_t end = uint64_t{s.first_position} + s.num_tokens;
      BATON_CHECK(s.num_tokens > 0 && end <= decoder_.context_tokens, "a sequence past the model's context");
      BATON_CHECK(s.num_inputs == s.num_tokens || (s.num_inputs == 0 && s.num_tokens == 1), "inputs and num_tokens");
      BATON_CHECK(uint64_t{s.first_input} + s.num_inputs <= plan.inputs.size(), "fewer inputs than the parts name");
    }
    BATON_CHECK(plan.zero.size() == 1, "one KV group");
    for (const auto& blocks : plan.zero) CheckInPool(blocks);
    for (const TableUpdate& u : plan.updates) {
      BATON_CHECK(uint64_t{u.first_block} + u.num_blocks <= plan.blocks.size(), "fewer blocks than the updates name");
    }
    CheckInPool(plan.blocks);
    for (const BlockCopy& c : plan.copies) {
      BATON_CHECK(c.group == 0, "one KV group");
      CheckInPool(std::array{c.from, c.to});
    }
  }

  void CheckInPool(std::span<const BlockId> blocks) const {
    for (const BlockId b : blocks) BATON_CHECK(Index(b) < pool_plan_.num_blocks[0], "a block outside the pool");
  }

  void StepThread() {
    // Pinning may be refused (a container's cpuset); the work is the same without it.
    (void)device_.pool().PinCaller();
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || !steps_.empty() || !conversions_.empty(); });
      if (stop_) return;
      if (!conversions_.empty()) {
        const KvConversion conversion = std::move(conversions_.front());
        conversions_.pop_front();
        lock.unlock();
        pass_->Convert(conversion);
        lock.lock();
        PushLocked(KvConverted{conversion.op, {}});
        continue;
      }
      StepPlan plan = std::move(steps_.front());
      steps_.pop_front();
      lock.unlock();
      StepResult result = RunStep(plan);
      result.plan = std::move(plan);
      lock.lock();
      PushLocked(std::move(result));
    }
  }

  template <typename Event>
  void PushLocked(Event event) {
    const bool was_empty = events_.empty();
    events_.emplace_back(std::in_place_type<Event>, std::move(event));
    if (was_empty && options_.waker != nullptr) options_.waker->Wake();
  }

  StepInputs CollectInputs(const StepPlan& plan) {
    StepInputs in;
    uint32_t row = 0;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequenceStep& s = plan.sequences[i];
      SequenceTable& table = tables_.At(s.sequence);
      BATON_CHECK(uint64_t{table.blocks[0].size()} * block_tokens_ >= s.first_position + s.num_tokens,
                  "fewer blocks than positions");
      in.tables.push_back(&table);
      Status status;
      for (uint32_t t = 0; t < s.num_tokens; ++t) {
        TokenId id = s.num_inputs == 0 ? LastToken(table, &status) : plan.inputs[s.first_input + t];
        if (static_cast<uint32_t>(id) >= decoder_.vocab_size) {
          status = InvalidArgumentError("token " + std::to_string(id) + " at position " +
                                        std::to_string(s.first_position + t) + " is not in the vocabulary of " +
                                        std::to_string(decoder_.vocab_size));
          id = 0;
        }
        in.ids.push_back(id);
        const bool last = t + 1 == s.num_tokens;
        if (options_.observe_all_rows || (s.sample && last)) {
          in.wanted.push_back(row + t);
          in.owner.emplace_back(i, s.first_position + t);
        }
      }
      in.status.push_back(std::move(status));
      row += s.num_tokens;
    }
    return in;
  }

  // What the step before sampled for this sequence; it may have failed.
  static TokenId LastToken(const SequenceTable& table, Status* status) {
    if (table.last_token) return *table.last_token;
    *status = AbortedError("the step before failed for this sequence");
    return 0;
  }

  StepResult RunStep(const StepPlan& plan) {
    const auto start = std::chrono::steady_clock::now();
    tables_.Apply(plan);
    StepInputs in = CollectInputs(plan);
    pass_->PrepareBlocks(plan);
    const bool report = plan.NumTokens() >= options_.min_layer_event_tokens && options_.layers_per_event > 0;
    pass_->Run(plan, tables_, in.ids, in.wanted, [&](uint32_t layers) {
      if (!report || layers % options_.layers_per_event != 0 || layers == decoder_.num_layers) return;
      std::lock_guard lock(mutex_);
      PushLocked(LayersReady{plan.id, layers});
    });

    std::vector<std::optional<StatusOr<OutputToken>>> sampled(plan.sequences.size());
    pass_->Logits(in.wanted.size(),
                  [&](size_t first, std::span<const float> logits) { SampleRows(plan, in, first, logits, &sampled); });

    StepResult result;
    result.id = plan.id;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      Finish(plan.sequences[i], in.tables[i], std::move(in.status[i]), std::move(sampled[i]), &result);
    }
    result.compute = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start);
    return result;
  }

  void SampleRows(const StepPlan& plan, const StepInputs& in, size_t first, std::span<const float> logits,
                  std::vector<std::optional<StatusOr<OutputToken>>>* sampled) {
    const size_t rows = logits.size() / decoder_.vocab_size;
    const auto row = [&](size_t i) { return logits.subspan(i * decoder_.vocab_size, decoder_.vocab_size); };
    if (options_.observe_logits) {
      for (size_t i = 0; i < rows; ++i) {
        const auto& [sequence, position] = in.owner[first + i];
        options_.observe_logits(plan.sequences[sequence].sequence, *in.tables[sequence]->request, position, row(i));
      }
    }
    device_.pool().ParallelFor(rows, 1, [&](size_t begin, size_t end, int worker) {
      for (size_t i = begin; i < end; ++i) {
        const auto& [sequence, position] = in.owner[first + i];
        const SequenceStep& s = plan.sequences[sequence];
        if (!s.sample || position + 1 != s.first_position + s.num_tokens) continue;
        (*sampled)[sequence] =
            SampleToken(row(i), *in.tables[sequence]->request, s.sample_index, &scratch_[static_cast<size_t>(worker)]);
      }
    });
  }

  static void Finish(const SequenceStep& s, SequenceTable* table, Status input_status,
                     std::optional<StatusOr<OutputToken>> sampled, StepResult* result) {
    Status status = std::move(input_status);
    if (status.ok() && sampled && !sampled->ok()) status = sampled->status();
    if (!status.ok()) {
      table->last_token.reset();
      result->failed.push_back({s.sequence, std::move(status)});
      return;
    }
    if (!sampled) return;
    table->last_token = (*sampled)->id;
    result->tokens.push_back({s.sequence, s.sample_index, **std::move(sampled)});
  }

  // Constant after construction.
  const DecoderDescription decoder_;
  CpuDevice& device_;
  const KvPoolPlan pool_plan_;
  const uint32_t block_tokens_;
  const DType kv_dtype_;
  const CpuRunnerOptions options_;

  // Step thread.
  const std::unique_ptr<ForwardPass> pass_;
  std::vector<SamplerScratch> scratch_;  // [worker]
  SequenceTables tables_;

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<StepPlan> steps_;            // at most kMaxStepsInFlight
  std::deque<KvConversion> conversions_;  // at most one a ticket; each goes before the next step
  std::vector<RunnerEvent> events_;       // at most (layers + 1) per step in flight
  int in_flight_ = 0;                     // launched and not yet polled as StepResult
  bool stop_ = false;
  std::thread thread_;
};

CpuModelRunner::CpuModelRunner(std::unique_ptr<Core> core) : core_(std::move(core)) {}
CpuModelRunner::~CpuModelRunner() = default;

StatusOr<std::unique_ptr<CpuModelRunner>> CpuModelRunner::Create(const LoadedModel& model, CpuDevice& device,
                                                                 const KvLayout& layout, const KvPoolPlan& pool_plan,
                                                                 std::span<std::byte> pool, CpuRunnerOptions options) {
  BATON_ASSIGN_OR_RETURN(auto pass,
                         ForwardPass::Create(model, device, layout, pool_plan, pool, options.max_step_tokens));
  auto core = std::make_unique<Core>(model, device, pool_plan, std::move(options), std::move(pass), layout);
  return std::unique_ptr<CpuModelRunner>(new CpuModelRunner(std::move(core)));
}

uint64_t CpuModelRunner::WorkspaceBytes(const DecoderDescription& decoder, const CpuRunnerOptions& options) {
  return ForwardPass::WorkspaceBytes(decoder, options.max_step_tokens);
}

void CpuModelRunner::Launch(StepPlan plan) { core_->Launch(std::move(plan)); }
void CpuModelRunner::Convert(KvConversion conversion) { core_->Convert(std::move(conversion)); }
void CpuModelRunner::Poll(std::vector<RunnerEvent>* events) { core_->Poll(events); }

Hash128 CpuModelRunner::numeric_identity() const {
  const std::string words = std::string(kNumerics) + std::string(KvWords(core_->kv_dtype()));
  return HashBytes128(std::as_bytes(std::span(words)));
}

}  // namespace baton

// Every interleaving of both ticket machines, their messages, their puts and their faults, breadth first, for a block
// that goes from hand-off A to hand-off B. Time is abstracted: any timer that is armed may fire now.
//
// A is seen in full: chunks are posted as layers become ready, both of them in flight. B, whose KV was there before it
// asks, comes once A has had a ticket.
//
// Messages and chunk notices of a session are a set that only grows: what was sent may arrive at any moment, again and
// again, in any order, or never. A put in flight may land at any moment; an op that ended with an error may still land
// later. A session may break (each side learns of it by itself and reads until then; what was sent dies with it), a
// writer may crash (what it had in flight may still land until its death is proven).
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "unit/handoff/machine_states.h"

namespace baton::model {

// What may happen, how often; what costs nothing (loss, duplicates, order, timers) may always happen.
struct Faults {
  uint8_t session_breaks = 0;
  uint8_t crashes = 0;      // of a writer; a supervisor's kill is not counted
  uint8_t cancels = 0;      // at the writer
  uint8_t aborts = 0;       // at the reader
  uint8_t broken_puts = 0;  // an op ends with an error, or all by force (sever); whether they land is open
  uint8_t wrong_bytes = 0;  // an op ends well and other bytes lie there
  uint8_t busy = 0;         // the reader says BUSY; else a RESERVE waits until it has a block
  uint8_t forgotten = 0;    // a recorded outcome is too old
  uint8_t given_up = 0;     // a writer without a session stops to wait for one
  bool operator==(const Faults&) const = default;
};

struct ModelOptions {
  Bounds bounds;
  int writer_of[kChildren] = {0, 0};
  Faults faults;
  // The reader takes the fence of mode R for effective where it is not: a fault of the world, for the checker's sake.
  bool fence_is_a_lie = false;
};

struct ModelResult {
  std::string violation;  // "" or a sentence
  std::vector<std::string> trace;
  size_t states = 0, transitions = 0, writer_states = 0, reader_states = 0, resting = 0, handed_over = 0;
  bool exhausted = false;
};

class HandoffModel {
 public:
  explicit HandoffModel(const ModelOptions& options);
  // Stops at the first violation, or beyond that many states.
  ModelResult Explore(size_t most_states);

 private:
  enum PutState : uint8_t { kNoPut, kInFlight, kInDoubt, kLanded };  // kLanded + content: until its Quiesced
  // Plain bytes, so that equal states are equal memory.
  struct World {
    MessageSet to_reader[kWriters], to_writer[kWriters];
    uint32_t reader, writer[kWriters];
    uint16_t notices;  // set of puts
    uint8_t puts[kPuts];
    uint8_t memory[kSlots][kChunks];
    uint8_t owner[kSlots];                // ticket + 1 that has the slot's block; 0: free
    uint8_t fence[kTickets];              // 0; 1: asked for; 2: holds
    uint8_t cut[(kTickets + 7) / 8 * 8];  // mode K, the same of what its writer was granted; no padding
    uint8_t child_of[kTickets];           // + 1
    uint8_t stage[kChildren];
    uint8_t begun, ready, unpinned;  // sets of children
    uint8_t writer_up[kWriters], reader_up[kWriters], broken[kWriters], hello[kWriters];
    uint8_t crashed[kWriters], proven[kWriters], doubtful[kWriters];
    Faults left;
  };
  static_assert(std::has_unique_object_representations_v<World>);

  enum class Act : uint8_t {
    kBegin,
    kCompute,
    kToWriter,
    kBusyTooLong,
    kToReader,
    kRefused,
    kBusy,
    kNotice,
    kLand,
    kLandWrong,
    kQuiesce,
    kBreakPut,
    kCancel,
    kDeadline,
    kChildTimer,
    kGiveUpCommit,
    kGiveUpReader,
    kDrainTimer,
    kWriterLearns,
    kReaderLearns,
    kHello,
    kSessionUp,
    kCrash,
    kKill,
    kProof,
    kQuiet,
    kFenced,
    kAbort,
    kEnd,
    kGrace,
    kLease,
    kAbortTimer,
    kFenceTimer,
    kForget
  };
  struct Step {
    Act act;
    uint8_t a = 0, b = 0;
  };

  template <typename Try>
  void ForEachStep(const World& s, const Try& attempt) const;
  // False: beyond the bounds, as if it had not happened.
  bool Do(const Step& step, World* s);
  void Apply(const Step& step, World* s);
  void Land(World* s, int put, bool wrong);
  void Ready(World* s, int ticket);
  const Outcome& OnWriter(World* s, int writer, uint32_t event);
  const Outcome& OnReader(World* s, uint32_t event);
  bool MayBegin(const World& s, int child) const;
  bool AtRest(const World& s) const;
  void Forget(World* s) const;
  std::string Describe(const Step& step) const;
  void Violation(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  int SlotOf(int ticket) const { return ticket / options_.bounds.generations; }

  const ModelOptions options_;
  MessageTable to_reader_, to_writer_;
  WriterStates writers_;
  ReaderStates readers_;
  std::string violation_;
};

}  // namespace baton::model

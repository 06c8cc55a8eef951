// Both ticket machines as values: a state of a machine is a number, an event on it is remembered. The machines are
// the shipped ones; what is added is a canonical form of everything that they hold (time: a timer is off, armed or
// due; statistics: none), so that equal states meet and an event on a state is computed once.
//
// The canonical form names every field of every record by a structured binding: a field that is added to a machine
// does not compile here until somebody says what it means for a state.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "handoff/reader_tickets.h"
#include "handoff/writer_tickets.h"

namespace baton::model {

// The bounds of the world. A ticket is (slot, generation), a put is (ticket, chunk, attempt).
inline constexpr int kSlots = 2, kTickets = 4, kChunks = 2, kAttempts = 2, kPuts = kTickets * kChunks * kAttempts;
inline constexpr int kChildren = 2, kWriters = 2;
inline constexpr uint32_t kTokens = 16;  // one block
inline constexpr Attempt kMostReserves = 3;

struct Bounds {
  uint8_t slots = 1;
  uint8_t generations = 3;  // slots * generations <= kTickets; a RESERVE beyond is REFUSED
  uint8_t pushes = 1;       // of a chunk: 1, or 2 with a re-push after MISSING
  // A put that landed is reported to its writer later, not at once.
  bool late_completions = false;
  Rules rules;
  TransferMode mode = TransferMode::kOneSided;
};

// What lies in a cell of memory (a chunk of a block), and, as its number, its digest.
enum class Bytes : uint8_t { kNothing, kFinal, kEarly, kBroken };
constexpr uint8_t Content(int child, int chunk, Bytes what) {
  return static_cast<uint8_t>(child * 16 + chunk * 4 + static_cast<int>(what) + 1);
}

struct Put {
  int ticket, chunk, attempt;  // from 0
};
constexpr int PutIndex(const Put& p) { return (p.ticket * kChunks + p.chunk) * kAttempts + p.attempt; }
constexpr Put PutAt(int index) { return {index / kChunks / kAttempts, index / kAttempts % kChunks, index % kAttempts}; }

enum class WriterEvent : uint8_t {
  kBegin,        // child, session stands
  kDeliver,      // message
  kBusyTooLong,  // message: a BUSY that comes when the hold is over
  kCompute,      // child, stage 1: half of the layers; 2: all, and the first token
  kQuiesced,     // put, digest
  kBroken,       // put: its source is no longer read, the target is in doubt
  kSessionLost,
  kSessionUp,     // set of tickets from Hello's answer
  kCancel,        // child
  kTimer,         // child
  kGiveUpCommit,  // child: COMMIT was repeated long enough
  kDrainTimer,    // ticket
  kGiveUpReader,
};
enum class ReaderEvent : uint8_t {
  kDeliver,      // message, writer
  kRefuse,       // message, writer: a RESERVE that is not granted, come what may
  kBusy,         // message, writer: the same, for now
  kNotice,       // put, digest
  kQuiet,        // ticket
  kFenced,       // writer
  kSessionLost,  // writer
  kWriterDead,   // writer
  kAbort,        // ticket
  kEnd,          // ticket
  kGraceTimer,   // slot
  kLeaseTimer,   // slot
  kAbortTimer,   // slot
  kFenceTimer,   // slot
  kForget,       // slot: its oldest outcome
};
template <typename Kind>
constexpr uint32_t Event(Kind kind, uint32_t a = 0, uint32_t b = 0) {
  return static_cast<uint32_t>(kind) << 24 | a << 8 | b;
}

// What an event did, besides the next state.
struct Outcome {
  uint32_t next = 0;
  std::vector<std::pair<uint8_t, uint8_t>> sends;  // (writer at the other end or 0, message)
  // Of a writer.
  std::vector<uint8_t> posts;            // puts
  uint8_t handed_off = 0, unpinned = 0;  // sets of children
  bool sever = false;
  Attempt reserve = 0;  // sent
  // Of the reader.
  int opened = -1, opened_for = -1;  // ticket, child
  bool busy = false;
  std::vector<uint8_t> ready, quarantined, freed;  // tickets
  uint8_t fence = 0;                               // set of writers
};

// Messages of one direction by number.
using MessageSet = std::bitset<192>;
class MessageTable {
 public:
  explicit MessageTable(const Bounds& bounds) : bounds_(bounds) {}
  uint8_t Number(const PairMessage& message);
  // All that are about the ticket; all answers to the child's RESERVE or COMMIT but GRANT.
  const MessageSet& Naming(int ticket) const { return of_ticket_[ticket]; }
  const MessageSet& AnswersTo(int child) const { return answers_to_[child]; }
  const PairMessage& At(uint8_t number) const { return messages_[number]; }
  std::string Describe(uint8_t number) const { return names_[number]; }

 private:
  const Bounds& bounds_;
  std::map<std::string, uint8_t> numbers_;
  std::vector<PairMessage> messages_;
  std::vector<std::string> names_;
  MessageSet of_ticket_[kTickets], answers_to_[kChildren];
};

struct WriterView {
  uint8_t live = 0, armed = 0, committing = 0, stopping = 0;  // sets of children
  uint8_t asked_often = 0;         // children that wait for the answer to the last RESERVE that the model has
  uint8_t draining = 0, dead = 0;  // sets of tickets
};
struct SlotView {
  TicketState state = TicketState::kFree;
  int ticket = -1, writer = -1;
  bool grace = false, lease = false, abort = false, fence = false, remembers = false;
};
struct ReaderView {
  SlotView slots[kSlots];
  uint8_t open_tickets[kWriters] = {};  // sets, for Hello's answer
};

// All states of one machine that were reached, and all events that were tried on them.
template <typename Machine, typename View>
class MachineStates {
 public:
  const View& At(uint32_t state) const { return views_[state]; }
  size_t size() const { return states_.size(); }

 protected:
  uint32_t Number(std::unique_ptr<Machine> machine, const std::string& canonical, const View& view) {
    const auto [it, fresh] = numbers_.try_emplace(canonical, static_cast<uint32_t>(states_.size()));
    if (fresh) {
      states_.push_back(std::move(machine));
      views_.push_back(view);
    }
    return it->second;
  }
  std::map<std::string, uint32_t> numbers_;
  std::vector<std::unique_ptr<Machine>> states_;
  std::deque<View> views_;  // a reference stays good while states are added
  std::unordered_map<uint64_t, Outcome> outcomes_;
};

class WriterStates : public MachineStates<WriterTickets, WriterView> {
 public:
  WriterStates(const Bounds& bounds, MessageTable* to_reader, const MessageTable* to_writer);
  uint32_t first() const { return 0; }
  const Outcome& Apply(uint32_t state, uint32_t event);

 private:
  void Run(WriterTickets* m, uint32_t event, WriterActions* out) const;
  uint32_t Keep(std::unique_ptr<WriterTickets> m);
  const Bounds& bounds_;
  MessageTable* const to_reader_;
  const MessageTable* const to_writer_;
};

class ReaderStates : public MachineStates<ReaderTickets, ReaderView> {
 public:
  ReaderStates(const Bounds& bounds, const MessageTable* to_reader, MessageTable* to_writer);
  uint32_t first() const { return 0; }
  const Outcome& Apply(uint32_t state, uint32_t event);

 private:
  void Run(ReaderTickets* m, uint32_t event, ReaderActions* out, Outcome* outcome) const;
  void OnReserve(ReaderTickets* m, const Reserve& reserve, int writer, ReaderEvent kind, ReaderActions* out,
                 Outcome* outcome) const;
  uint32_t Keep(std::unique_ptr<ReaderTickets> m);
  const Bounds& bounds_;
  const MessageTable* const to_reader_;
  MessageTable* const to_writer_;
};

const ProcessId& ReaderId();
const ProcessId& WriterId(int writer);

}  // namespace baton::model

#include "unit/handoff/handoff_model.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/hash.h"
#include "baton/check.h"

namespace baton::model {
namespace {

bool Has(unsigned set, int i) { return (set >> i & 1u) != 0; }

}  // namespace

HandoffModel::HandoffModel(const ModelOptions& options)
    : options_(options),
      to_reader_(options_.bounds),
      to_writer_(options_.bounds),
      writers_(options_.bounds, &to_reader_, &to_writer_),
      readers_(options_.bounds, &to_reader_, &to_writer_) {
  BATON_CHECK(options_.bounds.slots * options_.bounds.generations <= kTickets, "more tickets than the model has");
}

// ---- what may happen ------------------------------------------------------------------------------

// attempt(step, is a fault)
template <typename Try>
void HandoffModel::ForEachStep(const World& s, const Try& attempt) const {
  constexpr bool kFault = true, kCourse = false;
  const auto each = [](const MessageSet& set, const auto& f) {
    for (size_t i = set._Find_first(); i < set.size(); i = set._Find_next(i)) f(static_cast<int>(i));
  };
  const auto step = [](Act act, int a, int b = 0) {
    return Step{act, static_cast<uint8_t>(a), static_cast<uint8_t>(b)};
  };
  const ReaderView& r = readers_.At(s.reader);

  for (int w = 0; w < kWriters; ++w) {
    const bool used = options_.writer_of[0] == w || options_.writer_of[1] == w;
    if (!used) continue;
    // Both ends read what was sent until they know that the session is gone.
    if (s.reader_up[w]) {
      each(s.to_reader[w], [&](int m) {
        const bool reserve = std::holds_alternative<Reserve>(to_reader_.At(m));
        // One-sided mode grants only to a process whose death can be seen.
        if (reserve && s.proven[w]) return attempt(step(Act::kRefused, m, w), kCourse);
        attempt(step(Act::kToReader, m, w), kCourse);
        if (reserve && s.left.busy > 0) attempt(step(Act::kBusy, m, w), kFault);
      });
    }
    if (s.broken[w] && s.reader_up[w]) attempt(step(Act::kReaderLearns, w), kCourse);
    if (s.crashed[w]) {
      if (!s.proven[w] && options_.bounds.mode == TransferMode::kOneSided) attempt(step(Act::kProof, w), kCourse);
      continue;
    }
    const WriterView& v = writers_.At(s.writer[w]);
    if (s.writer_up[w]) {
      each(s.to_writer[w], [&](int m) {
        attempt(step(Act::kToWriter, m, w), kCourse);
        if (std::holds_alternative<Busy>(to_writer_.At(m))) attempt(step(Act::kBusyTooLong, m, w), kCourse);
      });
    }
    for (int c = 0; c < kChildren; ++c) {
      if (options_.writer_of[c] != w) continue;
      if (!Has(s.begun, c) && MayBegin(s, c)) attempt(step(Act::kBegin, c), kCourse);
      if (!Has(v.live, c)) continue;
      if (s.stage[c] < 2) attempt(step(Act::kCompute, c), kCourse);
      if (Has(v.stopping, c)) {
        if (s.left.broken_puts > 0) attempt(step(Act::kChildTimer, c), kFault);
      } else if (Has(v.armed, c)) {
        attempt(step(Act::kChildTimer, c), kCourse);
      }
      if (Has(v.committing, c)) attempt(step(Act::kGiveUpCommit, c), kCourse);
      if (s.left.cancels > 0) attempt(step(Act::kCancel, c), kFault);
      if (Has(v.asked_often, c)) attempt(step(Act::kDeadline, c), kCourse);
    }
    for (int t = 0; t < kTickets; ++t) {
      if (Has(v.draining, t)) attempt(step(Act::kDrainTimer, t, w), kCourse);
    }
    // Until one of them knows, a broken session is one whose messages are late.
    if (s.left.session_breaks > 0 && s.writer_up[w] && s.reader_up[w] && !s.broken[w]) {
      attempt(step(Act::kWriterLearns, w), kFault);
      attempt(step(Act::kReaderLearns, w), kFault);
    }
    if (s.broken[w] && s.writer_up[w]) attempt(step(Act::kWriterLearns, w), kCourse);
    if (!s.writer_up[w] && s.broken[w] && !s.reader_up[w]) attempt(step(Act::kHello, w), kCourse);
    if (!s.writer_up[w] && !s.broken[w]) attempt(step(Act::kSessionUp, w), kCourse);
    if (!s.writer_up[w] && s.left.given_up > 0) attempt(step(Act::kGiveUpReader, w), kFault);
    if (s.left.crashes > 0) attempt(step(Act::kCrash, w), kFault);
    if (s.doubtful[w] && options_.bounds.mode == TransferMode::kOneSided && r.open_tickets[w] != 0) {
      attempt(step(Act::kKill, w), kCourse);
    }
  }
  for (int p = 0; p < kPuts; ++p) {
    const uint8_t put = s.puts[p];
    const int child = s.child_of[PutAt(p).ticket] - 1;
    const bool crashed = put != kNoPut && s.crashed[options_.writer_of[child]];
    if (put == kInFlight || put == kInDoubt) attempt(step(Act::kLand, p), kCourse);
    if (put == kInFlight && s.left.wrong_bytes > 0) attempt(step(Act::kLandWrong, p), kFault);
    if (put >= kLanded && !crashed) attempt(step(Act::kQuiesce, p), kCourse);
    if (put == kInFlight && !crashed && s.left.broken_puts > 0) attempt(step(Act::kBreakPut, p), kFault);
    if (Has(s.notices, p)) attempt(step(Act::kNotice, p), kCourse);
  }
  for (int i = 0; i < options_.bounds.slots; ++i) {
    const SlotView& slot = r.slots[i];
    if (slot.grace) attempt(step(Act::kGrace, i), kCourse);
    if (slot.lease) attempt(step(Act::kLease, i), kCourse);
    if (slot.state == TicketState::kQuarantined && slot.abort) attempt(step(Act::kAbortTimer, i), kCourse);
    if (slot.state == TicketState::kQuarantined && slot.fence) attempt(step(Act::kFenceTimer, i), kCourse);
    if (slot.remembers && s.left.forgotten > 0) attempt(step(Act::kForget, i), kFault);
    const bool reserving = slot.state == TicketState::kReserved || slot.state == TicketState::kReceiving;
    if (reserving && s.left.aborts > 0) attempt(step(Act::kAbort, slot.ticket), kFault);
    if (slot.state == TicketState::kReady) attempt(step(Act::kEnd, slot.ticket), kCourse);
  }
  for (int t = 0; t < kTickets; ++t) {
    if (s.fence[t] == 1) attempt(step(Act::kQuiet, t), kCourse);
    if (s.cut[t] == 1) attempt(step(Act::kFenced, options_.writer_of[s.child_of[t] - 1]), kCourse);
  }
}

bool HandoffModel::Do(const Step& step, World* s) {
  if (step.act == Act::kToWriter) {
    // A STALE that comes again makes the writer ask again; that could go on for ever.
    return OnWriter(s, step.b, Event(WriterEvent::kDeliver, step.a)).reserve <= kMostReserves;
  }
  if (step.act == Act::kToReader || step.act == Act::kBusy) {
    const bool busy = step.act == Act::kBusy;
    if (!OnReader(s, Event(busy ? ReaderEvent::kBusy : ReaderEvent::kDeliver, step.a, step.b)).busy) return !busy;
    if (s->left.busy == 0) return false;
    --s->left.busy;
    return true;
  }
  Apply(step, s);
  return true;
}

void HandoffModel::Apply(const Step& step, World* s) {
  const int a = step.a, b = step.b;
  switch (step.act) {
    case Act::kBegin:
      s->begun |= 1 << a;
      OnWriter(s, options_.writer_of[a], Event(WriterEvent::kBegin, a, s->writer_up[options_.writer_of[a]]));
      if (a == 0) return;
      s->stage[a] = 2;
      OnWriter(s, options_.writer_of[a], Event(WriterEvent::kCompute, a, 2));
      return;
    case Act::kCompute:
      ++s->stage[a];
      OnWriter(s, options_.writer_of[a], Event(WriterEvent::kCompute, a, s->stage[a]));
      return;
    case Act::kBusyTooLong:
      OnWriter(s, b, Event(WriterEvent::kBusyTooLong, a));
      return;
    case Act::kToWriter:
    case Act::kToReader:
    case Act::kBusy:
      return;  // Do
    case Act::kRefused:
      OnReader(s, Event(ReaderEvent::kRefuse, a, b));
      return;
    case Act::kNotice: {
      const Put put = PutAt(a);
      const int writer = options_.writer_of[s->child_of[put.ticket] - 1];
      // The digest is over the bytes that lie there when the notice is read.
      OnReader(s, Event(ReaderEvent::kNotice, a << 1 | writer, s->memory[SlotOf(put.ticket)][put.chunk]));
      return;
    }
    case Act::kLand:
      return Land(s, a, false);
    case Act::kLandWrong:
      --s->left.wrong_bytes;
      return Land(s, a, true);
    case Act::kQuiesce: {
      const uint8_t content = s->puts[a] - kLanded;
      s->puts[a] = kNoPut;
      OnWriter(s, options_.writer_of[s->child_of[PutAt(a).ticket] - 1], Event(WriterEvent::kQuiesced, a, content));
      return;
    }
    case Act::kBreakPut: {
      const int writer = options_.writer_of[s->child_of[PutAt(a).ticket] - 1];
      --s->left.broken_puts;
      s->puts[a] = kInDoubt;
      s->doubtful[writer] = 1;
      OnWriter(s, writer, Event(WriterEvent::kBroken, a));
      return;
    }
    case Act::kDeadline:
    case Act::kCancel:
      if (step.act == Act::kCancel) --s->left.cancels;
      OnWriter(s, options_.writer_of[a], Event(WriterEvent::kCancel, a));
      return;
    case Act::kChildTimer:
      OnWriter(s, options_.writer_of[a], Event(WriterEvent::kTimer, a));
      return;
    case Act::kGiveUpCommit:
      OnWriter(s, options_.writer_of[a], Event(WriterEvent::kGiveUpCommit, a));
      return;
    case Act::kGiveUpReader:
      --s->left.given_up;
      OnWriter(s, a, Event(WriterEvent::kGiveUpReader));
      return;
    case Act::kDrainTimer:
      OnWriter(s, b, Event(WriterEvent::kDrainTimer, a));
      return;
    case Act::kWriterLearns:
      if (!s->broken[a]) --s->left.session_breaks;
      s->broken[a] = 1;
      s->to_writer[a] = {};
      s->writer_up[a] = 0;
      OnWriter(s, a, Event(WriterEvent::kSessionLost));
      return;
    case Act::kReaderLearns:
      if (!s->broken[a]) --s->left.session_breaks;
      s->broken[a] = 1;
      s->to_reader[a] = {};
      s->reader_up[a] = 0;
      OnReader(s, Event(ReaderEvent::kSessionLost, a));
      return;
    case Act::kHello:
      s->broken[a] = 0;
      s->reader_up[a] = 1;
      s->hello[a] = readers_.At(s->reader).open_tickets[a];
      return;
    case Act::kSessionUp: {
      const uint8_t open = s->hello[a];
      s->hello[a] = 0;
      s->writer_up[a] = 1;
      OnWriter(s, a, Event(WriterEvent::kSessionUp, open));
      return;
    }
    case Act::kCrash:
    case Act::kKill:
      if (step.act == Act::kCrash) --s->left.crashes;
      s->crashed[a] = s->broken[a] = 1;
      s->writer_up[a] = s->hello[a] = 0;
      s->to_writer[a] = {};
      s->writer[a] = writers_.first();
      return;
    case Act::kProof:
      s->proven[a] = 1;
      for (int p = 0; p < kPuts; ++p) {
        if (s->puts[p] != kNoPut && options_.writer_of[s->child_of[PutAt(p).ticket] - 1] == a) s->puts[p] = kNoPut;
      }
      OnReader(s, Event(ReaderEvent::kWriterDead, a));
      return;
    case Act::kQuiet:
      s->fence[a] = 2;
      OnReader(s, Event(ReaderEvent::kQuiet, a));
      return;
    case Act::kFenced:
      for (int t = 0; t < kTickets; ++t) {
        if (s->cut[t] == 1 && options_.writer_of[s->child_of[t] - 1] == a) s->cut[t] = 2;
      }
      OnReader(s, Event(ReaderEvent::kFenced, a));
      return;
    case Act::kAbort:
      --s->left.aborts;
      OnReader(s, Event(ReaderEvent::kAbort, a));
      return;
    case Act::kEnd:
      s->owner[SlotOf(a)] = 0;
      OnReader(s, Event(ReaderEvent::kEnd, a));
      return;
    case Act::kGrace:
      OnReader(s, Event(ReaderEvent::kGraceTimer, a));
      return;
    case Act::kLease:
      OnReader(s, Event(ReaderEvent::kLeaseTimer, a));
      return;
    case Act::kAbortTimer:
      OnReader(s, Event(ReaderEvent::kAbortTimer, a));
      return;
    case Act::kFenceTimer:
      OnReader(s, Event(ReaderEvent::kFenceTimer, a));
      return;
    case Act::kForget:
      --s->left.forgotten;
      OnReader(s, Event(ReaderEvent::kForget, a));
      return;
  }
}

void HandoffModel::Land(World* s, int put_index, bool wrong) {
  const Put put = PutAt(put_index);
  const int slot = SlotOf(put.ticket), child = s->child_of[put.ticket] - 1;
  const bool in_doubt = s->puts[put_index] == kInDoubt;
  // What is read is what the source holds: final once the layers were computed, anything once the blocks are let go.
  Bytes source = s->stage[child] > put.chunk ? Bytes::kFinal : Bytes::kEarly;
  if (!in_doubt && Has(s->unpinned, child)) source = Bytes::kBroken;
  const uint8_t content = Content(child, put.chunk, source);
  s->puts[put_index] = in_doubt ? kNoPut : kLanded + content;
  const auto complete = [&] {
    if (in_doubt || options_.bounds.late_completions) return;
    Apply({Act::kQuiesce, static_cast<uint8_t>(put_index)}, s);
  };
  const bool fenced = (options_.bounds.mode == TransferMode::kReceiverPosted && s->fence[put.ticket] == 2) ||
                      (options_.bounds.mode == TransferMode::kKeyedPut && s->cut[put.ticket] == 2);
  if (fenced && !options_.fence_is_a_lie) return complete();
  if (s->owner[slot] == 0) return Violation("a write landed in a free block");
  if (s->owner[slot] != put.ticket + 1) return Violation("a write landed in a block of another ticket");
  if (readers_.At(s->reader).slots[slot].state == TicketState::kReady) {
    return Violation("a write landed in a block that is READY and read");
  }
  s->memory[slot][put.chunk] = wrong ? Content(child, put.chunk, Bytes::kBroken) : content;
  if (!in_doubt) s->notices |= 1 << put_index;
  complete();
}

void HandoffModel::Ready(World* s, int ticket) {
  const int child = s->child_of[ticket] - 1;
  if (Has(s->ready, child)) Violation("READY twice");
  s->ready |= 1 << child;
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if (s->memory[SlotOf(ticket)][chunk] != Content(child, chunk, Bytes::kFinal)) Violation("READY with wrong bytes");
  }
}

const Outcome& HandoffModel::OnWriter(World* s, int w, uint32_t event) {
  const Outcome& o = writers_.Apply(s->writer[w], event);
  s->writer[w] = o.next;
  if (s->writer_up[w] && s->reader_up[w]) {
    for (const auto& [peer, message] : o.sends) s->to_reader[w].set(message);
  }
  for (const uint8_t put : o.posts) s->puts[put] = kInFlight;
  s->unpinned |= o.unpinned;
  if ((o.handed_off & ~s->ready) != 0) Violation("the writer let go of an answer that the reader does not have");
  if (!o.sever) return o;
  // The endpoint is closed by force, and the session with it.
  --s->left.broken_puts;
  for (int p = 0; p < kPuts; ++p) {
    if (s->puts[p] == kNoPut || s->puts[p] == kInDoubt) continue;
    if (options_.writer_of[s->child_of[PutAt(p).ticket] - 1] != w) continue;
    s->puts[p] = s->puts[p] == kInFlight ? kInDoubt : kNoPut;
    s->doubtful[w] = 1;
    OnWriter(s, w, Event(WriterEvent::kBroken, p));
  }
  if (!s->writer_up[w]) return o;
  s->broken[w] = 1;
  Apply({Act::kWriterLearns, static_cast<uint8_t>(w)}, s);
  return o;
}

const Outcome& HandoffModel::OnReader(World* s, uint32_t event) {
  const Outcome& o = readers_.Apply(s->reader, event);
  s->reader = o.next;
  // Retired: the transport hands out no notice of it any more, and says when it is quiet.
  const auto retire = [s](uint8_t t) { s->notices &= ~(((1 << kChunks * kAttempts) - 1) << PutIndex({t, 0, 0})); };
  for (const uint8_t t : o.quarantined) s->fence[t] = std::max<uint8_t>(s->fence[t], 1), retire(t);
  for (const uint8_t t : o.ready) retire(t);
  for (int w = 0; w < kWriters; ++w) {
    if (!Has(o.fence, w)) continue;
    for (int t = 0; t < kTickets; ++t) {
      if (s->child_of[t] != 0 && options_.writer_of[s->child_of[t] - 1] == w)
        s->cut[t] = std::max<uint8_t>(s->cut[t], 1);
    }
  }
  for (const uint8_t t : o.freed) {
    if (s->owner[SlotOf(t)] == t + 1) s->owner[SlotOf(t)] = 0;
  }
  if (o.opened >= 0) {
    if (s->owner[SlotOf(o.opened)] != 0) Violation("a block was granted that is not free");
    s->owner[SlotOf(o.opened)] = o.opened + 1;
    s->child_of[o.opened] = o.opened_for + 1;
  }
  for (const uint8_t t : o.ready) Ready(s, t);
  for (const auto& [w, message] : o.sends) {
    // A session that only the reader knows of yet: the writer reads on when it is up.
    if (s->reader_up[w] && (s->writer_up[w] || !s->broken[w])) s->to_writer[w].set(message);
  }
  return o;
}

// What can change nothing any more is taken out of the state, so that alike states meet: answers for a child that is
// over, and all that is said about a ticket that both sides are through with.
void HandoffModel::Forget(World* s) const {
  for (int c = 0; c < kChildren; ++c) {
    const int w = options_.writer_of[c];
    const bool over = Has(s->begun, c) && !s->crashed[w] && !Has(writers_.At(s->writer[w]).live, c);
    if (!over) continue;
    s->to_writer[w] &= ~to_writer_.AnswersTo(c);
    bool in_doubt = false;
    for (int p = 0; p < kPuts; ++p)
      in_doubt = in_doubt || (s->puts[p] != kNoPut && s->child_of[PutAt(p).ticket] == c + 1);
    if (!in_doubt) s->stage[c] = 2;
  }
  if (!options_.bounds.rules.Holds(Rule::kS5)) return;  // then generations are not told apart
  for (int t = 0; t < kTickets; ++t) {
    if (s->child_of[t] == 0 || s->owner[SlotOf(t)] == t + 1) continue;
    const int c = s->child_of[t] - 1, w = options_.writer_of[c];
    if (s->crashed[w]) continue;
    const WriterView& v = writers_.At(s->writer[w]);
    if (Has(v.draining, t) || (Has(v.live, c) && !Has(v.dead, t))) continue;
    s->to_writer[w] &= ~to_writer_.Naming(t);
    s->to_reader[w] &= ~to_reader_.Naming(t);
  }
}

bool HandoffModel::MayBegin(const World& s, int child) const {
  return child == 0 || std::count(std::begin(s.child_of), std::end(s.child_of), 1) > 0;
}

bool HandoffModel::AtRest(const World& s) const {
  for (int i = 0; i < options_.bounds.slots; ++i) {
    if (s.owner[i] != 0 || readers_.At(s.reader).slots[i].state != TicketState::kFree) return false;
  }
  for (int c = 0; c < kChildren; ++c) {
    const int w = options_.writer_of[c];
    if (s.crashed[w]) continue;
    const WriterView& v = writers_.At(s.writer[w]);
    if ((!Has(s.begun, c) && MayBegin(s, c)) || v.live != 0 || v.draining != 0) return false;
  }
  return true;
}

// ---- the search -----------------------------------------------------------------------------------

ModelResult HandoffModel::Explore(size_t most_states) {
  constexpr uint32_t kNone = ~uint32_t{0};
  std::deque<World> worlds;
  std::vector<uint64_t> hashes;
  std::vector<std::pair<uint32_t, Step>> how;           // each state's first way here
  std::vector<uint32_t> table(size_t{1} << 16, kNone);  // open addressing, by content
  const auto hash = [](const World& s) { return Hash64({reinterpret_cast<const std::byte*>(&s), sizeof(World)}); };
  const auto number = [&](const World& s, uint32_t from, const Step& step) {
    if ((worlds.size() + 1) * 2 > table.size()) {
      table.assign(table.size() * 4, kNone);
      for (uint32_t n = 0; n < worlds.size(); ++n) {
        size_t i = hashes[n] & (table.size() - 1);
        while (table[i] != kNone) i = (i + 1) & (table.size() - 1);
        table[i] = n;
      }
    }
    const uint64_t h = hash(s);
    size_t i = h & (table.size() - 1);
    while (table[i] != kNone && (hashes[table[i]] != h || std::memcmp(&worlds[table[i]], &s, sizeof(World)) != 0)) {
      i = (i + 1) & (table.size() - 1);
    }
    if (table[i] == kNone) {
      table[i] = static_cast<uint32_t>(worlds.size());
      worlds.push_back(s);
      hashes.push_back(h);
      how.emplace_back(from, step);
    }
    return table[i];
  };
  ModelResult result;
  const auto trace = [&](uint32_t state) {
    for (; state != 0; state = how[state].first) result.trace.push_back(Describe(how[state].second));
    std::reverse(result.trace.begin(), result.trace.end());
  };

  World first{};
  for (int w = 0; w < kWriters; ++w) first.writer_up[w] = first.reader_up[w] = 1;
  first.left = options_.faults;
  number(first, kNone, {});
  std::vector<uint32_t> course;              // targets of steps that are no faults, state after state
  std::vector<uint64_t> course_begin = {0};  // where a state's targets begin
  for (uint32_t n = 0; n < worlds.size() && worlds.size() <= most_states && violation_.empty(); ++n) {
    const World s = worlds[n];
    ForEachStep(s, [&](const Step& step, bool fault) {
      if (!violation_.empty()) return;
      World next = s;
      if (!Do(step, &next)) return;
      if (violation_.empty()) Forget(&next);
      if (!violation_.empty()) {
        trace(n);
        result.trace.push_back(Describe(step));
        return;
      }
      if (std::memcmp(&next, &s, sizeof(World)) == 0) return;
      ++result.transitions;
      const uint32_t to = number(next, n, step);
      if (!fault) course.push_back(to);
    });
    course_begin.push_back(course.size());
    result.resting += AtRest(s) ? 1 : 0;
    result.handed_over += s.ready == (1 << kChildren) - 1 ? 1 : 0;
  }
  result.violation = violation_;
  result.states = worlds.size();
  result.exhausted = violation_.empty() && course_begin.size() == worlds.size() + 1;
  result.writer_states = writers_.size();
  result.reader_states = readers_.size();
  if (!result.exhausted) return result;

  // No wedge: from every state some course of events without any fault leads to rest. Backwards from rest.
  std::vector<uint64_t> into_begin(worlds.size() + 1, 0);
  for (const uint32_t to : course) ++into_begin[to + 1];
  for (size_t n = 0; n < worlds.size(); ++n) into_begin[n + 1] += into_begin[n];
  std::vector<uint32_t> into(course.size());
  std::vector<uint64_t> filled(into_begin.begin(), into_begin.end() - 1);
  for (uint32_t n = 0; n < worlds.size(); ++n) {
    for (uint64_t i = course_begin[n]; i < course_begin[n + 1]; ++i) into[filled[course[i]]++] = n;
  }
  std::vector<bool> reaches(worlds.size(), false);
  std::vector<uint32_t> todo;
  for (uint32_t n = 0; n < worlds.size(); ++n) {
    if (AtRest(worlds[n])) reaches[n] = true, todo.push_back(n);
  }
  while (!todo.empty()) {
    const uint32_t n = todo.back();
    todo.pop_back();
    for (uint64_t i = into_begin[n]; i < into_begin[n + 1]; ++i) {
      if (!reaches[into[i]]) reaches[into[i]] = true, todo.push_back(into[i]);
    }
  }
  const auto wedged = std::find(reaches.begin(), reaches.end(), false);
  if (wedged != reaches.end()) {
    result.violation = "no course of events leads to rest any more";
    trace(static_cast<uint32_t>(wedged - reaches.begin()));
  }
  return result;
}

std::string HandoffModel::Describe(const Step& step) const {
  const int a = step.a, b = step.b;
  const auto writer = [](int w) { return std::string("writer ") + "PQ"[w]; };
  const auto child = [](int c) { return std::string(1, "AB"[c]); };
  const auto ticket = [&](int t) {
    return "ticket " + std::to_string(SlotOf(t)) + "." + std::to_string(t % options_.bounds.generations + 1);
  };
  const auto put = [&](int p) {
    const Put at = PutAt(p);
    return "chunk " + std::to_string(at.chunk) + " of " + ticket(at.ticket) + ", push " +
           std::to_string(at.attempt + 1);
  };
  switch (step.act) {
    case Act::kBegin:
      return child(a) + " begins";
    case Act::kCompute:
      return child(a) + " computes half of its layers";
    case Act::kToWriter:
      return to_writer_.Describe(a) + " arrives at " + writer(b);
    case Act::kBusyTooLong:
      return to_writer_.Describe(a) + " arrives at " + writer(b) + ", which waited long enough";
    case Act::kToReader:
      return to_reader_.Describe(a) + " of " + writer(b) + " arrives";
    case Act::kRefused:
      return to_reader_.Describe(a) + " of " + writer(b) + " is refused";
    case Act::kBusy:
      return to_reader_.Describe(a) + " of " + writer(b) + " is answered BUSY";
    case Act::kNotice:
      return "the notice of " + put(a) + " arrives";
    case Act::kLand:
      return put(a) + " lands";
    case Act::kLandWrong:
      return put(a) + " lands with wrong bytes";
    case Act::kQuiesce:
      return put(a) + " is reported quiesced";
    case Act::kBreakPut:
      return put(a) + " is reported broken";
    case Act::kDeadline:
      return "the deadline of " + child(a) + " passes";
    case Act::kCancel:
      return child(a) + " is cancelled at its writer";
    case Act::kChildTimer:
      return "the timer of " + child(a) + " fires";
    case Act::kGiveUpReader:
      return writer(a) + " gives the reader up";
    case Act::kGiveUpCommit:
      return child(a) + " repeated its COMMIT long enough";
    case Act::kDrainTimer:
      return writer(b) + " repeats DRAINED of " + ticket(a);
    case Act::kWriterLearns:
      return writer(a) + " learns that its session broke";
    case Act::kReaderLearns:
      return "the reader learns that the session of " + writer(a) + " broke";
    case Act::kHello:
      return "the reader answers a new Hello of " + writer(a);
    case Act::kSessionUp:
      return writer(a) + " has a session again";
    case Act::kCrash:
      return writer(a) + " crashes";
    case Act::kKill:
      return "the supervisor kills " + writer(a);
    case Act::kProof:
      return "the death of " + writer(a) + " is proven";
    case Act::kQuiet:
      return "the transport is quiet about " + ticket(a);
    case Act::kFenced:
      return writer(a) + " is cut off";
    case Act::kAbort:
      return "the reader aborts " + ticket(a);
    case Act::kEnd:
      return "the answer of " + ticket(a) + " ends";
    case Act::kGrace:
      return "the wait for notices ends in slot " + std::to_string(a);
    case Act::kLease:
      return "the lease ends in slot " + std::to_string(a);
    case Act::kAbortTimer:
      return "ABORT is repeated in slot " + std::to_string(a);
    case Act::kFenceTimer:
      return "the fence is due in slot " + std::to_string(a);
    case Act::kForget:
      return "the oldest outcome of slot " + std::to_string(a) + " is forgotten";
  }
  return "";
}

}  // namespace baton::model

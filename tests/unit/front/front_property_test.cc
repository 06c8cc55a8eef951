// Thousands of random lives: workers that follow the protocol over slow links, clients that cancel and leave,
// deaths, cut sessions, lost and repeated tokens. Whatever happens: every request ends exactly once; a client gets
// a prefix of the one right answer, all of it when it gets Done; no worker is left holding anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "base/rng.h"
#include "front/front.h"
#include "support/seed_share.h"
#include "text/utf8.h"
#include "unit/front/front_bench.h"

namespace baton {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Faults {
  bool deaths = false;    // workers die, come back as a new incarnation
  bool cuts = false;      // sessions break, the same incarnation dials again
  bool handoffs = false;  // hand-offs fail for every reason
  bool liars = false;     // tokens are lost, repeated, replayed wrongly; answers end where they should not
  bool refusals = false;  // commands are refused
  bool moves = false;     // answers go on at other workers
};

// The one right answer, from the seed alone.
TokenId TokenAt(uint64_t seed, uint32_t index) {
  const uint64_t draw = KeyedDraw(seed, index, 1);
  if (draw % 40 == 0) return ByteTokenizer::kEnd;
  if (draw % 8 == 1) return static_cast<TokenId>((draw >> 8) % 256);  // often a broken character
  return static_cast<TokenId>('a' + (draw >> 8) % 4);
}
struct RightAnswer {
  std::vector<TokenId> ids;
  std::string text;
  FinishReason reason{};
};
// By another road than the front's: the whole text is searched again after every token.
RightAnswer AnswerOf(uint64_t seed, const StopRules& stop, const std::vector<std::string>& strings) {
  RightAnswer a;
  std::string bytes;
  for (uint32_t i = 0;; ++i) {
    const TokenId id = TokenAt(seed, i);
    a.ids.push_back(id);
    a.reason = FinishAt(stop, id, i);
    if (a.reason != FinishReason::kStop && id < 256) bytes.push_back(static_cast<char>(id));
    std::string whole;
    if (a.reason == FinishReason::kNone) {
      Utf8Assembler assembler;
      assembler.Push(bytes, &whole);
    } else {
      whole = Utf8Assembler::Whole(bytes);
    }
    size_t end = std::string::npos, begin = 0;
    for (const std::string& s : strings) {
      const size_t at = whole.find(s);
      if (at == std::string::npos) continue;
      if (at + s.size() < end || (at + s.size() == end && at < begin)) end = at + s.size(), begin = at;
    }
    if (end != std::string::npos) {
      a.text = whole.substr(0, begin);
      a.reason = FinishReason::kStop;
      return a;
    }
    if (a.reason != FinishReason::kNone) {
      a.text = whole;
      return a;
    }
  }
}

class World {
 public:
  World(uint64_t seed, Faults faults, Rules rules = {})
      : rng_(seed), faults_(faults), front_(Options(seed, rules), &tokenizer_, nullptr) {
    const int prefill = 1 + static_cast<int>(rng_.Below(2)), decode = 1 + static_cast<int>(rng_.Below(3));
    for (int i = 0; i < prefill; ++i) AddName("p" + std::to_string(i), true, rng_.Chance(0.2));
    for (int i = 0; i < decode; ++i) AddName("d" + std::to_string(i), rng_.Chance(0.2), true);
    for (size_t i = 0; i < names_.size(); ++i) StartWorker(i);
  }

  void Run(int num_requests) {
    for (int i = 0; i < num_requests; ++i) At(milliseconds(5) + Micros(200000), [this] { SubmitOne(); });
    if (faults_.deaths) {
      for (int i = 0; i < 2; ++i) At(Micros(300000), [this] { Kill(rng_.Below(names_.size())); });
    }
    if (faults_.cuts) {
      for (int i = 0; i < 2; ++i) At(Micros(300000), [this] { Cut(rng_.Below(names_.size())); });
    }
    for (int i = 0; faults_.moves && i < 4 * num_requests; ++i) {
      At(milliseconds(5) + Micros(250000), [this] {
        if (!clients_.empty()) Tell(MoveOrder{ClientHandle{1 + rng_.Below(clients_.size())}});
      });
    }
    for (size_t i = 0; i < names_.size(); ++i) Beat(i);
    while (!events_.empty()) {
      const auto it = events_.begin();
      if (it->first.first > TimePoint(seconds(40))) break;
      now_ = it->first.first;
      const auto act = std::move(it->second);
      events_.erase(it);
      act();
      // Everything that has arrived goes before timers; ours arrive one by one.
      while (front_.NextTimer() <= now_) Tell(Tick{});
    }
    Judge();
  }
  const FrontCounters& counters() const { return front_.counters(); }
  uint64_t done() const { return done_; }
  uint64_t failed() const { return failed_; }
  uint64_t handed_off() const { return handed_off_; }

 private:
  struct Held {
    Epoch epoch = 0;
    RequestPtr request;
    std::vector<OutputToken> tokens;
    bool ready = false;  // may emit
    uint32_t next = 0;   // emits this index next
    size_t decode = 0;   // P: whose D
    uint64_t decode_start = 0;
    bool writes = false;  // a P that hands off
    bool first_told = false;
    bool lost = false;     // a token of this epoch never left
    Epoch moves = 0;       // under that epoch to `decode`, whose life then is decode_start
    bool stopped = false;  // cut off, and nobody knows whether that one has it
  };
  struct Worker {
    bool alive = false;
    uint64_t start = 0;  // counts deaths; stale timers of an earlier life do nothing
    uint64_t incarnation = 0;
    LinkId link{};
    bool linked = false;
    TimePoint up_free{}, down_free{};  // links are FIFO
    std::map<ChildId, Held> held;
    std::map<ChildId, Epoch> dead;  // epochs up to here are refused
    uint64_t steps = 0;
  };
  struct Name {
    std::string name;
    bool prefill, decode;
    Worker w;
  };
  struct Client {
    ClientRequest request;
    ChildId child;
    RequestPtr sent;
    std::vector<TokenId> ids;
    std::string text;
    int finished = 0, ended = 0;
    FinishReason reason{};
    Status status;
    bool gone = false, cancelled = false;
    Epoch epoch = 0;
  };

  static FrontOptions Options(uint64_t seed, Rules rules) {
    FrontOptions o = SmallOptions();
    o.seed = seed;
    o.rules = rules;
    return o;
  }
  Duration Micros(uint64_t most) { return microseconds(1 + rng_.Below(most)); }
  void At(Duration in, std::function<void()> act) { events_.emplace(std::pair(now_ + in, ++order_), std::move(act)); }
  void AddName(const std::string& name, bool prefill, bool decode) { names_.push_back({name, prefill, decode, {}}); }

  // ---- workers ----
  void StartWorker(size_t i) {
    Worker& w = names_[i].w;
    w.alive = true;
    ++w.incarnation;
    ++w.start;
    w.held.clear();
    w.dead.clear();
    Dial(i);
  }
  void Dial(size_t i) {
    Worker& w = names_[i].w;
    w.link = LinkId{++next_link_};
    w.linked = true;
    link_owner_[w.link] = i;
    WorkerHello h = HelloOf(names_[i].name, names_[i].prefill, names_[i].decode, w.incarnation);
    h.submit_credits = 1 + static_cast<uint32_t>(rng_.Below(6));
    Up(i, WorkerUp{w.link, h});
  }
  // FIFO with a random delay.
  void Up(size_t i, FrontInput input) {
    Worker& w = names_[i].w;
    w.up_free = std::max(w.up_free, now_ + Micros(2000));
    events_.emplace(std::pair(w.up_free, ++order_), [this, input = std::move(input)] { Tell(input); });
  }
  void Say(size_t i, ChildEvent event) {
    Worker& w = names_[i].w;
    if (!w.linked) return;
    WorkerBatch b;
    b.events.push_back(std::move(event));
    Up(i, FromWorker{w.link, Fill(i, std::move(b))});
  }
  WorkerBatch Fill(size_t i, WorkerBatch b) {
    Worker& w = names_[i].w;
    b.heartbeat.steps = ++w.steps;
    b.heartbeat.roles = {names_[i].prefill, names_[i].decode};
    b.heartbeat.running = static_cast<uint32_t>(w.held.size());
    for (const auto& [child, held] : w.held) b.heartbeat.once_hit_in_step.push_back(child);  // always in a step
    b.heartbeat.free_blocks = {64 - std::min<uint32_t>(60, 4 * static_cast<uint32_t>(w.held.size()))};
    return b;
  }
  void Beat(size_t i) {
    Worker& w = names_[i].w;
    if (w.alive && w.linked) Up(i, FromWorker{w.link, Fill(i, {})});
    At(milliseconds(500), [this, i] { Beat(i); });
  }
  void Kill(size_t i) {
    Worker& w = names_[i].w;
    if (!w.alive) return;
    w.alive = false;
    w.held.clear();
    Cut(i);
    At(rng_.Chance(0.8) ? Micros(1000000) : seconds(2), [this, i] { StartWorker(i); });
  }
  void Cut(size_t i) {
    Worker& w = names_[i].w;
    if (!w.linked) return;
    w.linked = false;
    link_owner_.erase(w.link);
    w.held.clear();  // its children are leased by the session (L7)
    Up(i, WorkerDown{w.link, UnavailableError("cut")});
    if (w.alive)
      At(Micros(50000), [this, i, start = w.start] {
        if (names_[i].w.start == start && names_[i].w.alive) Dial(i);
      });
  }

  // ---- commands ----
  void Arrive(LinkId link, const FrontCommand& command) {
    const auto it = link_owner_.find(link);
    if (it == link_owner_.end()) return;
    const size_t i = it->second;
    Worker& w = names_[i].w;
    if (const auto* p = std::get_if<PrefillCommand>(&command)) {
      ASSERT_TRUE(names_[i].prefill);
      Accept(i, p->request, p->progress, p->epoch, &p->decode);
    } else if (const auto* d = std::get_if<DecodeCommand>(&command)) {
      Accept(i, d->request, d->progress, d->epoch, nullptr);
    } else if (const auto* c = std::get_if<CancelCommand>(&command)) {
      End(i, c->child, c->epoch);
      Say(i, NotHeld{c->child, c->epoch});
    } else if (const auto* m = std::get_if<MigrateCommand>(&command)) {
      Migrate(i, *m);
    } else if (const auto* a = std::get_if<AdoptCommand>(&command)) {
      const auto held = w.held.find(a->child);
      if (held != w.held.end() && held->second.epoch == a->epoch && held->second.ready) {
        held->second.moves = 0;
        if (std::exchange(held->second.stopped, false)) Go(i, a->child, a->epoch);
        Say(i, Running{a->child, a->epoch});
      } else {
        End(i, a->child, a->epoch);
        Say(i, NotHeld{a->child, a->epoch});
      }
    }
  }
  void End(size_t i, ChildId child, Epoch epoch) {
    Worker& w = names_[i].w;
    w.dead[child] = std::max(w.dead[child], epoch);
    const auto held = w.held.find(child);
    if (held != w.held.end() && held->second.epoch <= epoch) w.held.erase(held);
  }
  void Accept(size_t i, const RequestPtr& request, const Progress& progress, Epoch epoch, const PeerAddress* decode) {
    Worker& w = names_[i].w;
    const ChildId child = request->id;
    EXPECT_GT(epoch, w.dead[child]) << "a command of an epoch that was ended here";
    EXPECT_EQ(progress.delivered, progress.tokens.size());
    EXPECT_GT(progress.deadline_remaining, Duration::zero());
    if (faults_.refusals && rng_.Chance(0.05)) {
      w.dead[child] = epoch;
      const bool full = rng_.Chance(0.5);
      return Say(i, ChildFailed{child, epoch, full ? ResourceExhaustedError("full") : UnavailableError("no")});
    }
    Held h;
    h.epoch = epoch;
    h.request = request;
    h.tokens = progress.tokens;
    h.next = progress.delivered;
    h.ready = decode == nullptr;
    h.writes = decode != nullptr;
    if (decode != nullptr) {
      for (size_t d = 0; d < names_.size(); ++d) {
        if (names_[d].name == decode->process.name) {
          h.decode = d;
          h.decode_start = names_[d].w.incarnation == decode->process.incarnation.counter ? names_[d].w.start : 0;
        }
      }
    }
    w.held[child] = h;
    At(Micros(8000), [this, i, child, epoch, start = w.start] { Step(i, child, epoch, start); });
  }
  Held* Find(size_t i, ChildId child, Epoch epoch, uint64_t start) {
    Worker& w = names_[i].w;
    const auto it = w.held.find(child);
    if (!w.alive || w.start != start || it == w.held.end() || it->second.epoch != epoch) return nullptr;
    return &it->second;
  }
  void Step(size_t i, ChildId child, Epoch epoch, uint64_t start) {
    Held* h = Find(i, child, epoch, start);
    if (h == nullptr) return;
    if (h->stopped) return;
    if (h->writes) return Write(i, child, epoch, start, h);
    if (Emit(i, child, h)) {
      names_[i].w.dead[child] = epoch;
      names_[i].w.held.erase(child);
      return;
    }
    At(Micros(3000), [this, i, child, epoch, start] { Step(i, child, epoch, start); });
  }
  // The next token from here. True: the answer is over.
  bool Emit(size_t i, ChildId child, Held* h) {
    const uint32_t index = h->next++;
    TokenId id = TokenAt(h->request->sampling.seed, index);
    FinishReason finish = FinishAt(h->request->stop, id, index);
    if (h->tokens.size() <= index) h->tokens.push_back({id, 0, {}});
    EXPECT_EQ(h->tokens[index].id, id);
    const bool over = finish != FinishReason::kNone;
    if (faults_.liars && rng_.Chance(0.02)) {
      const uint64_t kind = rng_.Below(4);
      if (kind == 0 && !over) {
        h->lost = true;
        return false;
      }
      if (kind == 1) Say(i, TokenEvent{child, h->epoch, index, {id, 0, {}}, finish});  // twice
      if (kind == 2 && index > 0 && !h->lost)
        Say(i, TokenEvent{child, h->epoch, index - 1, {id ^ 1, 0, {}}, FinishReason::kNone});
      if (kind == 3 && !over) {
        Say(i, TokenEvent{child, h->epoch, index, {id, 0, {}}, FinishReason::kStop});
        return true;
      }
    }
    if (over) Say(i, ReceiptEvent{child, h->epoch, {}});
    Say(i, TokenEvent{child, h->epoch, index, {id, 0, {}}, finish});
    return over;
  }
  void Write(size_t i, ChildId child, Epoch epoch, uint64_t start, Held* h) {
    if (!h->first_told) {
      h->first_told = true;
      if (Emit(i, child, h)) {
        names_[i].w.dead[child] = epoch;
        names_[i].w.held.erase(child);
        return;
      }
      At(Micros(5000), [this, i, child, epoch, start] { Step(i, child, epoch, start); });
      return;
    }
    // COMMIT: D has it, or it does not, or nobody knows.
    Name& d = names_[h->decode];
    const bool there = d.w.alive && d.w.linked && d.w.start == h->decode_start;
    const auto fail = [&](HandoffFailure why) {
      names_[i].w.dead[child] = epoch;
      names_[i].w.held.erase(child);
      Say(i, HandoffFailed{child, epoch, why, "test"});
    };
    if (!there) return fail(HandoffFailure::kPeerLost);
    const auto dead = d.w.dead.find(child);
    if (dead != d.w.dead.end() && dead->second >= epoch) return fail(HandoffFailure::kRefused);
    if (faults_.handoffs && rng_.Chance(0.3)) {
      const auto why = static_cast<HandoffFailure>(rng_.Below(5));
      if (why == HandoffFailure::kUndecided && rng_.Chance(0.5)) Receive(h->decode, *h);
      return fail(why);
    }
    Receive(h->decode, *h);
    ++handed_off_;
    if (rng_.Chance(0.9)) Say(i, ReceiptEvent{child, epoch, {}});
    Say(i, HandedOff{child, epoch});
    names_[i].w.dead[child] = epoch;
    names_[i].w.held.erase(child);
  }
  void Go(size_t i, ChildId child, Epoch epoch) {
    At(Micros(3000), [this, i, child, epoch, start = names_[i].w.start] { Step(i, child, epoch, start); });
  }
  // S11, as a worker does it: it emits in the present epoch until the hand-over.
  void Migrate(size_t i, const MigrateCommand& m) {
    Worker& w = names_[i].w;
    const auto held = w.held.find(m.child);
    if (held == w.held.end() || held->second.epoch != m.epoch || !held->second.ready || held->second.moves != 0 ||
        (faults_.refusals && rng_.Chance(0.1))) {
      return Say(i, HandoffFailed{m.child, m.next, HandoffFailure::kRefused, "test"});
    }
    EXPECT_LE(m.delivered, held->second.tokens.size());
    held->second.moves = m.next;
    for (size_t d = 0; d < names_.size(); ++d) {
      if (names_[d].name == m.to.process.name) held->second.decode = d;
    }
    const Worker& to = names_[held->second.decode].w;
    held->second.decode_start = to.incarnation == m.to.process.incarnation.counter ? to.start : 0;
    At(Micros(8000), [this, i, m, start = w.start] { HandOver(i, m, start); });
  }
  void HandOver(size_t i, const MigrateCommand& m, uint64_t start) {
    Held* h = Find(i, m.child, m.epoch, start);
    if (h == nullptr || h->moves != m.next) return;  // over, or called back
    const Worker& d = names_[h->decode].w;
    const bool there = d.alive && d.linked && d.start == h->decode_start && !names_[h->decode].w.dead.contains(m.child);
    const bool fails = faults_.handoffs && rng_.Chance(0.3);
    auto why = static_cast<HandoffFailure>(rng_.Below(6));
    if (!there) why = HandoffFailure::kPeerLost;
    Held copy = *h;
    copy.epoch = m.next;
    copy.moves = 0;
    copy.next = m.delivered + 1;
    if (!there || fails) {
      if (why == HandoffFailure::kUndecided) {
        h->stopped = true;
        if (rng_.Chance(0.5)) Receive(h->decode, copy);
      } else {
        h->moves = 0;
      }
      return Say(i, HandoffFailed{m.child, m.next, why, "test"});
    }
    ++handed_off_;
    Receive(h->decode, copy);
    h->stopped = true;  // until ACK comes
    At(Micros(2000), [this, i, m, start] {
      const Held* mine = Find(i, m.child, m.epoch, start);
      if (mine == nullptr || mine->moves != m.next) return;
      Say(i, HandedOff{m.child, m.next});
      names_[i].w.held.erase(m.child);
    });
  }
  void Receive(size_t d, const Held& from) {
    Held h = from;
    h.writes = false;
    h.ready = true;
    h.next = from.next - 1;  // the delivered count of its Progress: P's first token comes again
    Worker& w = names_[d].w;
    const ChildId child = h.request->id;
    const auto mine = w.held.find(child);
    if (mine != w.held.end() && mine->second.epoch >= h.epoch) return;
    w.held[child] = h;
    At(Micros(4000), [this, d, child, epoch = h.epoch, start = w.start] { Step(d, child, epoch, start); });
  }

  // ---- clients ----
  void SubmitOne() {
    Client c;
    c.request.prompt = TextPrompt{std::string(1 + rng_.Below(150), 'x')};
    c.request.max_tokens = 1 + static_cast<int64_t>(rng_.Below(30));
    c.request.seed = rng_.Next();
    c.request.want_token_ids = true;
    c.request.ignore_eos = rng_.Chance(0.3);
    if (rng_.Chance(0.3))
      c.request.min_tokens = static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(*c.request.max_tokens)));
    if (rng_.Chance(0.5)) c.request.stop = {"abca", "dd", "cbd"};
    if (rng_.Chance(0.2)) c.request.stop_token_ids = {'d'};
    if (rng_.Chance(0.1)) c.request.priority = 3;
    const ClientHandle handle{clients_.size() + 1};
    clients_.emplace(handle, c);
    if (rng_.Chance(0.15)) {
      At(Micros(60000), [this, handle] {
        Client& mine = clients_.at(handle);
        if (mine.ended > 0) return;
        if (rng_.Chance(0.5)) {
          mine.gone = true;
          Tell(ClientGone{handle});
        } else {
          mine.cancelled = true;
          Tell(ClientCancel{handle, ""});
        }
      });
    }
    Tell(ClientSubmit{handle, c.request});
    clients_.at(handle).child = front_.ChildOf(handle);
  }
  void Tell(FrontInput input) {
    FrontOutput out;
    front_.Handle(std::move(input), now_, &out);
    for (auto& [client, event] : out.to_clients) Hear(client, event);
    for (auto& [link, command] : out.to_workers) {
      Watch(link, command);
      const auto it = link_owner_.find(link);
      if (it == link_owner_.end()) continue;
      Worker& w = names_[it->second].w;
      w.down_free = std::max(w.down_free, now_ + Micros(2000));
      events_.emplace(std::pair(w.down_free, ++order_),
                      [this, link = link, command = command] { Arrive(link, command); });
    }
    EXPECT_TRUE(out.close.empty() || faults_.deaths || faults_.cuts);
  }
  void Hear(ClientHandle handle, const ClientEvent& event) {
    Client& c = clients_.at(handle);
    EXPECT_FALSE(c.gone) << "told after it left";
    EXPECT_EQ(c.ended, 0) << "told after the end";
    if (const auto* delta = std::get_if<Delta>(&event)) {
      EXPECT_EQ(c.finished, 0);
      c.text += delta->text;
      c.ids.insert(c.ids.end(), delta->token_ids.begin(), delta->token_ids.end());
      EXPECT_EQ(FirstInvalidUtf8(delta->text), delta->text.size());
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      ++c.finished;
      c.reason = finished->reason;
    } else if (std::holds_alternative<Done>(event)) {
      EXPECT_EQ(c.finished, 1);
      ++c.ended;
      ++done_;
    } else if (const auto* failed = std::get_if<Failed>(&event)) {
      EXPECT_EQ(c.finished, 0);
      ++c.ended;
      c.status = failed->status;
      if (!c.cancelled && failed->reason != "NO_WORKER") ++failed_;
    }
  }
  // Commands obey the protocol: epochs of a child only rise.
  void Watch(LinkId link, const FrontCommand& command) {
    (void)link;
    const auto placed = [this](const RequestPtr& request, Epoch epoch) { EXPECT_EQ(epoch, ++epochs_[request->id]); };
    if (const auto* p = std::get_if<PrefillCommand>(&command)) placed(p->request, p->epoch);
    if (const auto* d = std::get_if<DecodeCommand>(&command)) placed(d->request, d->epoch);
    if (const auto* m = std::get_if<MigrateCommand>(&command)) {
      EXPECT_LT(m->epoch, m->next);
      EXPECT_EQ(m->next, ++epochs_[m->child]);
    }
  }

  void Judge() {
    EXPECT_EQ(front_.live(), 0u);
    EXPECT_EQ(front_.queued(), 0u);
    for (const Name& n : names_) EXPECT_TRUE(n.w.held.empty()) << n.name << " still holds " << n.w.held.size();
    for (const WorkerSnapshot& w : front_.Snapshot(now_).workers) EXPECT_EQ(w.credits_used, 0u) << w.process.name;
    for (const auto& [handle, c] : clients_) {
      StopRules rules;
      rules.max_tokens = static_cast<uint32_t>(*c.request.max_tokens);
      rules.min_tokens = static_cast<uint32_t>(c.request.min_tokens.value_or(0));
      rules.ignore_eos = c.request.ignore_eos;
      rules.stop_token_ids.assign(c.request.stop_token_ids.begin(), c.request.stop_token_ids.end());
      rules.eos_token_ids = {ByteTokenizer::kEnd};
      const RightAnswer right = AnswerOf(*c.request.seed, rules, c.request.stop);
      if (c.gone) continue;
      EXPECT_EQ(c.ended, 1) << Raw(handle);
      ASSERT_LE(c.ids.size(), right.ids.size());
      EXPECT_TRUE(std::equal(c.ids.begin(), c.ids.end(), right.ids.begin()));
      EXPECT_EQ(right.text.substr(0, c.text.size()), c.text);
      if (c.finished == 0) {
        EXPECT_FALSE(c.status.ok());
        const bool quiet = !faults_.deaths && !faults_.cuts && !faults_.handoffs && !faults_.liars && !faults_.refusals;
        EXPECT_TRUE(c.cancelled || !quiet) << c.status.ToString();
        continue;
      }
      EXPECT_EQ(c.ids, right.ids);
      EXPECT_EQ(c.text, right.text);
      EXPECT_EQ(c.reason, right.reason);
    }
  }

  Rng rng_;
  Faults faults_;
  ByteTokenizer tokenizer_;
  Front front_;
  TimePoint now_{seconds(1)};
  uint64_t order_ = 0, next_link_ = 0;
  std::map<std::pair<TimePoint, uint64_t>, std::function<void()>> events_;
  std::vector<Name> names_;
  std::map<LinkId, size_t> link_owner_;
  std::map<ClientHandle, Client> clients_;
  std::map<ChildId, Epoch> epochs_;
  uint64_t done_ = 0, failed_ = 0, handed_off_ = 0;
};

struct Sums {
  uint64_t done = 0, failed = 0, handed_off = 0;
  FrontCounters c;
};
Sums RunSeeds(uint64_t seeds, Faults faults) {
  spdlog::set_level(spdlog::level::off);  // faults are meant here
  Sums sums;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    World world(seed, faults);
    world.Run(12);
    sums.done += world.done();
    sums.failed += world.failed();
    sums.handed_off += world.handed_off();
    sums.c.duplicates += world.counters().duplicates;
    sums.c.replay_faults += world.counters().replay_faults;
    sums.c.index_gaps += world.counters().index_gaps;
    sums.c.finish_faults += world.counters().finish_faults;
    sums.c.replacements += world.counters().replacements;
    sums.c.adopts += world.counters().adopts;
    sums.c.stray_events += world.counters().stray_events;
    sums.c.migrations += world.counters().migrations;
    sums.c.migrated += world.counters().migrated;
    sums.c.migrations_failed += world.counters().migrations_failed;
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      break;
    }
  }
  spdlog::set_level(spdlog::level::info);
  return sums;
}

TEST(FrontProperty, WithoutFaultsEveryRequestEndsWithTheRightAnswer) {
  const Sums s = RunSeeds(Seeds(1000), {});
  EXPECT_EQ(s.failed, 0u);
  EXPECT_GT(s.done, Seeds(10000));
  EXPECT_GT(s.handed_off, Seeds(1000));
  EXPECT_GT(s.c.duplicates, Seeds(1000));
  EXPECT_EQ(s.c.replay_faults + s.c.index_gaps + s.c.replacements, 0u);
}

TEST(FrontProperty, DeathsNeverChangeAnAnswer) {
  const Sums s = RunSeeds(Seeds(1000), {.deaths = true});
  EXPECT_GT(s.c.replacements, Seeds(500));
  EXPECT_GT(s.c.adopts, Seeds(50));
  EXPECT_EQ(s.c.replay_faults + s.c.index_gaps, 0u);
  EXPECT_LT(s.failed, s.done / 50);
}

TEST(FrontProperty, CutSessionsNeverChangeAnAnswer) {
  const Sums s = RunSeeds(Seeds(1000), {.cuts = true});
  EXPECT_GT(s.c.replacements, Seeds(500));
  EXPECT_LT(s.failed, s.done / 50);
}

TEST(FrontProperty, FailedHandOffsNeverChangeAnAnswer) {
  const Sums s = RunSeeds(Seeds(1000), {.handoffs = true});
  EXPECT_GT(s.c.adopts, Seeds(100));
  EXPECT_GT(s.c.replacements, Seeds(500));
  EXPECT_LT(s.failed, s.done / 10);
}

TEST(FrontProperty, AnswersThatMoveAreTheSameAndCostNothing) {
  const Sums s = RunSeeds(Seeds(500), {.moves = true});
  EXPECT_EQ(s.failed, 0u);
  EXPECT_GT(s.c.migrated, Seeds(1000));
  EXPECT_EQ(s.c.replay_faults + s.c.index_gaps + s.c.replacements, 0u);
}

TEST(FrontProperty, MovesAmongDeathsCutsAndFailuresNeverChangeAnAnswer) {
  const Sums s =
      RunSeeds(Seeds(1000), {.deaths = true, .cuts = true, .handoffs = true, .refusals = true, .moves = true});
  EXPECT_GT(s.c.migrated, Seeds(400));
  EXPECT_GT(s.c.migrations_failed, Seeds(200));
  EXPECT_EQ(s.c.replay_faults, 0u);
  EXPECT_LT(s.failed, s.done / 10);
}

TEST(FrontProperty, LostRepeatedAndWrongTokensNeverReachAClient) {
  const Sums s = RunSeeds(Seeds(1000), {.liars = true});
  EXPECT_GT(s.c.index_gaps, Seeds(100));
  EXPECT_GT(s.c.replay_faults, Seeds(100));
  EXPECT_GT(s.c.finish_faults, Seeds(100));
}

TEST(FrontProperty, EverythingAtOnceStillEndsEveryRequestOnce) {
  const Sums s = RunSeeds(
      Seeds(1000), {.deaths = true, .cuts = true, .handoffs = true, .liars = true, .refusals = true, .moves = true});
  EXPECT_GT(s.c.replacements, Seeds(1000));
  EXPECT_GT(s.done, Seeds(5000));
}

}  // namespace
}  // namespace baton

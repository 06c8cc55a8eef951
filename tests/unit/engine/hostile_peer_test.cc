// A worker of the cluster that says anything, in any order, beside one that keeps to the protocol. It can cost itself
// its session; it cannot stop the engine, lose or take a block, touch the other's hand-off, or be sent what is not its
// own. What it says is drawn from what the engine knows (children, epochs, tickets, attempts), so that it often nearly
// fits. One thing a member can do: name a higher epoch of a request and so end it here, of which the front hears; what
// an epoch is, only the front says. Bytes that are no messages: tests/unit/rpc.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/rng.h"
#include "engine_bench.h"
#include "support/seed_share.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Values that are right now and then.
class Liar {
 public:
  Liar(EngineBench* bench, uint64_t seed) : rng(Mix64(seed)), b(*bench) {}

  uint32_t Small() { return static_cast<uint32_t>(rng.Below(4)); }
  uint32_t Any() {
    constexpr uint32_t kOdd[] = {0, 1, 15, 16, 48, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
    return rng.Chance(0.8) ? Small() : kOdd[rng.Below(std::size(kOdd))];
  }
  ChildId Child() { return {rng.Chance(0.95) ? EngineBench::kFront : rng.Next(), 1 + rng.Below(40), Any() % 2}; }
  Ticket ATicket() {
    if (!tickets.empty() && rng.Chance(0.8)) return tickets[rng.Below(tickets.size())];
    const Incarnation any[] = {
        b.options.self.process.incarnation, b.reader.process.incarnation, {5, 7}, {Any(), Any()}};
    return {any[rng.Below(std::size(any))], Any(), Any()};
  }
  Duration ADuration() { return rng.Chance(0.5) ? Duration(milliseconds(Small())) : Duration(int64_t(rng.Next())); }
  Progress AProgress() {
    Progress p;
    for (uint64_t i = rng.Below(4); i > 0; --i) {
      p.tokens.push_back({static_cast<TokenId>(rng.Chance(0.8) ? rng.Below(100) : rng.Next()), 0, {}});
    }
    p.delivered = rng.Chance(0.8) ? 0 : Any();
    p.deadline_remaining = rng.Chance(0.5) ? seconds(60) : ADuration();
    return p;
  }
  template <typename T>
  std::vector<std::vector<T>> Lists(size_t most) {
    std::vector<std::vector<T>> out(rng.Chance(0.8) ? 1 : rng.Below(3));
    for (auto& list : out) {
      for (uint64_t i = rng.Below(most + 1); i > 0; --i) list.push_back(T{Any()});
    }
    return out;
  }

  PairMessage AHello(const ProcessId& writer) {
    PairHello h;
    h.protocol = rng.Chance(0.95) ? kProtocol : Any();
    h.writer = writer;  // its certificate's: another name does not come this far
    h.reader = rng.Chance(0.9) ? b.options.self.process : b.reader.process;
    h.session = rng.Below(3);
    h.model = b.options.model;
    h.layout = b.layout;
    if (rng.Chance(0.2)) h.layout.block_tokens = 32;
    if (rng.Chance(0.1)) h.numeric = {rng.Next(), 1};
    return h;
  }
  PairMessage ToReader(const ProcessId& writer) {
    switch (rng.Below(rng.Chance(0.9) ? 5 : 13)) {
      case 0: {
        Reserve r;
        const uint32_t tokens = rng.Chance(0.8) ? 48 : Any() % 500;
        Request request = *b.Make(1, tokens, 1 + Small());
        request.id = Child();
        if (rng.Chance(0.1) && tokens > 0) request.prompt[0] = static_cast<TokenId>(Any());
        r.epoch = 1;
        if (anothers && rng.Chance(0.3)) {
          request.id = anothers->child;
          r.epoch = anothers->epoch;
        }
        r.child = request.id;
        r.attempt = Any();
        r.num_tokens = rng.Chance(0.9) ? tokens : Any();
        r.progress = AProgress();
        if (rng.Chance(0.7)) r.progress.tokens.clear();
        for (uint64_t i = rng.Below(4); i > 0; --i) r.page_hashes.push_back({rng.Next(), rng.Next()});
        r.mode = rng.Chance(0.9) ? TransferMode::kReceiverPosted : TransferMode::kOneSided;
        r.migration = rng.Chance(0.3);
        if (rng.Chance(0.98)) r.request = std::make_shared<const Request>(std::move(request));
        return r;
      }
      case 1: {
        Commit c;
        c.child = Child();
        c.epoch = 1 + Small() / 3;
        c.ticket = ATicket();
        if (const ReaderTicket* t = b.core->connector().FindTicket(c.ticket); t != nullptr && rng.Chance(0.8)) {
          c.child = t->child;
          c.epoch = t->epoch;
        }
        c.attempt = Any();
        c.progress = AProgress();
        c.token_count = rng.Chance(0.8) ? 48 : Any();
        for (uint64_t i = rng.Below(4); i > 0; --i) c.digests.push_back({Any() % 4, 50});
        return c;
      }
      case 2:
        return Drained{ATicket(), rng.Chance(0.5)};
      case 3: {
        PairHeartbeat h;
        for (uint64_t i = rng.Below(5); i > 0; --i) h.alive.push_back(ATicket());
        return h;
      }
      case 4: {
        if (rng.Chance(0.1)) return AHello(writer);
        if (rng.Chance(0.3)) return Drained{ATicket(), false};
        Extend e{Child(), 1 + Small() / 3, ATicket(), rng.Chance(0.8) ? 1 : Any(), rng.Chance(0.8) ? 49 : Any()};
        if (const ReaderTicket* t = b.core->connector().FindTicket(e.ticket); t != nullptr && rng.Chance(0.8)) {
          e.child = t->child;
          e.epoch = t->epoch;
        }
        return e;
      }
      default:
        return ToWriter();
    }
  }
  PairMessage ToWriter() {
    switch (rng.Below(rng.Chance(0.95) ? 7 : 9)) {
      case 0: {
        Grant g;
        g.child = Child();
        g.epoch = 1;
        g.attempt = Any();
        g.ticket = ATicket();
        g.hit_tokens = rng.Chance(0.7) ? 16 * Small() : Any();
        g.blocks = Lists<BlockId>(4);
        g.base = Lists<uint64_t>(4);
        if (rng.Chance(0.2)) g.extension = Any();
        if (rng.Chance(0.2)) g.staging_block_bytes.assign(rng.Below(3), Any());
        return g;
      }
      case 1:
        return Busy{Child(), 1, Any(), ADuration()};
      case 2:
        return Refused{Child(), 1, Any(), static_cast<RefuseReason>(rng.Below(5)), "no"};
      case 3:
      case 4: {
        CommitAnswer a;
        a.child = Child();
        a.epoch = 1;
        a.ticket = ATicket();
        a.attempt = Any();
        a.verdict = static_cast<CommitVerdict>(rng.Below(4));
        for (uint64_t i = rng.Below(4); i > 0; --i) a.missing.push_back(Any());
        return a;
      }
      case 5:
        return AbortTicket{ATicket()};
      case 6:
        return DrainedAck{ATicket()};
      case 7: {
        PairHelloAnswer a;
        a.reader = b.reader.process;
        a.session = rng.Next();
        return a;
      }
      default:
        return Drained{ATicket(), false};
    }
  }

  Rng rng;
  EngineBench& b;
  std::vector<Ticket> tickets;         // that it knows, or guessed
  std::optional<ChildEpoch> anothers;  // what the honest one hands over, or handed over last
};

// ---- against a reader ---------------------------------------------------------------------------------

struct ReaderWorld {
  static constexpr uint64_t kFirstHonest = 30;  // the liar guesses these numbers too

  explicit ReaderWorld(uint64_t seed) : b({false, true}), liar(&b, seed) {
    b.Greet();
    Connect();
  }
  void Connect() {
    link = LinkId{(uint64_t{1} << 63) + next_link++};
    b.Do(LinkUp{link, LinkKind::kPairReader});
    PairHello hello = std::get<PairHello>(liar.AHello(hostile));
    hello.protocol = 1;
    hello.reader = b.options.self.process;
    b.Do(FromPeer{link, hello});
  }
  bool Closed(LinkId which) const { return std::count(b.closed.begin(), b.closed.end(), which) > 0; }

  void Lie() {
    b.Do(FromPeer{link, liar.ToReader(hostile)});
    if (liar.rng.Chance(0.3)) {
      b.transport.events.push_back(
          ChunkArrived{hostile, liar.ATicket(), liar.Any(), liar.Any(), liar.rng.Chance(0.8) ? 50u : liar.Any()});
      b.Turn();
    }
    if (Closed(link)) {
      b.Do(LinkDown{link, UnavailableError("closed")});
      Connect();
    }
  }
  // What the hostile one can be held to after anything that it said.
  void Check() {
    std::map<BlockId, Ticket> writable;
    uint32_t tied_up = 0, hostile_tickets = 0;
    for (const ReaderTicket* t : b.core->connector().reader().Live()) {
      const bool of_hostile = t->writer.name == hostile.name;
      hostile_tickets += of_hostile ? 1 : 0;
      if (t->state == TicketState::kReady || t->state == TicketState::kRunning) continue;
      for (const auto& group : t->grant.blocks) {
        tied_up += of_hostile ? static_cast<uint32_t>(group.size()) : 0;
        for (const BlockId block : group) {
          ASSERT_TRUE(writable.emplace(block, t->ticket).second) << "granted twice";
          ASSERT_FALSE(b.core->pool().IsIndexed(0, block)) << "findable, and somebody may write it";
          if (t->state == TicketState::kQuarantined) continue;
          ASSERT_EQ(b.core->pool().NumReferences(0, block), 1u) << "somebody else's too";
        }
      }
    }
    ASSERT_TRUE(hostile_tickets < 2 || tied_up <= b.core->pool().counts(0).total / 2) << tied_up;
    for (size_t i = seen; i < b.to_peers.size(); ++i) {
      if (const auto* grant = std::get_if<Grant>(&b.to_peers[i])) {
        const ReaderTicket* t = b.core->connector().FindTicket(grant->ticket);
        const bool to_hostile = b.to_links[i] != EngineBench::kWriterLink;
        liar.tickets.push_back(grant->ticket);  // it sees everything
        ASSERT_TRUE(t == nullptr || (t->writer.name == hostile.name) == to_hostile) << "another's grant";
      } else if (const auto* answer = std::get_if<CommitAnswer>(&b.to_peers[i])) {
        ASSERT_FALSE(answer->verdict == CommitVerdict::kAck && answer->epoch == epoch &&
                     b.to_links[i] != EngineBench::kWriterLink)
            << "told of another's hand-off";
      }
    }
    if (liar.tickets.size() > 12) liar.tickets.erase(liar.tickets.begin(), liar.tickets.end() - 12);
    seen = b.to_peers.size();
    while (b.runner.launched.size() > 0 && liar.rng.Chance(0.7)) b.Finish(10);
    while (!b.runner.conversions.empty()) b.Convert();
  }
  void Lies(int n) {
    for (int i = 0; i < n && !testing::Test::HasFatalFailure(); ++i) {
      Lie();
      Check();
      b.now += milliseconds(liar.rng.Below(20));
    }
  }
  // One hand-off as it should be, between lies. The liar may have reserved the very child before: then it is refused,
  // and the front's next epoch is another matter.
  void Honest(uint64_t number) {
    const RequestPtr request = b.Make(number, 48, 3);
    const auto mine = [&](const auto& m) { return m.child == request->id && m.epoch == epoch; };
    Reserve reserve = b.ReserveFor(request, epoch);
    std::optional<Grant> grant;
    for (; !grant && reserve.attempt < 400; ++reserve.attempt) {
      const size_t before = b.to_peers.size();
      b.FromWriter(reserve);
      for (size_t i = before; i < b.to_peers.size(); ++i) {
        if (b.to_links[i] != EngineBench::kWriterLink) continue;
        if (const auto* g = std::get_if<Grant>(&b.to_peers[i]); g != nullptr && mine(*g)) grant = *g;
      }
      Lies(1);
    }
    ASSERT_TRUE(grant) << "never granted";
    liar.anothers = {request->id, epoch};
    b.FromWriter(PairHeartbeat{{grant->ticket}});
    Lies(5);
    const ReaderTicket* t = b.core->connector().FindTicket(grant->ticket);
    ASSERT_TRUE(t != nullptr && t->state == TicketState::kReserved) << "the liar ended another's ticket";
    b.writer_layout = b.layout;
    b.FromWriter(PairHeartbeat{{grant->ticket}});
    b.Fill(*grant, 48, 9);
    ASSERT_EQ(b.Last<CommitAnswer>().ticket, grant->ticket);
    ASSERT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
    for (int i = 0; i < 500 && !Ended(request->id); ++i) Lies(1);
    ASSERT_TRUE(Ended(request->id));
  }
  bool Ended(const ChildId& child) const {
    return std::any_of(b.events.begin(), b.events.end(), [&](const ChildEvent& e) {
      const auto* token = std::get_if<TokenEvent>(&e);
      return token != nullptr && token->child == child && token->finish == FinishReason::kLength;
    });
  }
  void EndAll() {
    for (const LinkId any : {link, EngineBench::kWriterLink}) b.Do(LinkDown{any, UnavailableError("the end")});
    for (int i = 0; i < 2000 && !(b.core->idle() && b.free_blocks() == 16); ++i) {
      if (!b.runner.launched.empty()) b.Finish(10);
      while (!b.runner.conversions.empty()) b.Convert();
      b.now += milliseconds(10);
      b.Turn();
    }
    EXPECT_TRUE(b.core->idle());
    EXPECT_EQ(b.free_blocks(), 16u) << "lost blocks";
  }

  EngineBench b;
  Liar liar;
  const ProcessId hostile{"h", {4, 4}};
  LinkId link{};
  uint64_t next_link = 10;
  size_t seen = 0;
  const Epoch epoch = 2;  // above what the liar says of its own
};

// FF-148, FF-149.
TEST(HostilePeer, FF148_FF149_AReaderSurvivesAnyWriter) {
  uint64_t granted = 0, closed = 0, refused = 0;
  for (uint64_t seed = 0; seed < Seeds(200) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ReaderWorld w(seed);
    for (uint64_t n = 0; n < 5 && !testing::Test::HasFailure(); ++n) {
      w.Lies(60);
      w.Honest(ReaderWorld::kFirstHonest + n);
    }
    if (!testing::Test::HasFailure()) w.EndAll();
    granted += w.b.core->connector().counters().grants;
    closed += w.b.closed.size();
    refused += w.b.Sent<Refused>().size();
  }
  EXPECT_GT(granted, Seeds(1000)) << "it was believed now and then";
  EXPECT_GT(closed, Seeds(500));
  EXPECT_GT(refused, Seeds(500));
}

// ---- against a writer ---------------------------------------------------------------------------------

struct WriterWorld {
  explicit WriterWorld(uint64_t seed) : b({true, false}, /*pool_blocks=*/40), liar(&b, seed) {}

  LinkId LinkOf(const PeerAddress& to) const {
    for (size_t i = b.dials.size(); i-- > 0;) {
      if (b.dials[i].peer.process == to.process) return b.dials[i].link;
    }
    return {};
  }
  // Answers dials, the honest reader's messages, and lets transfers end now and then.
  void Serve() {
    for (; dialed < b.dials.size(); ++dialed) {
      const Dial dial = b.dials[dialed];
      b.Do(LinkUp{dial.link, LinkKind::kPairWriter});
      PairHelloAnswer answer{OkStatus(), dial.peer.process, b.Last<PairHello>().session, {}, {}};
      if (dial.peer.process == hostile.process) {
        for (int i = 0; i < 3; ++i) answer.open_tickets.push_back(liar.ATicket());
        if (liar.rng.Chance(0.1)) answer.session += 1;
        if (liar.rng.Chance(0.1)) answer.status = FailedPreconditionError("no");
      }
      b.Do(FromPeer{dial.link, answer});
      b.Turn();
    }
    for (; answered < b.to_peers.size(); ++answered) {
      const PairMessage m = b.to_peers[answered];
      const bool to_honest = b.to_links[answered] == LinkOf(b.reader);
      if (!to_honest) {
        if (const auto* commit = std::get_if<Commit>(&m)) ASSERT_TRUE(own.contains(commit->child.number));
        if (const auto* reserve = std::get_if<Reserve>(&m)) ASSERT_TRUE(own.contains(reserve->child.number));
        if (const auto* drained = std::get_if<Drained>(&m)) {
          ASSERT_EQ(drained->ticket.reader, hostile.process.incarnation) << "about another reader's ticket";
        }
        continue;
      }
      if (const auto* reserve = std::get_if<Reserve>(&m)) {
        ASSERT_FALSE(own.contains(reserve->child.number));
        if (liar.rng.Chance(0.3)) continue;  // later: it is repeated
        Grant grant = b.GrantFor(*reserve, liar.Small() % 3);
        grant.ticket.slot = static_cast<uint32_t>(reserve->child.number);
        grants[reserve->child.number] = grant;
        b.Do(FromPeer{b.to_links[answered], grant});
      } else if (const auto* commit = std::get_if<Commit>(&m)) {
        ASSERT_EQ(commit->ticket, grants.at(commit->child.number).ticket);
        ASSERT_TRUE(in_flight.empty() || std::none_of(in_flight.begin(), in_flight.end(),
                                                      [&](const auto& e) { return e.second.ticket == commit->ticket; }))
            << "committed before it was quiesced";
        b.Do(FromPeer{
            b.to_links[answered],
            CommitAnswer{commit->child, commit->epoch, commit->ticket, commit->attempt, CommitVerdict::kAck, {}}});
      } else if (const auto* drained = std::get_if<Drained>(&m)) {
        b.Do(FromPeer{b.to_links[answered], DrainedAck{drained->ticket}});
      }
    }
  }
  void Transfers() {
    for (const TransferPost& post : b.transport.posts) {
      ASSERT_EQ(post.ticket.reader, post.reader.incarnation);
      if (post.reader == b.reader.process) {
        ASSERT_EQ(post.ticket, grants.at(post.ticket.slot).ticket) << "bytes under a ticket that d never gave";
      }
      in_flight.emplace(post.op, post);
    }
    b.transport.posts.clear();
    // What is being read stays whose it was.
    for (const auto& [op, post] : in_flight) {
      for (const CopyPiece& piece : post.pieces) {
        const BlockId block{static_cast<uint32_t>(piece.source / b.layout.BlockBytes(0))};
        ASSERT_GT(b.core->pool().NumReferences(0, block), 0u) << "freed while it is read";
      }
    }
    for (auto it = in_flight.begin(); it != in_flight.end();) {
      if (liar.rng.Chance(0.6)) {
        ++it;
        continue;
      }
      b.transport.events.push_back(Quiesced{it->first, OkStatus(), ScriptedTransport::DigestOf(it->second)});
      it = in_flight.erase(it);
    }
    b.Turn();
  }
  void Lie() {
    const LinkId link = LinkOf(hostile);
    if (link == LinkId{}) return;
    PairMessage m = liar.ToWriter();
    // Now and then it fits: a grant for what was asked of it.
    if (auto* grant = std::get_if<Grant>(&m); grant != nullptr && liar.rng.Chance(0.6)) {
      for (const WriterChild* c : b.core->connector().writer().Live()) {
        if (c->reader != hostile.process || c->state != WriterState::kReserving) continue;
        const Ticket ticket = {hostile.process.incarnation, liar.Small(), ++generation};
        *grant = b.GrantFor(c->reserve, liar.Small() % 3);
        grant->ticket = ticket;
        if (liar.rng.Chance(0.1)) grant->base[0].push_back(liar.rng.Next());
        liar.tickets.push_back(ticket);
      }
    }
    if (auto* answer = std::get_if<CommitAnswer>(&m); answer != nullptr && liar.rng.Chance(0.8)) {
      const auto live = b.core->connector().writer().Live();
      if (!live.empty()) {
        const WriterChild* c = live[liar.rng.Below(live.size())];
        answer->child = c->key.child;
        answer->ticket = c->ticket;
        answer->attempt = liar.rng.Chance(0.5) ? c->commit_attempt : liar.Small();
      }
    }
    b.Do(FromPeer{link, std::move(m)});
    if (std::count(b.closed.begin(), b.closed.end(), link) > 0) {
      b.Do(LinkDown{link, UnavailableError("closed")});
    }
    for (const auto& [number, grant] : grants) {
      if (liar.tickets.size() < 16) liar.tickets.push_back(grant.ticket);  // it knows the other's
    }
    if (liar.tickets.size() > 14) liar.tickets.erase(liar.tickets.begin(), liar.tickets.begin() + 4);
  }
  void Run() {
    uint64_t number = 0;
    for (int i = 0; i < 400 && !testing::Test::HasFatalFailure(); ++i) {
      if (i % 20 == 0) {
        const bool to_hostile = ++number % 2 == 0;
        if (to_hostile) own.insert(number);
        b.Front(
            PrefillCommand{b.Make(number, 48, 8), EngineBench::Fresh(seconds(30)), 1, to_hostile ? hostile : b.reader});
      }
      if (!b.runner.launched.empty() && liar.rng.Chance(0.5)) b.Finish(9);
      Serve();
      if (testing::Test::HasFatalFailure()) return;
      Transfers();
      if (testing::Test::HasFatalFailure()) return;
      Lie();
      if (!own.empty() && liar.rng.Chance(0.02)) b.Front(CancelCommand{{EngineBench::kFront, *own.rbegin(), 0}, 1});
      b.now += milliseconds(liar.rng.Below(8));
    }
    for (int i = 0; i < 4000 && !b.core->idle() && !testing::Test::HasFatalFailure(); ++i) {
      if (!b.runner.launched.empty()) b.Finish(9);
      Serve();
      Transfers();
      b.now += milliseconds(10);
      b.Turn();
    }
    EXPECT_TRUE(b.core->idle());
    EXPECT_EQ(b.free_blocks(), 40u) << "lost blocks";
    std::set<uint64_t> handed_off;
    for (const HandedOff& h : b.Told<HandedOff>()) handed_off.insert(h.child.number);
    for (uint64_t n = 1; n <= number; n += 2) EXPECT_TRUE(handed_off.contains(n)) << "the honest one's " << n;
  }

  EngineBench b;
  Liar liar;
  const PeerAddress hostile{{"e", {5, 7}}, "e.host:1"};
  std::set<uint64_t> own;  // children that are handed to the hostile one
  std::map<uint64_t, Grant> grants;
  std::map<OpId, TransferPost> in_flight;
  size_t dialed = 0, answered = 0;
  uint32_t generation = 0;
};

// FF-148, FF-149.
TEST(HostilePeer, FF148_FF149_AWriterSurvivesAnyReader) {
  uint64_t posted = 0, stale = 0;
  for (uint64_t seed = 0; seed < Seeds(60) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WriterWorld w(seed);
    w.Run();
    posted += w.b.core->connector().counters().chunks_posted;
    stale += w.b.core->connector().writer().counters().stale;
  }
  EXPECT_GT(posted, Seeds(500));
  EXPECT_GT(stale, Seeds(1000));
}

}  // namespace
}  // namespace baton

// Both ticket machines against each other over a network that loses, doubles and reorders messages and a
// fabric whose one-sided writes land late. A shadow memory knows whose bytes every block should hold.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/rng.h"
#include "handoff/reader_tickets.h"
#include "handoff/writer_tickets.h"
#include "support/seed_share.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kTokens = 16;
constexpr uint32_t kPoolBlocks = 5;
constexpr int kChildren = 6;

KvLayout Layout() {
  KvLayout layout;
  layout.block_tokens = 16;
  layout.groups.push_back({KvKind::kFull, 8, 1, 2, DType::kBF16});  // two chunks of four layers
  return layout;
}

struct World {
  explicit World(uint64_t seed, Rules rules)
      : rng(seed), reader(reader_id.incarnation, ReaderOpts(), rules), writer(Layout(), WriterOptions{}, rules) {
    for (uint32_t b = 0; b < kPoolBlocks; ++b) free_blocks.insert(b);
  }
  static ReaderOptions ReaderOpts() {
    ReaderOptions o;
    o.num_slots = 3;
    o.reserved_lease = milliseconds(700);
    o.receiving_lease = milliseconds(500);
    return o;
  }

  struct Put {
    OpId op;
    WriterPost post;
    uint32_t block;
    Ticket ticket;
    bool landed = false;
  };
  struct Child {
    bool over = false, acked = false;
    uint32_t layers = 0;
    bool finished = false;
    Epoch epoch = 1;
  };

  void Violation(const std::string& what) {
    if (violation.empty()) violation = what;
  }
  uint64_t Content(ChildId c, ChunkIndex chunk, uint32_t final_part) {
    return Mix64(c.number * 100 + chunk * 10 + final_part);
  }

  void Run() {
    for (int i = 0; i < 4000 && violation.empty(); ++i) {
      now += milliseconds(rng.Below(4));
      faults = i < 2500;
      StepOnce();
      if (!faults && AllOver() && reader.Live().size() == num_ready_live) break;
    }
    if (violation.empty() && !AllOver()) Violation("a child never ended");
    if (violation.empty()) {
      for (const ReaderTicket* t : reader.Live()) {
        if (t->state == TicketState::kQuarantined || t->state == TicketState::kReserved ||
            t->state == TicketState::kReceiving) {
          Violation("a ticket never ended");
        }
      }
    }
  }
  bool AllOver() {
    if (children.size() < kChildren) return false;
    for (auto& [id, c] : children) {
      if (!c.over) return false;
    }
    return to_reader.empty() && to_writer.empty() && puts.empty();
  }

  void StepOnce() {
    WriterActions w;
    ReaderActions r;
    switch (rng.Below(12)) {
      case 0:
        BeginChild(&w);
        break;
      case 1:
      case 2:
        Compute(&w);
        break;
      case 3:
      case 4:
        LandPut();
        break;
      case 5:
        QuiescePut(&w);
        break;
      case 6:
        if (faults && rng.Chance(0.03)) LoseSession(&w, &r);
        if (faults && rng.Chance(0.05)) CancelSomething(&w, &r);
        break;
      case 7:
        EndReady();
        break;
      default:
        Deliver(&w, &r);
        break;
    }
    writer.Tick(now, &w);
    if (heartbeat_at <= now && session) {
      to_reader.push_back(PairHeartbeat{writer.AliveTickets(reader_id)});
      heartbeat_at = now + milliseconds(100);
    }
    reader.Tick(now, &r);
    Do(&w);
    Do(&r);
  }

  void BeginChild(WriterActions* w) {
    if (children.size() >= kChildren) return;
    const ChildId id{1, children.size() + 1, 0};
    children[id];
    Reserve reserve;
    reserve.child = id;
    reserve.epoch = 1;
    reserve.num_tokens = kTokens;
    reserve.mode = TransferMode::kOneSided;
    writer.Begin(reader_id, reserve, session, now + std::chrono::seconds(20), now, w);
  }
  void Compute(WriterActions* w) {
    for (auto& [id, c] : children) {
      if (c.over || c.finished || !rng.Chance(0.4)) continue;
      const ChildEpoch key{id, c.epoch};
      if (writer.Find(key) == nullptr) continue;
      if (c.layers < 8) {
        ++c.layers;
        writer.Advance(key, 0, kTokens, c.layers, now, w);
      } else {
        c.finished = true;
        writer.Advance(key, kTokens, kTokens, 8, now, w);
        Progress progress;
        progress.tokens.push_back({7, 0, {}});
        writer.Finished(key, progress, now, w);
      }
      return;
    }
  }
  // The bytes of a source chunk as they are now: only a chunk whose layers were all computed is final.
  uint64_t SourceBytes(const WriterPost& post) {
    const Child& c = children[post.key.child];
    const bool final = c.finished || c.layers >= (post.chunk + 1) * 4;
    return Content(post.key.child, post.chunk, final ? 1 : 0);
  }
  void LandPut() {
    if (puts.empty()) return;
    Put& p = puts[rng.Below(puts.size())];
    if (p.landed) return;
    p.landed = true;
    if (free_blocks.count(p.block) > 0) Violation("a write landed in a free block");
    const ReaderTicket* t = reader.Find(p.ticket);
    if (t == nullptr) Violation("a write landed after its ticket ended");
    if (t != nullptr && (t->state == TicketState::kReady || t->state == TicketState::kRunning)) {
      Violation("a write landed in a READY block");
    }
    memory[{p.block, p.post.chunk}] = SourceBytes(p.post);
  }
  void QuiescePut(WriterActions* w) {
    for (size_t i = 0; i < puts.size(); ++i) {
      if (!puts[i].landed || !rng.Chance(0.5)) continue;
      const Put p = puts[i];
      puts.erase(puts.begin() + i);
      const uint64_t digest = SourceBytes(p.post);
      writer.OnQuiesced({p.op, OkStatus(), digest}, now, w);
      notices.push_back({writer_id, p.ticket, p.post.chunk, p.post.attempt, 0});
      return;
    }
  }
  void LoseSession(WriterActions* w, ReaderActions* r) {
    to_reader.clear();
    to_writer.clear();
    writer.SessionLost(reader_id, "lost", now, w);
    reader.OnSessionLost(writer_id, now, r);
    Do(w);
    Do(r);
    to_reader.clear();
    to_writer.clear();
    WriterActions up;
    writer.SessionUp(reader_id, TransferMode::kOneSided, reader.OpenTicketsOf(writer_id), now, &up);
    Do(&up);
  }
  void CancelSomething(WriterActions* w, ReaderActions* r) {
    for (auto& [id, c] : children) {
      if (c.over || !rng.Chance(0.3)) continue;
      if (rng.Chance(0.5)) {
        writer.Cancel({id, c.epoch}, now, w);
        c.over = true;
      } else if (const auto t = reader.FindChild(id, c.epoch)) {
        reader.Abort(*t, now, r);
      }
      return;
    }
  }
  void EndReady() {
    for (const ReaderTicket* t : reader.Live()) {
      if (t->state != TicketState::kReady) continue;
      const Ticket ticket = t->ticket;
      CheckReady(ticket);
      reader.End(ticket, now);
      free_blocks.insert(blocks[ticket]);
      blocks.erase(ticket);
      return;
    }
  }
  void CheckReady(const Ticket& ticket) {
    const ReaderTicket* t = reader.Find(ticket);
    for (ChunkIndex chunk = 0; chunk < 2; ++chunk) {
      if (memory[{blocks[ticket], chunk}] != Content(t->child, chunk, 1)) Violation("READY with wrong bytes");
    }
  }
  void Deliver(WriterActions* w, ReaderActions* r) {
    if (!notices.empty() && rng.Chance(0.4)) {
      const size_t i = rng.Below(notices.size());
      ChunkArrived n = notices[i];
      if (!faults || !rng.Chance(0.1)) notices.erase(notices.begin() + i);
      if (faults && rng.Chance(0.05)) return;  // lost
      const auto it = blocks.find(n.ticket);
      n.digest = it == blocks.end() ? 0 : memory[{it->second, n.chunk}];
      reader.OnChunk(n, now, r);
      return;
    }
    std::vector<PairMessage>& queue = rng.Chance(0.5) ? to_reader : to_writer;
    if (queue.empty()) return;
    const size_t i = rng.Below(queue.size());
    const PairMessage m = queue[i];
    if (!faults || !rng.Chance(0.15)) queue.erase(queue.begin() + i);
    if (faults && rng.Chance(0.08)) return;
    if (&queue == &to_reader) {
      ToReader(m, r);
    } else {
      ToWriter(m, w);
    }
  }
  void ToReader(const PairMessage& m, ReaderActions* r) {
    if (const auto* reserve = std::get_if<Reserve>(&m)) {
      if (auto answer = reader.Recorded(writer_id, *reserve)) {
        to_writer.push_back(*answer);
        return;
      }
      const auto held = reader.FindChild(reserve->child, reserve->epoch);
      if (free_blocks.empty() || !reader.HasFreeSlot() || (held && rng.Chance(0.5))) {
        to_writer.push_back(Busy{reserve->child, reserve->epoch, reserve->attempt, milliseconds(20)});
        return;
      }
      const uint32_t block = *free_blocks.begin();
      free_blocks.erase(free_blocks.begin());
      Grant grant;
      grant.blocks = {{BlockId{block}}};
      grant.base = {{0}};
      const ReaderTicket& t = reader.Open(writer_id, *reserve, grant, 2, now, r);
      blocks[t.ticket] = block;
    } else if (const auto* commit = std::get_if<Commit>(&m)) {
      reader.OnCommit(writer_id, *commit, now, r);
    } else if (const auto* drained = std::get_if<Drained>(&m)) {
      reader.OnDrained(writer_id, *drained, now, r);
    } else if (const auto* heartbeat = std::get_if<PairHeartbeat>(&m)) {
      reader.OnHeartbeat(writer_id, *heartbeat, now);
    }
  }
  void ToWriter(const PairMessage& m, WriterActions* w) {
    if (const auto* grant = std::get_if<Grant>(&m)) writer.OnGrant(reader_id, *grant, now, w);
    if (const auto* busy = std::get_if<Busy>(&m)) writer.OnBusy(reader_id, *busy, now, w);
    if (const auto* answer = std::get_if<CommitAnswer>(&m)) writer.OnCommitAnswer(reader_id, *answer, now, w);
    if (const auto* abort = std::get_if<AbortTicket>(&m)) writer.OnAbort(reader_id, *abort, now, w);
    if (const auto* ack = std::get_if<DrainedAck>(&m)) writer.OnDrainedAck(reader_id, *ack);
  }
  void Do(WriterActions* w) {
    for (auto& [peer, m] : w->send) to_reader.push_back(m);
    for (const WriterPost& post : w->post) {
      const WriterChild* c = writer.Find(post.key);
      if (c == nullptr) continue;
      const OpId op{next_op++};
      puts.push_back({op, post, Index(c->grant.blocks[0][0]), c->ticket});
      writer.Posted(post, op, now);
    }
    for (const WriterChild& c : w->handed_off) children[c.key.child].over = children[c.key.child].acked = true;
    for (const WriterFailure& f : w->failed) children[f.key.child].over = true;
    *w = {};
  }
  void Do(ReaderActions* r) {
    for (auto& [peer, m] : r->send) to_writer.push_back(m);
    for (const Commit& commit : r->ready) {
      if (++ready_count[{commit.child, commit.epoch}] > 1) Violation("READY twice");
      CheckReady(commit.ticket);
    }
    for (const Ticket& t : r->freed) {
      free_blocks.insert(blocks[t]);
      blocks.erase(t);
    }
    *r = {};
  }

  Rng rng;
  TimePoint now{};
  bool faults = true, session = true;
  TimePoint heartbeat_at{};
  ProcessId reader_id{"d", {1, 11}}, writer_id{"p", {1, 22}};
  ReaderTickets reader;
  WriterTickets writer;
  std::map<ChildId, Child> children;
  std::vector<PairMessage> to_reader, to_writer;
  std::vector<ChunkArrived> notices;
  std::vector<Put> puts;
  uint64_t next_op = 1;
  std::set<uint32_t> free_blocks;
  std::map<Ticket, uint32_t> blocks;
  std::map<std::pair<uint32_t, ChunkIndex>, uint64_t> memory;
  std::map<std::pair<ChildId, Epoch>, int> ready_count;
  size_t num_ready_live = 0;
  std::string violation;
};

TEST(HandoffProtocolTest, NoWriteLandsWhereItMayNotAndEveryTicketEnds) {
  int acked = 0;
  for (uint64_t seed = 0; seed < Seeds(1500); ++seed) {
    World world(seed, Rules{});
    world.Run();
    ASSERT_EQ(world.violation, "") << "seed " << seed;
    for (auto& [id, c] : world.children) acked += c.acked;
  }
  EXPECT_GT(acked, static_cast<int>(Seeds(1000)));
}

class WeakenedRule : public testing::TestWithParam<Rule> {};
TEST_P(WeakenedRule, IsFoundBySomeSeed) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    World world(seed, Rules::AllBut(GetParam()));
    world.Run();
    if (!world.violation.empty()) return;
  }
  FAIL() << "3000 seeds found nothing";
}
std::string RuleName(const testing::TestParamInfo<Rule>& info) {
  return info.param == Rule::kS1   ? "S1"
         : info.param == Rule::kS3 ? "S3"
         : info.param == Rule::kS4 ? "S4"
         : info.param == Rule::kS5 ? "S5"
         : info.param == Rule::kL2 ? "L2"
                                   : "L3";
}
INSTANTIATE_TEST_SUITE_P(Handoff, WeakenedRule, testing::Values(Rule::kS1, Rule::kS3, Rule::kS4, Rule::kL2), RuleName);

}  // namespace
}  // namespace baton

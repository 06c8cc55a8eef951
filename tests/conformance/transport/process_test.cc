// Two processes: what must hold when one of them is killed, stopped or replaced. The peer is exec'ed, never forked
// from a process that uses UCX or gRPC.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <sstream>

#include "rig.h"

extern char** environ;

namespace baton {
namespace {

constexpr uint64_t kPool = 32 << 20;

class PeerProcess {
 public:
  PeerProcess(const std::string& name, uint64_t counter, Kind kind, int fill) : id_{name, {counter, 77}} {
    int to[2], from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    std::vector<std::string> args = {
        BATON_TRANSPORT_PEER, name, std::to_string(counter), Word(kind), std::to_string(kPool), std::to_string(fill)};
    if (kind == Kind::kGrpcTls) {
      const TlsPems tls = CredentialsOf(name);
      for (const std::string& pem : {tls.ca, tls.certificate, tls.key}) args.push_back(pem);
    }
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, args[0].c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  ~PeerProcess() {
    Kill();
    close(in_);
    close(out_);
  }
  void Send(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // The next line that starts with `word`, without it; other lines are skipped. Empty: the peer ended or hangs.
  std::string Expect(const std::string& word) {
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.rfind(word, 0) == 0) return line.substr(std::min(line.size(), word.size() + 1));
        continue;
      }
      pollfd fd{out_, POLLIN, 0};
      char chunk[65536];
      if (poll(&fd, 1, static_cast<int>(std::chrono::milliseconds(kHang).count())) <= 0) return {};
      const ssize_t n = read(out_, chunk, sizeof(chunk));
      if (n <= 0) return {};
      buffer_.append(chunk, static_cast<size_t>(n));
    }
  }
  std::vector<std::byte> Descriptor() {
    const std::string hex = Expect("descriptor");
    std::vector<std::byte> out;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      out.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    }
    return out;
  }
  void Signal(int signal) { kill(pid_, signal); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const ProcessId& id() const { return id_; }

 private:
  static std::string Word(Kind kind) {
    if (kind == Kind::kUcxShm) return "shm";
    if (kind == Kind::kUcxKeyed) return "keyed";
    return kind == Kind::kUcxTcp ? "tcp" : "grpc";
  }

  const ProcessId id_;
  pid_t pid_ = 0;
  int in_ = -1, out_ = -1;
  std::string buffer_;
};

std::string Words(const ProcessId& p) {
  return p.name + " " + std::to_string(p.incarnation.counter) + " " + std::to_string(p.incarnation.random);
}
std::string HexOf(std::span<const std::byte> bytes) {
  std::ostringstream out;
  for (std::byte b : bytes)
    out << "0123456789abcdef"[static_cast<unsigned>(b) >> 4] << "0123456789abcdef"[static_cast<unsigned>(b) & 15];
  return out.str();
}

class ProcessTest : public testing::TestWithParam<Kind> {
 protected:
  bool one_sided() const { return GetParam() == Kind::kUcxShm; }
  bool keyed() const { return GetParam() == Kind::kUcxKeyed; }
  void StartHere(const std::string& name) {
    here_.id = {name, {1, 5}};
    here_.transport = MakeKind(GetParam(), fabric_, here_.id, &here_.waker, options_);
    auto pool = here_.transport->AllocatePool(kPool);
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    here_.pool = *pool;
  }
  void OpenFromHere(PeerProcess& peer) {
    const size_t n = here_.All<PeerOpened>().size();
    here_.transport->Open(peer.id(), peer.Descriptor());
    ASSERT_TRUE(here_.WaitFor<PeerOpened>(n + 1));
    ASSERT_TRUE(here_.All<PeerOpened>().back().status.ok()) << here_.All<PeerOpened>().back().status.ToString();
  }
  void OpenToHere(PeerProcess& peer) {
    peer.Send("open " + Words(here_.id) + " " + HexOf(here_.transport->LocalDescriptor()));
    ASSERT_EQ(peer.Expect("opened"), "OK");
  }
  // Waits for the word, as a writer waits for GRANT: data of a ticket not yet admitted is refused.
  void AdmitAt(PeerProcess& peer) {
    peer.Send("admit 1 " + Words(here_.id) + " " + std::to_string(kPool));
    peer.Expect("admitted");
  }
  // Whole-pool posts to block 0 of the peer's ticket in slot 1.
  void PostMany(PeerProcess& peer, uint64_t first, uint32_t ops) {
    for (uint64_t i = first; i < first + ops; ++i) {
      here_.transport->Post({static_cast<OpId>(i),
                             peer.id(),
                             {peer.id().incarnation, 1, 1},
                             static_cast<ChunkIndex>(i),
                             1,
                             {{0, 0, 0, kPool}},
                             {0}});
    }
  }
  void ExpectEachOnce(size_t ops) {
    std::set<uint64_t> seen;
    for (const Quiesced& q : here_.All<Quiesced>()) EXPECT_TRUE(seen.insert(Raw(q.op)).second);
    EXPECT_EQ(seen.size(), ops);
  }
  size_t Failed() const {
    size_t n = 0;
    for (const Quiesced& q : here_.All<Quiesced>()) n += !q.status.ok();
    return n;
  }

  UcxOptions options_;
  LocalFabric fabric_;
  Side here_;
};

TEST_P(ProcessTest, ChunksCrossToAnotherProcessWithEqualDigests) {
  PeerProcess reader("d", 1, GetParam(), 0);
  StartHere("p");
  Fill(here_.pool, 12);
  OpenFromHere(reader);
  EXPECT_EQ(here_.All<PeerOpened>()[0].mode == TransferMode::kOneSided, one_sided());
  AdmitAt(reader);
  PostMany(reader, 1, 3);
  for (int i = 0; i < 3; ++i) {
    std::istringstream line(reader.Expect("arrived"));
    uint64_t chunk = 0, digest = 0;
    line >> chunk >> digest;
    EXPECT_EQ(digest, Hash64(std::span<const std::byte>(here_.pool))) << "chunk " << chunk;
  }
  ASSERT_TRUE(here_.WaitFor<Quiesced>(3));
  ExpectEachOnce(3);
}

// FF-009
TEST_P(ProcessTest, AKilledReaderEndsEveryOpAndItsNextIncarnationIsReached) {
  StartHere("p");
  constexpr uint32_t kOps = 40;
  for (uint64_t round = 1; round <= 3; ++round) {
    PeerProcess reader("d", round, GetParam(), 0);
    OpenFromHere(reader);
    const size_t before = here_.All<Quiesced>().size();
    AdmitAt(reader);
    PostMany(reader, 1 + (round - 1) * kOps, kOps);
    ASSERT_NE(reader.Expect("arrived"), "");  // under way
    reader.Kill();
    ASSERT_TRUE(here_.WaitFor<Quiesced>(before + kOps));
    // A store into shared memory cannot see the death; the connection that carries the notices does.
    ASSERT_TRUE(here_.WaitFor<PeerLost>(round));
    if (!one_sided()) EXPECT_GT(Failed(), 0u);
    here_.transport->Close(reader.id());
    ASSERT_TRUE(here_.WaitFor<Severed>(round));
  }
  ExpectEachOnce(3 * kOps);
}

TEST_P(ProcessTest, AKilledWriterLeavesTicketsThatRetireToQuiet) {
  if (keyed()) GTEST_SKIP() << kOnlyEmulated;
  StartHere("d");
  for (uint64_t round = 1; round <= 3; ++round) {
    PeerProcess writer("p", round, GetParam(), 0x5A);
    ASSERT_NE(writer.Expect("descriptor"), "");
    OpenToHere(writer);
    const Ticket slot{here_.id.incarnation, static_cast<uint32_t>(round), 1};
    here_.transport->Admit(slot, writer.id(), {0}, {kPool});
    for (int i = 1; i <= 40; ++i) {
      writer.Send("post " + std::to_string(i) + " " + std::to_string(round) + " " + Words(here_.id) + " " +
                  std::to_string(kPool));
    }
    const size_t before = here_.All<ChunkArrived>().size();
    ASSERT_TRUE(here_.WaitFor<ChunkArrived>(before + 1));
    writer.Kill();
    here_.transport->Retire(slot);
    ASSERT_TRUE(here_.WaitFor<Quiet>(round));
    std::memset(here_.pool.data(), 0, kPool);  // the writer is dead: nothing lands any more in either mode
    here_.transport->Close(writer.id());
    ASSERT_TRUE(here_.WaitFor<Severed>(round));
    ASSERT_TRUE(AllAre(here_.pool, std::byte{0}));
  }
}

// A sender that dies while it holds an entry of a queue shared by all senders would silence the later ones.
TEST_P(ProcessTest, WritersKilledInTheMiddleOfTheirNoticesDoNotDeafenTheReader) {
  if (keyed()) GTEST_SKIP() << kOnlyEmulated;
  StartHere("d");
  const uint32_t rounds = GetParam() == Kind::kGrpcTls ? 10 : 60;  // its senders share no queue
  for (uint32_t round = 1; round <= rounds; ++round) {
    PeerProcess writer("p", round, GetParam(), 0x5A);
    ASSERT_NE(writer.Expect("descriptor"), "");
    OpenToHere(writer);
    const Ticket ticket{here_.id.incarnation, round, 1};
    here_.transport->Admit(ticket, writer.id(), {0}, {kPool});
    for (int i = 1; i <= 40; ++i) {
      writer.Send("post " + std::to_string(i) + " " + std::to_string(round) + " " + Words(here_.id) + " 4096");
    }
    ASSERT_TRUE(here_.WaitFor<ChunkArrived>(here_.All<ChunkArrived>().size() + 1));
    writer.Kill();
    here_.transport->Retire(ticket);
    ASSERT_TRUE(here_.WaitFor<Quiet>(round));
    here_.transport->Close(writer.id());
    ASSERT_TRUE(here_.WaitFor<Severed>(round));
  }
}

TEST_P(ProcessTest, AStoppedReaderCannotHoldAWriterBeyondTheDeadline) {
  options_.op_timeout = std::chrono::milliseconds(500);
  PeerProcess reader("d", 1, GetParam(), 0);
  StartHere("p");
  OpenFromHere(reader);
  AdmitAt(reader);
  PostMany(reader, 101, 3);  // UCX may still be settling its lanes when the link opens: let it
  for (int i = 0; i < 3; ++i) ASSERT_NE(reader.Expect("arrived"), "");
  ASSERT_TRUE(here_.WaitFor<Quiesced>(3));
  reader.Signal(SIGSTOP);
  PostMany(reader, 1, 10);
  ASSERT_TRUE(here_.WaitFor<Quiesced>(13));
  ExpectEachOnce(13);
  // One-sided puts need nobody at the target; receiver-posted ones do.
  EXPECT_EQ(Failed(), one_sided() ? 0u : 10u);
  EXPECT_EQ(here_.All<PeerLost>().size(), one_sided() ? 0u : 1u);
  here_.transport->Close(reader.id());
  ASSERT_TRUE(here_.WaitFor<Severed>(1));
}

TEST_P(ProcessTest, AStoppedWriterCannotKeepATicketFromItsFence) {
  options_.retire_timeout = std::chrono::milliseconds(200);
  PeerProcess writer("p", 1, GetParam(), 0x5A);
  ASSERT_NE(writer.Expect("descriptor"), "");
  StartHere("d");
  OpenToHere(writer);
  for (uint32_t slot = 1; slot <= 5; ++slot) {
    const Ticket ticket{here_.id.incarnation, slot, 1};
    here_.transport->Admit(ticket, writer.id(), {0}, {kPool});
    for (int i = 1; i <= 40; ++i) {
      writer.Send("post " + std::to_string(slot * 100 + i) + " " + std::to_string(slot) + " " + Words(here_.id) + " " +
                  std::to_string(kPool));
    }
    const size_t before = here_.All<ChunkArrived>().size();
    ASSERT_TRUE(here_.WaitFor<ChunkArrived>(before + 1));
    writer.Signal(SIGSTOP);
    here_.transport->Retire(ticket);
    ASSERT_TRUE(here_.WaitFor<Quiet>(slot));
    if (keyed()) {
      here_.transport->Fence(writer.id());
      ASSERT_TRUE(here_.WaitFor<Fenced>(slot));
    }
    if (!one_sided()) std::memset(here_.pool.data(), 0, kPool);
    writer.Signal(SIGCONT);
    for (int i = 1; i <= 40; ++i) ASSERT_NE(writer.Expect("quiesced"), "") << "the writer hangs";
    if (!one_sided()) {
      ASSERT_TRUE(AllAre(here_.pool, std::byte{0})) << "a byte was placed after Quiet";
    }
    OpenToHere(writer);  // again, if the link had to be cut; else it is answered at once
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ProcessTest,
                         testing::Values(Kind::kUcxShm, Kind::kUcxTcp, Kind::kUcxKeyed, Kind::kGrpcTls),
                         [](const auto& info) { return KindName(info.param); });

}  // namespace
}  // namespace baton

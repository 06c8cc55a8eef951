// Pair sessions between two workers' networks: real gRPC on free loopback ports, mailboxes in the engines' place.
#include "rpc/worker_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <set>

#include "scripted_worker.h"

extern char** environ;

namespace baton {
namespace {

using testing::Eventually;

// One worker's network with everything that came to its engine.
struct Node {
  explicit Node(WorkerNetworkOptions options = {}, size_t submissions = 100000,
                const std::vector<Endpoint>& routers = {})
      : mailbox(submissions, 100000) {
    auto listening = WorkerNetwork::Listen(std::move(options));
    BATON_CHECK(listening.ok(), listening.status().message());
    network = *std::move(listening);
    network->Start(&mailbox, routers);
  }
  void Read() { mailbox.Drain(&got, std::chrono::nanoseconds(0)); }
  template <typename T>
  std::vector<T> Got() {
    Read();
    std::vector<T> out;
    for (const EngineCommand& command : got) {
      if (const auto* value = std::get_if<T>(&command)) out.push_back(*value);
    }
    return out;
  }
  void Dial(uint64_t link, const std::string& address) {
    Outbox out;
    out.dial.push_back({LinkId{link}, {{"peer", {}}, address}});
    network->Deliver(std::move(out));
  }
  void Say(LinkId link, uint32_t from, uint32_t to) {
    Outbox out;
    for (uint32_t i = from; i < to; ++i) out.to_peers.emplace_back(link, PairMessage(AbortTicket{{{}, i, 1}}));
    network->Deliver(std::move(out));
  }
  // The slots of everything said to this node, in order.
  std::vector<uint32_t> Heard() {
    std::vector<uint32_t> slots;
    for (const FromPeer& from : Got<FromPeer>()) {
      if (const auto* abort = std::get_if<AbortTicket>(&from.message)) slots.push_back(abort->ticket.slot);
    }
    return slots;
  }

  Mailbox<EngineCommand> mailbox;
  std::vector<EngineCommand> got;
  std::unique_ptr<WorkerNetwork> network;
};

std::vector<uint32_t> UpTo(uint32_t n) {
  std::vector<uint32_t> out(n);
  for (uint32_t i = 0; i < n; ++i) out[i] = i;
  return out;
}

TEST(WorkerNetworkTest, WhatIsAdvertisedWithPortZeroHasThePortThatIsListenedOn) {
  Node plain;
  EXPECT_EQ(plain.network->pair_address().rfind("127.0.0.1:", 0), 0u);
  WorkerNetworkOptions options;
  options.advertise = "worker.example:0";
  Node named(options);
  const std::string address = named.network->pair_address();
  EXPECT_EQ(address.rfind("worker.example:", 0), 0u) << address;
  EXPECT_NE(address, "worker.example:0");
  options.advertise = "worker.example:7000";
  EXPECT_EQ(Node(options).network->pair_address(), "worker.example:7000");
}

// No link had LinkDown twice, or anything after it, or a message before LinkUp.
void ExpectLawfulLives(Node* node) {
  node->Read();
  std::set<LinkId> up, down;
  for (const EngineCommand& command : node->got) {
    if (const auto* u = std::get_if<LinkUp>(&command)) {
      EXPECT_TRUE(up.insert(u->link).second);
      EXPECT_FALSE(down.contains(u->link));
    } else if (const auto* f = std::get_if<FromPeer>(&command)) {
      EXPECT_TRUE(up.contains(f->link));
      EXPECT_FALSE(down.contains(f->link));
    } else if (const auto* d = std::get_if<LinkDown>(&command)) {
      EXPECT_TRUE(down.insert(d->link).second);
      EXPECT_FALSE(d->why.ok());
    }
  }
}

TEST(WorkerNetwork, MessagesGoBothWaysInOrderAndTheCloseIsToldOnce) {
  Node reader, writer;
  writer.Dial(1, reader.network->pair_address());
  ASSERT_TRUE(Eventually([&] { return writer.Got<LinkUp>().size() == 1 && reader.Got<LinkUp>().size() == 1; }));
  EXPECT_EQ(writer.Got<LinkUp>()[0].kind, LinkKind::kPairWriter);
  EXPECT_EQ(writer.Got<LinkUp>()[0].link, LinkId{1});
  EXPECT_EQ(reader.Got<LinkUp>()[0].kind, LinkKind::kPairReader);
  const LinkId accepted = reader.Got<LinkUp>()[0].link;
  EXPECT_GE(Raw(accepted), uint64_t{1} << 63);
  for (uint32_t i = 0; i < 2000; i += 100) {
    writer.Say(LinkId{1}, i, i + 100);
    reader.Say(accepted, i, i + 100);
  }
  EXPECT_TRUE(Eventually([&] { return reader.Heard().size() >= 2000 && writer.Heard().size() >= 2000; }));
  EXPECT_EQ(reader.Heard(), UpTo(2000));
  EXPECT_EQ(writer.Heard(), UpTo(2000));

  Outbox close;
  close.to_peers.emplace_back(LinkId{1}, PairMessage(AbortTicket{{{}, 2000, 1}}));
  close.close.push_back(LinkId{1});
  writer.network->Deliver(std::move(close));
  EXPECT_TRUE(Eventually([&] { return writer.Got<LinkDown>().size() == 1 && reader.Got<LinkDown>().size() == 1; }));
  EXPECT_EQ(reader.Heard(), UpTo(2001)) << "what was sent before the close arrives";
  ExpectLawfulLives(&writer);
  ExpectLawfulLives(&reader);
}

TEST(WorkerNetwork, AReadersCloseReachesTheWriter) {
  Node reader, writer;
  writer.Dial(1, reader.network->pair_address());
  ASSERT_TRUE(Eventually([&] { return writer.Got<LinkUp>().size() == 1 && reader.Got<LinkUp>().size() == 1; }));
  Outbox close;
  close.close.push_back(reader.Got<LinkUp>()[0].link);
  reader.network->Deliver(std::move(close));
  EXPECT_TRUE(Eventually([&] { return writer.Got<LinkDown>().size() == 1 && reader.Got<LinkDown>().size() == 1; }));
  ExpectLawfulLives(&writer);
  ExpectLawfulLives(&reader);
}

TEST(WorkerNetwork, ADialThatFailsIsToldAsDownAlone) {
  std::string dead_address;
  {
    Node dead;
    dead_address = dead.network->pair_address();
  }
  Node writer;
  writer.Dial(7, dead_address);
  EXPECT_TRUE(Eventually([&] { return writer.Got<LinkDown>().size() == 1; }));
  EXPECT_EQ(writer.Got<LinkDown>()[0].link, LinkId{7});
  EXPECT_TRUE(writer.Got<LinkUp>().empty());
}

TEST(WorkerNetwork, APeerThatShutsDownIsToldOnceOnEveryLink) {
  auto reader = std::make_unique<Node>();
  Node writer;
  for (uint64_t link = 1; link <= 20; ++link) writer.Dial(link, reader->network->pair_address());
  ASSERT_TRUE(Eventually([&] { return writer.Got<LinkUp>().size() == 20; }));
  reader->network->Shutdown();
  EXPECT_EQ(reader->Got<LinkDown>().size(), 20u) << "told before Shutdown returns";
  ExpectLawfulLives(reader.get());
  reader.reset();
  EXPECT_TRUE(Eventually([&] { return writer.Got<LinkDown>().size() == 20; }));
  ExpectLawfulLives(&writer);
}

TEST(WorkerNetwork, ALinkWhoseQueueOverflowsClosesInsteadOfDroppingFromTheMiddle) {
  WorkerNetworkOptions small;
  small.link_queue_messages = 4;
  Node reader, writer(small);
  writer.Dial(1, reader.network->pair_address());
  ASSERT_TRUE(Eventually([&] { return writer.Got<LinkUp>().size() == 1; }));
  writer.Say(LinkId{1}, 0, 50000);
  EXPECT_TRUE(Eventually([&] { return writer.Got<LinkDown>().size() == 1 && reader.Got<LinkDown>().size() == 1; }));
  EXPECT_EQ(writer.Got<LinkDown>()[0].why.code(), Code::kResourceExhausted);
  const std::vector<uint32_t> heard = reader.Heard();
  EXPECT_LT(heard.size(), 50000u);
  EXPECT_EQ(heard, UpTo(static_cast<uint32_t>(heard.size()))) << "a prefix of what was said";
  ExpectLawfulLives(&writer);
}

TEST(WorkerNetwork, AFullEngineAnswersReserveWithBusyAndTheLinkLives) {
  Node reader({}, /*submissions=*/0);
  Node writer;
  writer.Dial(1, reader.network->pair_address());
  ASSERT_TRUE(Eventually([&] { return writer.Got<LinkUp>().size() == 1; }));
  auto request = std::make_shared<Request>();
  request->id = {1, 2, 0};
  request->prompt = {1, 2, 3};
  Reserve reserve{request->id, 4, 5, request, {}, {}, 3, {}};
  Outbox out;
  out.to_peers.emplace_back(LinkId{1}, PairMessage(reserve));
  writer.network->Deliver(std::move(out));
  ASSERT_TRUE(Eventually([&] { return writer.Got<FromPeer>().size() == 1; }));
  const auto from = writer.Got<FromPeer>()[0];
  const auto* busy = std::get_if<Busy>(&from.message);
  ASSERT_NE(busy, nullptr);
  EXPECT_EQ(busy->child, request->id);
  EXPECT_EQ(busy->epoch, 4u);
  EXPECT_EQ(busy->attempt, 5u);
  // Control still passes.
  writer.Say(LinkId{1}, 0, 3);
  EXPECT_TRUE(Eventually([&] { return reader.Heard() == UpTo(3); }));
  EXPECT_TRUE(writer.Got<LinkDown>().empty());
}

TEST(WorkerNetwork, TheEndOfAWatchedProcessIsTold) {
  Node node;
  pid_t child = 0;
  std::string command = "sleep", argument = "1000";
  char* arguments[] = {command.data(), argument.data(), nullptr};
  ASSERT_EQ(posix_spawnp(&child, "sleep", nullptr, nullptr, arguments, environ), 0);
  const ProcessId process{"sleeper", {3, 4}};
  Outbox out;
  out.watch.push_back({process, HostIdentity(), static_cast<uint64_t>(child)});
  out.watch.push_back({{"elsewhere", {1, 1}}, "another host", static_cast<uint64_t>(child)});
  node.network->Deliver(std::move(out));
  node.Dial(1, node.network->pair_address());  // a later event shows that the watch was taken
  ASSERT_TRUE(Eventually([&] { return node.Got<LinkUp>().size() == 2; }));
  EXPECT_TRUE(node.Got<ProcessDied>().empty());
  kill(child, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !node.Got<ProcessDied>().empty(); }));
  int status = 0;
  waitpid(child, &status, 0);
  // A process that is gone already, and one of whose host nothing is known.
  out = {};
  out.watch.push_back({{"gone", {1, 1}}, HostIdentity(), static_cast<uint64_t>(child)});
  node.network->Deliver(std::move(out));
  ASSERT_TRUE(Eventually([&] { return node.Got<ProcessDied>().size() == 2; }));
  EXPECT_EQ(node.Got<ProcessDied>()[0].process, process);
  EXPECT_EQ(node.Got<ProcessDied>()[1].process.name, "gone");
}

TEST(WorkerNetwork, ARouterThatIsNotThereGivesNoLink) {
  Node node({}, 1000, {{"127.0.0.1:1", nullptr}});  // nobody listens there
  node.Dial(1, node.network->pair_address());
  ASSERT_TRUE(Eventually([&] { return node.Got<LinkUp>().size() == 2; }));
  EXPECT_TRUE(node.Got<LinkDown>().empty()) << "an attempt that failed is no link";
}

TEST(WorkerNetwork, APortInUseIsAClearRefusal) {
  Node node;
  WorkerNetworkOptions options;
  options.listen = node.network->pair_address();
  const auto second = WorkerNetwork::Listen(options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), ::testing::HasSubstr("in use"));
}

}  // namespace
}  // namespace baton

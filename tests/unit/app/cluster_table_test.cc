#include "app/cluster_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ClusterDescription Busy() {
  ClusterDescription c;
  c.router = "router-with-a-very-long-name-indeed#4711";
  c.model = "a-model-whose-name-is-long-as-well";
  c.serving = true;
  c.uptime = std::chrono::hours(10000);
  c.live = 123456, c.queued = 65432;
  WorkerDescription w;
  w.name = std::string(128, 'w');
  w.roles = {true, true};
  w.draining = true;
  w.running = w.waiting = 99999;
  w.total_blocks = w.free_blocks = {99999};
  w.blocks = {{10, 20, 99999, 3}};
  w.quarantined_blocks = {9999};
  w.decode_step_seconds = 12.3456;
  LaneDescription lane;
  lane.peer = std::string(128, 'p');
  lane.mode = "receiver-posted";
  lane.hand_offs = 99999;
  lane.bytes = uint64_t{1} << 60;
  lane.bytes_per_second = 123e9;
  lane.lane = "a-lane-with-a-long-name";
  lane.in_flight_bytes = uint64_t{1} << 59;
  lane.states["pushing"] = 7;
  w.lanes = {lane};
  w.metrics["kv_aborts_total{code=\"lease\"}"] = 3;
  c.workers = {w};
  return c;
}

TEST(ClusterTable, StaysWithin80ColumnsWhateverItShows) {
  std::istringstream lines(ClusterTable(Busy()));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(count, 5u) << "head, workers under their names, paths under theirs";
}

TEST(ClusterTable, AStateIsAWord) {
  ClusterDescription c = Busy();
  WorkerDescription& w = c.workers[0];
  w.name = "blue";
  EXPECT_THAT(ClusterTable(c), AllOf(HasSubstr(" draining "), Not(HasSubstr("drained"))));
  w.running = w.waiting = 0;
  EXPECT_THAT(ClusterTable(c), HasSubstr(" drained "));
  w.confirmed = false;
  EXPECT_THAT(ClusterTable(c), HasSubstr(" ordered "));
  w.heard_ago = std::chrono::seconds(2);
  EXPECT_THAT(ClusterTable(c), HasSubstr(" silent "));
  w = {};
  w.name = "blue";
  EXPECT_THAT(ClusterTable(c), AllOf(HasSubstr(" ok "), Not(HasSubstr("LANE"))));
  c.workers.clear();
  EXPECT_THAT(ClusterTable(c), HasSubstr("no worker is connected"));
}

TEST(ClusterTable, ABlockInQuarantineSaysWhomItWaitsFor) {
  ClusterDescription c = Busy();
  LaneDescription& lane = c.workers[0].lanes[0];
  c.workers[0].name = "d";
  lane.peer = "p";
  lane.incarnation = 7;
  lane.incoming = true;
  lane.quarantined_blocks = 4;
  lane.oldest_quarantine = std::chrono::milliseconds(2500);
  EXPECT_THAT(ClusterTable(c), HasSubstr("d: 4 blocks wait until p#7 is quiet, the oldest for 2.5s"));
}

TEST(ClusterTable, TheJsonHasEveryMetricUnderItsName) {
  const std::string text = ClusterJson(Busy());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["workers"][0]["metrics"]["kv_aborts_total{code=\"lease\"}"], 3);
  EXPECT_EQ(json["workers"][0]["role"], "unified");
  EXPECT_EQ(json["workers"][0]["blocks"][0]["cached"], 99999);
}

}  // namespace
}  // namespace baton

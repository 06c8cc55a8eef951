// What `baton doctor` concludes from the facts of a machine, for machines that this one is not.
#include "app/machine_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/worker_shape.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

const UcxLane kPosix{"posix", "memory", UcxLaneKind::kSharedMemory, true, false, false, true, true, false, 12e9, 8e-8};
const UcxLane kTcp{"tcp", "eth0", UcxLaneKind::kNetwork, true, true, false, false, false, true, 1e9, 1e-5};
const UcxLane kRdma{"rc_mlx5", "mlx5_0:1", UcxLaneKind::kNetwork, true, true, true, true, false, true, 5e10, 6e-7};

// Nothing is missing on it.
MachineFacts Perfect() {
  MachineFacts f;
  f.transport = "auto";
  f.listen = "10.0.0.1:9000";
  f.loopback_only = false;
  f.pool_bytes = kGiB;
  f.state_dir = "/var/lib/baton";
  f.cpu = "a fast one";
  f.cores = f.threads = 16;
  f.tables = {"reference", "avx2"};
  f.kernels = "avx2";
  f.memory_total = f.memory_available = 64 * kGiB;
  f.shm_there = true;
  f.shm_total = f.shm_free = 32 * kGiB;
  f.descriptors = {65536, 65536};
  f.pidfd = true;
  f.rdma_devices = {"mlx5_0"};
  f.rdma_verbs = true;
  f.ucx = {"1.13.1", true, {kPosix, kRdma, kTcp}};
  f.paths = {{"ucx-shm", {}, {TransferMode::kOneSided, kGiB, 9e9, 5e-5}},
             {"ucx-tcp", {}, {TransferMode::kReceiverPosted, kGiB, 2e9, 9e-5}},
             {"grpc", {}, {TransferMode::kReceiverPosted, kGiB, 7e8, 2e-4}}};
  f.memcpy_bytes_per_second = 1e10;
  return f;
}

class MachineFindings : public ::testing::Test {
 protected:
  // The machine has one fault, and it is found, alone, with what to do.
  void ExpectOne(Weight weight, const std::string& subject, const std::vector<std::string>& words) {
    const std::vector<Finding> all = FindingsOf(f);
    ASSERT_EQ(all.size(), 1u) << DoctorReport(f, all);
    EXPECT_EQ(all[0].weight, weight);
    EXPECT_EQ(all[0].subject, subject);
    for (const std::string& word : words) EXPECT_THAT(all[0].text, HasSubstr(word));
    EXPECT_EQ(WouldStart(all), weight != Weight::kRefuses);
  }
  MachineFacts f = Perfect();
};

TEST_F(MachineFindings, AMachineThatLacksNothingHasNoFindings) {
  EXPECT_TRUE(FindingsOf(f).empty()) << DoctorReport(f, FindingsOf(f));
  EXPECT_TRUE(WouldStart({}));
}

TEST_F(MachineFindings, OneSidedOnTheNetworkIsWhatALaneCanDoNotWhatItIsCalled) {
  EXPECT_TRUE(kRdma.rdma());
  EXPECT_FALSE(kTcp.rdma());    // puts, but cannot get, and has no keys
  EXPECT_FALSE(kPosix.rdma());  // no network
  UcxLane other = kRdma;
  other.transport = "something_new";
  EXPECT_TRUE(other.rdma());
  EXPECT_EQ(FenceOf(other), "key withdrawn");
  EXPECT_EQ(FenceOf(kTcp), "reader stops");
  EXPECT_EQ(FenceOf(kPosix), "writer's death");
}

TEST_F(MachineFindings, WithoutAnRdmaDeviceTheModuleIsNamedAndWhatTcpDoesInstead) {
  f.ucx.lanes.erase(f.ucx.lanes.begin() + 1);
  f.rdma_devices.clear();
  ExpectOne(Weight::kSlower, "rdma", {"no RDMA device", "/sys/class/infiniband", "kernel module", "1.9 GiB/s"});
}

TEST_F(MachineFindings, AnRdmaDeviceThatNoProgramReachesNamesTheModuleAndTheContainerOption) {
  f.ucx.lanes.erase(f.ucx.lanes.begin() + 1);
  f.rdma_verbs = false;
  ExpectOne(Weight::kSlower, "rdma", {"mlx5_0", "ib_uverbs", "--device /dev/infiniband"});
}

TEST_F(MachineFindings, AUcxWithoutItsRdmaPartIsSaidToBe) {
  f.ucx.lanes.erase(f.ucx.lanes.begin() + 1);
  f.ucx.rdma_built = false;
  ExpectOne(Weight::kSlower, "rdma", {"UCX 1.13.1 lacks", "mlx5_0", "libuct_ib.so"});
}

TEST_F(MachineFindings, AnRdmaDeviceWithoutALaneAsksForItsPortAndTheLimit) {
  f.ucx.lanes.erase(f.ucx.lanes.begin() + 1);
  ExpectOne(Weight::kSlower, "rdma", {"mlx5_0", "is a port up", "ulimit -l"});
}

TEST_F(MachineFindings, RdmaThatIsDemandedIsRefusedWhereItIsMissing) {
  f.transport = "ucx-rdma";
  f.shares_pool = false;
  EXPECT_EQ(UseOf(kRdma, f), "KV");
  EXPECT_EQ(UseOf(kTcp, f), "messages");
  EXPECT_TRUE(WouldStart(FindingsOf(f)));
  f.locked_memory = {8 * kMiB, 8 * kMiB};
  EXPECT_FALSE(WouldStart(FindingsOf(f)));
  f.locked_memory = {};
  f.ucx.lanes.erase(f.ucx.lanes.begin() + 1);
  f.rdma_devices.clear();
  const auto all = FindingsOf(f);
  EXPECT_FALSE(WouldStart(all));
  EXPECT_EQ(all[0].subject, "rdma");
  EXPECT_THAT(all[0].text, HasSubstr("no RDMA device"));
}

TEST_F(MachineFindings, LockedMemoryBelowThePoolMattersOnlyWithRdma) {
  f.locked_memory = {8 * kMiB, 8 * kMiB};
  ExpectOne(Weight::kSlower, "memlock", {"1.0 GiB", "8.0 MiB", "ulimit -l"});
  f.ucx.lanes.erase(f.ucx.lanes.begin() + 1);
  f.rdma_devices.clear();
  ExpectOne(Weight::kSlower, "rdma", {});
}

TEST_F(MachineFindings, APoolThatDevShmCannotHoldIsRefusedIfItIsWantedAndShrinksIfNot) {
  f.shm_free = 32 * kMiB;
  f.pool_wanted = true;
  ExpectOne(Weight::kRefuses, "shm", {"1.0 GiB", "32.0 MiB", "--shm-size", "--kv-memory", "ucx-tcp"});
  f.pool_wanted = false;
  f.pool_bytes = 25 * kMiB;
  ExpectOne(Weight::kSlower, "shm", {"32.0 MiB", "25.0 MiB", "--shm-size"});
}

TEST_F(MachineFindings, NoDevShmIsRefusedUnlessThePoolIsPrivate) {
  f.shm_there = false;
  f.shm_total = f.shm_free = 0;
  ExpectOne(Weight::kRefuses, "shm", {"/dev/shm is not there", "ucx-tcp"});
  f.transport = "ucx-tcp";
  f.shares_pool = false;
  ExpectOne(Weight::kSlower, "shm", {"unused"});
}

TEST_F(MachineFindings, WithoutPidfdSharedMemoryIsNotUsedAndIsRefusedWhereItIsDemanded) {
  f.pidfd = false;
  f.pidfd_error = "Operation not permitted";
  ExpectOne(Weight::kSlower, "pidfd", {"Operation not permitted", "seccomp"});
  f.transport = "ucx-shm";
  ExpectOne(Weight::kRefuses, "pidfd", {"Linux 5.3"});
}

TEST_F(MachineFindings, APidNamespaceOfItsOwnIsNotedWithHowToShareOne) {
  f.first_pid_namespace = false;
  ExpectOne(Weight::kNote, "namespace", {"--pid=host"});
}

TEST_F(MachineFindings, TooFewFileDescriptorsAreRefusedAndFewAreNoted) {
  f.descriptors = {kFewestDescriptors - 1, 4096};
  ExpectOne(Weight::kRefuses, "descriptors", {"63", "ulimit -n 1024"});
  f.descriptors = {20, 20};
  ExpectOne(Weight::kRefuses, "descriptors", {"20 file descriptors", "hard limit"});
  f.descriptors = {256, 512};
  ExpectOne(Weight::kNote, "descriptors", {"256", "ulimit -n 512"});
}

TEST_F(MachineFindings, KernelsThatCannotRunAndPlansThatDoNotFitAreRefusedInTheirWords) {
  f.kernels_status = InvalidArgumentError("CPU kernels 'avx2' cannot run here");
  f.kernels.clear();
  ExpectOne(Weight::kRefuses, "kernels", {"'avx2' cannot run here"});
  f = Perfect();
  f.plan = ResourceExhaustedError("the model does not fit");
  ExpectOne(Weight::kRefuses, "memory", {"the model does not fit"});
  f = Perfect();
  f.state_dir_status = FailedPreconditionError("/var: Permission denied");
  ExpectOne(Weight::kRefuses, "state-dir", {"/var/lib/baton", "Permission denied", "--state-dir"});
  f = Perfect();
  f.kernels = "reference";
  ExpectOne(Weight::kSlower, "kernels", {"avx2"});
  f = Perfect();
  f.threads = 32;
  ExpectOne(Weight::kSlower, "cpu", {"32 threads", "16 usable"});
}

TEST_F(MachineFindings, APathThatDoesNotWorkIsRefusedWhereWorkersNeedIt) {
  f.paths[0].status = UnavailableError("nothing arrived for 2 s");
  ExpectOne(Weight::kRefuses, "ucx-shm", {"nothing arrived"});
  f = Perfect();
  f.paths[1].status = UnavailableError("no usable transport");
  ExpectOne(Weight::kRefuses, "ucx-tcp", {"no usable transport"});
}

TEST_F(MachineFindings, StreamsOverGrpcNeedNeitherUcxNorSharedMemory) {
  f.paths[2].status = UnavailableError("no stream");
  ExpectOne(Weight::kNote, "grpc", {"no stream"});
  f.transport = "grpc";
  f.shares_pool = false;
  f.shm_there = false;
  f.rdma_devices.clear();
  f.ucx = {};
  f.ucx_status = UnavailableError("no UCX");
  f.paths[0].status = f.paths[1].status = UnavailableError("no UCX");
  auto all = FindingsOf(f);
  EXPECT_FALSE(WouldStart(all)) << DoctorReport(f, all);
  f.paths[2].status = OkStatus();
  all = FindingsOf(f);
  EXPECT_TRUE(WouldStart(all)) << DoctorReport(f, all);
  f = Perfect();
  f.transport = "grpc";
  for (const UcxLane& lane : f.ucx.lanes) EXPECT_EQ(UseOf(lane, f) == "messages, KV", false) << lane.transport;
}

TEST_F(MachineFindings, RefusalsComeFirstAndTheReportEndsWithTheVerdict) {
  f.first_pid_namespace = false;
  f.locked_memory = {0, 0};
  f.kernels_status = InvalidArgumentError("CPU kernels 'avx2' cannot run here");
  f.kernels.clear();
  const auto all = FindingsOf(f);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](auto& a, auto& b) { return a.weight < b.weight; }));
  const std::string report = DoctorReport(f, all);
  EXPECT_THAT(report, ::testing::EndsWith("A worker would refuse to start here.\n"));
  for (const char* word : {"a fast one", "mlx5_0:1", "key withdrawn", "ucx-tcp", "receiver-posted", "memcpy"}) {
    EXPECT_THAT(report, HasSubstr(word));
  }
  size_t begin = 0;
  for (size_t end; (end = report.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 80u) << report.substr(begin, end - begin);
  }
}

TEST_F(MachineFindings, TheJsonTellsEveryLanePathAndFinding) {
  f.descriptors.hard = kUnlimited;
  f.paths[1].status = UnavailableError("no usable transport");
  const auto json = nlohmann::json::parse(DoctorJson(f, FindingsOf(f)));
  EXPECT_EQ(json["would_start"], false);
  EXPECT_EQ(json["lanes"].size(), 3u);
  EXPECT_EQ(json["lanes"][1]["transport"], "rc_mlx5");
  EXPECT_EQ(json["lanes"][1]["rdma"], true);
  EXPECT_EQ(json["transports"][0]["bytes_per_second"], 9e9);
  EXPECT_EQ(json["transports"][1]["usable"], false);
  EXPECT_EQ(json["transports"][1]["why"], "no usable transport");
  EXPECT_EQ(json["findings"][0]["weight"], "refuses");
  EXPECT_EQ(json["descriptors"]["soft"], 65536);
  EXPECT_TRUE(json["descriptors"]["hard"].is_null());
}

}  // namespace
}  // namespace baton

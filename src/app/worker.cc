#include "app/worker.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "app/load_progress.h"
#include "app/model_source.h"
#include "app/supervisor.h"
#include "app/worker_shape.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "base/rng.h"
#include "cost/cost_model.h"
#include "device/cpu/cpu_device.h"
#include "engine/engine_thread.h"
#include "model/loaded_model.h"
#include "rpc/worker_network.h"
#include "runner/cpu_model_runner.h"
#include "runner/warm_up.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/local/local_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {
namespace {

constexpr size_t kInlet = 1 << 14;         // commands waiting for the engine
constexpr size_t kInletControl = 1 << 16;  // room of its own for what is never refused

// A cold guess of what a step costs; the first measured steps replace it.
CostCoefficients ColdCost(const DecoderDescription& d, const MemoryPlan& memory, int threads) {
  MachineShape shape;
  shape.active_parameters = static_cast<double>(d.NumParameters());
  shape.weight_bytes = static_cast<double>(memory.weights_bytes);
  shape.attention_width = static_cast<double>(d.num_layers) * d.num_heads * d.head_dim;
  shape.kv_bytes_per_token = static_cast<double>(memory.layout.BytesPerToken());
  shape.flops = 40e9 * threads;
  return PriorFor(shape);
}

StatusOr<std::unique_ptr<KvTransport>> MakeTransport(const Settings& settings, const WorkerSetup& setup, Waker* waker) {
  if (setup.alone) {
    return std::unique_ptr<KvTransport>(
        std::make_unique<LocalTransport>(LocalFabric(), LocalOptions{.self = setup.self}, waker));
  }
  const std::string& transport = settings.Text("transport");
  if (transport == "grpc") {
    // A port of its own beside the pair service's, reached under the same host.
    const auto port_zero = [&](const char* option) { return HostPort{settings.Address(option).host, 0}.ToString(); };
    GrpcOptions options;
    options.self = setup.self;
    options.listen = port_zero("listen");
    if (settings.Given("advertise")) options.advertise = port_zero("advertise");
    options.tls = setup.tls;
    auto grpc = GrpcTransport::Create(std::move(options), waker);
    if (!grpc.ok()) return grpc.status().Annotate("transport grpc");
    return std::unique_ptr<KvTransport>(*std::move(grpc));
  }
  UcxOptions options;
  options.self = setup.self;
  options.tls = transport.starts_with("ucx-") ? transport.substr(4) : "auto";
  options.net_devices = IsLoopback(settings.Address("listen").host) ? "lo" : "all";
  auto ucx = UcxTransport::Create(std::move(options), waker);
  if (!ucx.ok()) return ucx.status().Annotate("transport " + transport);
  return std::unique_ptr<KvTransport>(*std::move(ucx));
}

EngineOptions MakeEngineOptions(const Settings& settings, const ModelFile& file, const WorkerSetup& setup,
                                const WorkerShape& shape, const std::string& pair_address, const Hash128& numeric) {
  EngineOptions out;
  const auto max_running = static_cast<uint32_t>(settings.Integer("max-running"));
  out.self = {setup.self, pair_address};
  out.model = file.identity();
  out.protocol = static_cast<uint32_t>(settings.Integer("protocol"));
  out.layout = shape.memory.layout;
  out.pool = shape.memory.pool;
  out.numeric = numeric;
  out.vocab_size = file.decoder().vocab_size;
  out.roles = setup.roles;
  out.scheduler.max_step_tokens = shape.runner.max_step_tokens;
  out.scheduler.max_prefill_tokens = shape.runner.max_step_tokens;
  out.scheduler.max_running = max_running;
  // Requests wait at the router, where they can still go elsewhere; a worker queues just enough to stay busy.
  out.submit_credits = 2 * max_running;
  out.scheduler.max_waiting = 4 * max_running;
  out.scheduler.max_context_tokens = shape.max_context_tokens;
  out.reader.num_slots = std::max<uint32_t>(16, 2 * max_running);
  out.prior = ColdCost(file.decoder(), shape.memory, shape.threads);
  out.host = setup.alone ? "" : HostIdentity();
  out.pid = static_cast<uint64_t>(getpid());
  out.stuck_after = settings.Time("stuck-after");
  out.seed = Mix64(setup.self.incarnation.random);
  return out;
}

// L9: to the supervisor, which kills the writer if it started it; and to the log, for whoever runs it otherwise.
void SayStuck(const Quarantine& stuck, EventLines* events) {
  events->Say(StuckLine(stuck));
  spdlog::warn(
      "{} KV blocks have waited for {:.1f} s for writer {} (pid {}), which is alive and does not answer: only its "
      "death "
      "gives them back. {}",
      stuck.blocks, Seconds(stuck.age), ToString(stuck.writer), stuck.pid,
      events->supervised() ? "The supervisor kills it if it started it; otherwise kill it" : "Kill it");
}

class CpuWorker : public Worker {
 public:
  ~CpuWorker() override { Stop(); }

  Status Build(const Settings& settings, const ModelFile& file, const WorkerSetup& setup, EventLines* events) {
    BATON_RETURN_IF_ERROR(CheckDescriptors());
    WorkerNetworkOptions network;
    network.listen = setup.alone ? "" : settings.Text("listen");
    if (!setup.alone) network.advertise = settings.Text("advertise");
    network.tls = setup.tls;
    network.on_refused = [this, tell = setup.on_refused](const Status& why) {
      if (--routers_left_ == 0 && tell) return tell(why);
      spdlog::error("{}; {} routers are left", why.message(), routers_left_);
    };
    BATON_ASSIGN_OR_RETURN(network_, WorkerNetwork::Listen(std::move(network)));

    BATON_ASSIGN_OR_RETURN(WorkerShape shape, PlanShape(settings, file, setup.alone));
    events->Say(file.identity().name + ": " + shape.memory.Words());

    CpuDevice::Options device;
    device.threads = shape.threads;
    device.kernels = settings.Text("kernels");
    BATON_ASSIGN_OR_RETURN(device_, CpuDevice::Create(device));
    BATON_ASSIGN_OR_RETURN(transport_, MakeTransport(settings, setup, &inlet_));
    BATON_ASSIGN_OR_RETURN(const std::span<std::byte> pool, transport_->AllocatePool(shape.memory.pool.total_bytes));

    LoadProgressLine progress(events);
    file.Prefetch();
    BATON_ASSIGN_OR_RETURN(model_, LoadedModel::Load(file, device_->pool(), progress.Callback()));
    progress.Done();
    shape.runner.waker = &inlet_;
    BATON_ASSIGN_OR_RETURN(
        runner_, CpuModelRunner::Create(*model_, *device_, shape.memory.layout, shape.memory.pool, pool, shape.runner));
    if (Status warm = WarmUp(runner_.get(), shape.memory.layout.groups.size()); !warm.ok()) {
      spdlog::warn("warm-up: {}: are the weights whole? Requests whose tokens meet the same are refused one by one",
                   warm.message());
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<Endpoint> routers, setup.find_routers());
    routers_left_ = routers.size();
    EngineOptions engine =
        MakeEngineOptions(settings, file, setup, shape, network_->pair_address(), runner_->numeric_identity());
    BATON_RETURN_IF_ERROR(Validate(engine.scheduler));
    core_ = std::make_unique<EngineCore>(std::move(engine), runner_.get(), transport_.get());
    thread_ = std::make_unique<EngineThread>(core_.get(), &inlet_, &clock_, [this, events](Outbox&& out) {
      for (const Quarantine& stuck : out.stuck) SayStuck(stuck, events);
      network_->Deliver(std::move(out));
    });
    network_->Start(&inlet_, routers);
    thread_->Start();
    spdlog::info("{} serves with {} kernels, {} thread(s), transport {}", ToString(setup.self), device_->kernels().name,
                 shape.threads, transport_->name());
    return OkStatus();
  }

  std::string pair_address() const override { return network_->pair_address(); }

  bool Drain(Duration limit) override {
    if (thread_ == nullptr || !inlet_.PushControl(BeginDrain{})) return false;
    const TimePoint end = clock_.Now() + limit;
    while (!thread_->drained()) {
      if (clock_.Now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  void Stop() override {
    if (thread_ != nullptr) thread_->Stop();
    if (network_ != nullptr) network_->Shutdown();
  }

 private:
  // In the order of their lives: what stands above is used by what stands below.
  SteadyClock clock_;
  size_t routers_left_ = 0;  // that have not refused; network thread once it runs
  Mailbox<EngineCommand> inlet_{kInlet, kInletControl};
  std::unique_ptr<WorkerNetwork> network_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<KvTransport> transport_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<CpuModelRunner> runner_;
  std::unique_ptr<EngineCore> core_;
  std::unique_ptr<EngineThread> thread_;
};

}  // namespace

StatusOr<std::unique_ptr<Worker>> Worker::Start(const Settings& settings, const ModelFile& file, WorkerSetup setup,
                                                EventLines* events) {
  auto worker = std::make_unique<CpuWorker>();
  BATON_RETURN_IF_ERROR(worker->Build(settings, file, setup, events));
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace baton

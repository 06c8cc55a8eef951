// `cluster`, `drain`, `role`: what a router knows, and orders to its workers.
#include <unistd.h>

#include <cstdio>

#include "app/cluster_table.h"
#include "app/commands.h"
#include "app/connect.h"
#include "app/process.h"
#include "rpc/inference_client.h"

namespace baton {
namespace {

int FailCall(const Settings& settings, const Status& status) {
  std::string message = settings.Text("server") + ": " + status.ToString();
  if (status.code() == Code::kUnavailable) message += WhatToTry(settings, status);
  return Fail(kExitFailed, InternalError(message));
}

std::string Left(const OrderUpdate& update) {
  return std::to_string(update.running) + " running, " + std::to_string(update.waiting) + " waiting, " +
         std::to_string(update.requests) + " requests of this router";
}

// False: nobody reads any more.
bool Show(const Settings& settings, const ClusterDescription& cluster) {
  if (settings.Flag("json")) {
    std::printf("%s\n", ClusterJson(cluster).c_str());
  } else {
    // On a terminal each table takes the place of the one before.
    if (settings.Flag("watch")) std::fputs(isatty(STDOUT_FILENO) == 1 ? "\x1b[H\x1b[2J" : "\n", stdout);
    std::fputs(ClusterTable(cluster).c_str(), stdout);
  }
  return std::fflush(stdout) == 0;
}

}  // namespace

int RunCluster(const Settings& settings) {
  const auto connected = Connect(settings);
  if (!connected.ok()) return Fail(kExitUsage, connected.status());
  InferenceClient* const client = connected->get();
  if (settings.Flag("watch")) {
    const Status status = client->WatchCluster(
        settings.Time("interval"), [&](const ClusterDescription& cluster) { return Show(settings, cluster); });
    return status.ok() ? FinishOutput(kExitDone) : FailCall(settings, status);
  }
  const auto cluster = client->GetCluster();
  if (!cluster.ok()) return FailCall(settings, cluster.status());
  Show(settings, *cluster);
  return FinishOutput(kExitDone);
}

int RunDrain(const Settings& settings) {
  DrainOrder order;
  order.worker = settings.Text("worker");
  order.router = settings.Flag("whole-router");
  order.undo = settings.Flag("undo");
  order.force = settings.Flag("force");
  order.wait = settings.Time("wait");
  const std::string what = order.router ? "the router" : order.worker;
  const auto client = Connect(settings);
  if (!client.ok()) return Fail(kExitUsage, client.status());
  const auto end = (*client)->Drain(order, [&](const OrderUpdate& update) {
    if (!update.last) std::fprintf(stderr, "%s: %s\n", what.c_str(), Left(update).c_str());
  });
  if (!end.ok()) return FailCall(settings, end.status());
  if (order.undo) {
    std::printf("%s %s\n", what.c_str(), end->changed ? "admits work again" : "was not draining");
  } else if (end->left) {
    std::printf("%s has left\n", what.c_str());
  } else if (end->empty) {
    std::printf("%s is drained: nothing runs there, and nothing new goes there\n", what.c_str());
  } else {
    std::printf("%s drains, but is not empty yet: %s\n", what.c_str(), Left(*end).c_str());
    return FinishOutput(kExitFailed);
  }
  return FinishOutput(kExitDone);
}

int RunRole(const Settings& settings) {
  const std::string& role = settings.Text("role");
  RoleOrder order;
  order.worker = settings.Text("worker");
  order.roles = {.prefill = role != "decode", .decode = role != "prefill"};
  order.force = settings.Flag("force");
  order.wait = settings.Time("wait");
  const auto client = Connect(settings);
  if (!client.ok()) return Fail(kExitUsage, client.status());
  const auto end = (*client)->SetRole(order);
  if (!end.ok()) return FailCall(settings, end.status());
  if (!end->changed) {
    std::printf("%s is a %s worker already\n", order.worker.c_str(), role.c_str());
  } else {
    std::printf("%s is a %s worker now", order.worker.c_str(), role.c_str());
    const uint32_t there = end->running + end->waiting;
    if (there > 0) std::printf("; the %u sequences that it has run to their end", there);
    std::printf("\n");
  }
  return FinishOutput(kExitDone);
}

}  // namespace baton

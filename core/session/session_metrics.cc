// The counters of a session as OpenMetrics text, and its spans as trace events.

#include "core/membership/admission.h"
#include "core/metrics/open_metrics.h"
#include "core/session/session_impl.h"

namespace dsgd {

void Session::Impl::count(const Operation& operation, const Status& status, transport::Time begun) {
  for (auto& [name, label, counters] : calls_by_kind) {
    if (name != operation.name()) continue;
    counters.ended.add(1);
    if (!status.ok()) counters.failed.add(1);
    const uint64_t nbytes = operation.object() ? operation.object()->bytes.size() : operation.nbytes();
    counters.bytes.add(nbytes);
    const transport::Time now = loop().now();
    counters.time.add(now - begun);
    worker->trace().record(
        {metrics::Track::kCalls, !status.ok(), 0, 0, label, operation.id(), nbytes, begun, now});
    return;
  }
}

Result<std::string> Session::metrics() const {
  using metrics::OpenMetrics;
  Impl::HostCall call(*impl_, Impl::HostCall::kRead);
  if (!call.status().ok()) return call.status();
  OpenMetrics out("dsgd_");
  out.info("session", "Job, rank and library version of the session.");
  out.sample(
      {{"job", impl_->config.text("job")}, {"rank", std::to_string(rank())}, {"version", library_version()}},
      uint64_t{1});
  out.gauge("workers", "", "Workers in the view.");
  out.sample({}, static_cast<uint64_t>(size()));

  const auto each_kind = [&](auto value) {
    for (const auto& kind : impl_->calls_by_kind) out.sample({{"call", kind.label}}, value(kind.counters));
  };
  out.counter("calls", "", "Calls that have ended.");
  each_kind([](const auto& counters) { return counters.ended.value(); });
  out.counter("failed_calls", "", "Calls that have ended with an error.");
  each_kind([](const auto& counters) { return counters.failed.value(); });
  out.counter("call_bytes", "bytes", "Bytes of this worker's buffers in calls.");
  each_kind([](const auto& counters) { return counters.bytes.value(); });
  out.counter("call_seconds", "seconds", "Time from calls to their ends.");
  each_kind([](const auto& counters) { return counters.time.seconds(); });

  const metrics::StepCounters& steps = impl_->engine().step().counters();
  out.counter("steps", "", "Steps that have ended.");
  out.sample({}, steps.ended.value());
  out.counter("failed_steps", "", "Steps that have ended with an error.");
  out.sample({}, steps.failed.value());
  out.counter("applied_steps", "", "Steps that have updated the model.");
  out.sample({}, steps.applied.value());
  out.counter(
      "step_phase_seconds", "seconds",
      "Time of steps by phase. gradients: from the beginning until all gradients are marked; reduction: "
      "from then until all buckets are reduced; update: from then to the end.");
  out.sample({{"phase", "gradients"}}, steps.gradients.seconds());
  out.sample({{"phase", "reduction"}}, steps.reduction.seconds());
  out.sample({{"phase", "update"}}, steps.update.seconds());
  out.counter("buckets", "", "Buckets of gradients that have travelled.");
  out.sample({}, steps.buckets.value());
  out.counter("bucket_seconds", "seconds", "Time that buckets have travelled; several travel at once.");
  out.sample({}, steps.travel.seconds());
  out.gauge("memory_bytes", "bytes",
            "Memory held: values and gradients that the library has allocated; optimizer state and master "
            "values; buffers of steps; objects.");
  out.sample({{"use", "tensors"}}, impl_->allocated.value());
  out.sample({{"use", "optimizer"}}, steps.state.value());
  out.sample({{"use", "steps"}}, steps.buffers.value());
  out.sample({{"use", "objects"}}, impl_->engine().objects().nbytes());

  if (const Mesh* mesh = impl_->worker->mesh()) {
    const auto peers = mesh->peers.counters();
    const auto each_peer = [&](auto value) {
      for (size_t peer = 0; peer < peers.size(); ++peer) {
        if (static_cast<int32_t>(peer) != rank())
          out.sample({{"rank", std::to_string(peer)}}, value(*peers[peer]));
      }
    };
    out.counter("peer_sent_bytes", "bytes", "Bytes of collectives, steps and objects sent to a worker.");
    each_peer([](const auto& counters) { return counters.sent.value(); });
    out.counter("peer_received_bytes", "bytes",
                "Bytes of collectives, steps and objects received from a worker.");
    each_peer([](const auto& counters) { return counters.received.value(); });
    out.counter(
        "peer_wait_seconds", "seconds",
        "Time that operations of this worker waited for the first data of a worker. Time in which several "
        "operations wait counts once.");
    each_peer([](const auto& counters) { return counters.wait.seconds(); });
  }

  const transport::Network::Counters network = impl_->worker->network().counters();
  out.counter("network_sent_bytes", "bytes", "Bytes written to connections.");
  out.sample({}, network.bytes_sent);
  out.counter("network_received_bytes", "bytes", "Bytes read from connections.");
  out.sample({}, network.bytes_received);
  out.gauge("receive_memory_bytes", "bytes", "Memory of data that has arrived and is not used yet.");
  out.sample({}, network.pooled_bytes);
  out.gauge("receive_memory_peak_bytes", "bytes",
            "Highest memory of data that has arrived and is not used yet, since the session was opened.");
  out.sample({}, network.pooled_peak);
  return std::move(out).text();
}

Result<std::string> Session::trace(transport::Duration unix_now) const {
  std::vector<metrics::Span> spans;
  transport::Duration unix_origin;
  {
    Impl::HostCall call(*impl_, Impl::HostCall::kRead);
    if (!call.status().ok()) return call.status();
    spans = impl_->worker->trace().spans();
    unix_origin = unix_now - impl_->loop().now();
  }
  return metrics::trace_events(spans, rank(), unix_origin);  // takes a while; dsgd_close does not wait for it
}

}  // namespace dsgd

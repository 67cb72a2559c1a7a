#include "transport/schema/codec_capnp.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "transport/schema/check.h"

namespace dsgd::transport {
namespace {

kj::StringPtr text(const std::string& from) { return {from.c_str(), from.size()}; }
std::string cut_text(const std::string& from) {
  static constexpr std::string_view kCut = " ... (cut)";
  return from.size() <= kMaxTextBytes ? from : from.substr(0, kMaxTextBytes - kCut.size()).append(kCut);
}
template <typename Bytes>
capnp::Data::Reader data_of(const Bytes& from) {
  return {reinterpret_cast<const kj::byte*>(from.data()), from.size()};
}

// Reads the parts of a Message.
class MessageCheck : public Check {
 public:
  void member(schema::MemberInfo::Reader from, MemberInfo* to) {
    to->rank = from.getRank();
    text(from.getWorkerId(), &to->worker_id, "worker id");
    text(from.getHost(), &to->host, "host");
    text(from.getMachine(), &to->machine, "machine");
    auto addresses = from.getAddresses();
    if (!ok() || !length(addresses.size(), kMaxAddresses, "list of addresses", "entries")) return;
    for (auto address : addresses) {
      if (!ok()) return;
      text(address, &to->addresses.emplace_back(), "address");
    }
    to->pid = from.getPid();
    to->number = from.getNumber();
  }

  void members(capnp::List<schema::MemberInfo>::Reader from, std::vector<MemberInfo>* to) {
    if (!ok() || !length(from.size(), kMaxMembers, "list of members", "entries")) return;
    for (auto entry : from) {
      if (!ok()) return;
      member(entry, &to->emplace_back());
    }
  }

  // A number that stands for one of the values up to `last`.
  template <typename Enum>
  void choice(uint8_t from, Enum last, Enum* to, const char* field) {
    if (!ok()) return;
    if (from > static_cast<uint8_t>(last)) return fail("unknown " + (field + (" " + std::to_string(from))));
    *to = static_cast<Enum>(from);
  }

  void progress(schema::Progress::Reader from, Progress* to) {
    to->number = from.getNumber();
    to->view = from.getView();
    to->present_view = from.getPresentView();
    to->steps = from.getSteps();
    choice(from.getActivity(), Progress::Activity::kWaits, &to->activity, "activity");
    to->call = from.getCall();
    to->open = Duration(from.getOpen());
    text(from.getOperation(), &to->operation, "operation", kMaxWaitBytes);
    text(from.getWaiting(), &to->waiting, "reason to wait", kMaxWaitBytes);
    numbers(from.getWaitsFor(), &to->waits_for, kMaxWaitedRanks, "list of ranks");
    to->holds_state = from.getHoldsState();
  }

  void worker_status(schema::WorkerStatus::Reader from, WorkerStatus* to) {
    member(from.getMember(), &to->member);
    choice(from.getState(), WorkerStatus::State::kLost, &to->state, "state of a worker");
    to->silence = Duration(from.getSilence());
    to->reported = from.getReported();
    to->age = Duration(from.getAge());
    to->steps_per_second = from.getStepsPerSecond();
    if (to->reported) progress(from.getProgress(), &to->progress);
  }

  void state_part(schema::StateParts::Part::Reader from, StateParts::Part* to) {
    choice(from.getKind(), StateParts::Kind::kValues, &to->kind, "kind of a part");
    to->parameter = from.getParameter();
    to->begin = from.getBegin();
    to->count = from.getCount();
    to->updates = from.getUpdates();
    to->learning_rate = from.getLearningRate();
    to->rate = from.getRate();
    to->decay = from.getDecay();
    to->divisor = from.getDivisor();
    auto data = from.getData();
    if (ok() && length(data.size(), kMaxStatePartBytes, "part", "bytes"))
      to->data.assign(data.begin(), data.end());
  }

  WatchReply news(schema::WatchReply::Reader from) {
    WatchReply to;
    to.sequence = from.getSequence();
    to.view = from.getView();
    status(from.getNews(), &to.news);
    to.left = from.getLeft();
    to.departure_call = from.getDepartureCall();
    members(from.getMembers(), &to.members);
    to.head_rank = from.getHeadRank();
    to.paused = from.getPaused();
    return to;
  }

  void record(schema::HeadRecord::Reader from, HeadRecord* to) {
    text(from.getJob(), &to->job, "job");
    text(from.getAddress(), &to->address, "address");
    to->lease = Duration(from.getLease());
    to->num_workers = from.getNumWorkers();
    to->min_workers = from.getMinWorkers();
    to->max_workers = from.getMaxWorkers();
    to->rejoin_timeout = Duration(from.getRejoinTimeout());
    to->straggler_timeout = Duration(from.getStragglerTimeout());
    job_nonce(from.getJobNonce(), &to->job_nonce);
    fixed(from.getTokenDigest(), &to->token_digest, "token digest");
    to->view = from.getView();
    to->paused = from.getPaused();
    to->last_closed = from.getLastClosed();
    to->ended_well = from.getEndedWell();
    to->joined = from.getJoined();
    for (auto entry : from.getWorkers()) {
      if (!ok()) return;
      HeadRecord::Worker& worker = to->workers.emplace_back();
      member(entry.getInfo(), &worker.info);
      worker.joined = entry.getJoined();
      worker.incarnation = entry.getIncarnation();
      worker.learner = entry.getLearner();
      worker.left = entry.getLeft();
      worker.closed = entry.getClosed();
      worker.holds_state = entry.getHoldsState();
      worker.lost = entry.getLost();
      status(entry.getEviction(), &worker.eviction);
    }
    to->confirmed = from.getConfirmed();
    for (auto entry : from.getNews()) {
      if (!ok()) return;
      to->news.push_back(news(entry));
    }
  }

  // Of a message that has them: a view, its sender (by number in messages to the head, else by rank), and a
  // cause.
  template <typename T, typename Reader>
  T with_cause(Reader from) {
    T to;
    to.view = from.getView();
    if constexpr (requires { to.number; }) {
      to.number = from.getNumber();
    } else {
      to.rank = from.getRank();
    }
    status(from.getCause(), &to.cause);
    return to;
  }

  // Of a message about an object: its sender, and which object.
  template <typename T, typename Reader>
  T about_object(Reader from) {
    T to;
    to.view = from.getView();
    to.rank = from.getRank();
    text(from.getName(), &to.name, "object name");
    to.put = from.getPut();
    return to;
  }

  Message message(schema::Message::Reader from) {
    switch (from.which()) {
      case schema::Message::EMPTY:
        return Empty{};
      case schema::Message::JOIN_REQUEST: {
        auto part = from.getJoinRequest();
        JoinRequest to;
        member(part.getMember(), &to.member);
        to.num_workers = part.getNumWorkers();
        to.hosts_head = part.getHostsHead();
        to.lease = Duration(part.getLease());
        to.min_workers = part.getMinWorkers();
        to.max_workers = part.getMaxWorkers();
        to.rejoin_timeout = Duration(part.getRejoinTimeout());
        to.straggler_timeout = Duration(part.getStragglerTimeout());
        to.incarnation = part.getIncarnation();
        return to;
      }
      case schema::Message::JOIN_REPLY: {
        auto part = from.getJoinReply();
        JoinReply to;
        to.view = part.getView();
        to.rank = part.getRank();
        to.head_rank = part.getHeadRank();
        members(part.getMembers(), &to.members);
        job_nonce(part.getJobNonce(), &to.job_nonce);
        to.learner = part.getLearner();
        to.sequence = part.getSequence();
        to.paused = part.getPaused();
        to.durable = part.getDurable();
        return to;
      }
      case schema::Message::RETURN: {
        auto part = from.getReturn();
        return Return{part.getNumber(), part.getView(), part.getIncarnation()};
      }
      case schema::Message::GATHERING_REQUEST:
        return GatheringRequest{};
      case schema::Message::GATHERING_REPLY: {
        GatheringReply to;
        text(from.getGatheringReply().getProgress(), &to.progress, "progress", kMaxTextBytes);
        to.progress = printable_text(std::move(to.progress));
        to.missing = from.getGatheringReply().getMissing();
        return to;
      }
      case schema::Message::WATCH:
        return Watch{from.getWatch().getSequence()};
      case schema::Message::WATCH_REPLY:
        return news(from.getWatchReply());
      case schema::Message::RENEW:
        return Renew{from.getRenew().getNumber(), from.getRenew().getView()};
      case schema::Message::ENTER:
        return Enter{from.getEnter().getNumber(), from.getEnter().getView()};
      case schema::Message::LEAVE: {
        auto to = with_cause<Leave>(from.getLeave());
        to.departure_call = from.getLeave().getDepartureCall();
        return to;
      }
      case schema::Message::REPORT:
        return with_cause<Report>(from.getReport());
      case schema::Message::REPORT_CUT: {
        auto to = with_cause<ReportCut>(from.getReportCut());
        to.peer_number = from.getReportCut().getPeerNumber();
        return to;
      }
      case schema::Message::OPERATION_FAILED: {
        auto to = with_cause<OperationFailed>(from.getOperationFailed());
        to.operation = from.getOperationFailed().getOperation();
        return to;
      }
      case schema::Message::SESSION_FAILED:
        return with_cause<SessionFailed>(from.getSessionFailed());
      case schema::Message::HAS_BEGUN: {
        auto part = from.getHasBegun();
        return HasBegun{part.getView(), part.getRank(), part.getOperation()};
      }
      case schema::Message::HAS_COMPLETED: {
        auto part = from.getHasCompleted();
        return HasCompleted{part.getView(), part.getRank(), part.getSteps()};
      }
      case schema::Message::FETCH_STATE: {
        auto part = from.getFetchState();
        return FetchState{part.getView(), part.getRank(),      part.getBegin(), part.getEnd(),
                          part.getNext(), part.getSignature(), part.getLast()};
      }
      case schema::Message::STATE_PARTS: {
        auto part = from.getStateParts();
        StateParts to;
        to.whole = part.getWhole();
        to.digest = part.getDigest();
        auto parts = part.getParts();
        if (!ok() || !length(parts.size(), kMaxStateParts, "list of parts", "entries")) return to;
        for (auto entry : parts) {
          if (!ok()) return to;
          state_part(entry, &to.parts.emplace_back());
        }
        return to;
      }
      case schema::Message::PUT_OBJECT: {
        auto part = from.getPutObject();
        auto to = about_object<PutObject>(part);
        to.total = part.getTotal();
        auto data = part.getData();
        if (ok() && length(data.size(), kMaxInlineObjectBytes, "object", "bytes")) {
          to.data.assign(data.begin(), data.end());
        }
        to.dtype = part.getDtype();
        numbers(part.getShape(), &to.shape, kMaxObjectDimensions, "shape of an object");
        to.again = part.getAgain();
        return to;
      }
      case schema::Message::DELETE_OBJECT:
        return about_object<DeleteObject>(from.getDeleteObject());
      case schema::Message::FETCH_OBJECT: {
        auto to = about_object<FetchObject>(from.getFetchObject());
        to.offset = from.getFetchObject().getOffset();
        return to;
      }
      case schema::Message::GOODBYE: {
        auto part = from.getGoodbye();
        auto to = with_cause<Goodbye>(part);
        to.steps = part.getSteps();
        to.departure_call = part.getDepartureCall();
        numbers(part.getDigests(), &to.digests, kMaxDigests, "list of digests");
        return to;
      }
      case schema::Message::PROGRESS: {
        Progress to;
        progress(from.getProgress(), &to);
        return to;
      }
      case schema::Message::STATUS_REQUEST:
        return StatusRequest{};
      case schema::Message::SCALE_REQUEST:
        return ScaleRequest{from.getScaleRequest().getWorkers()};
      case schema::Message::STATUS_REPLY: {
        auto part = from.getStatusReply();
        StatusReply to;
        choice(part.getState(), StatusReply::State::kFailed, &to.state, "state of the job");
        to.view = part.getView();
        to.num_workers = part.getNumWorkers();
        to.min_workers = part.getMinWorkers();
        to.max_workers = part.getMaxWorkers();
        to.wanted_workers = part.getWantedWorkers();
        to.scale_requests = part.getScaleRequests();
        to.head_rank = part.getHeadRank();
        status(part.getCause(), &to.cause);
        numbers(part.getMissing(), &to.missing, kMaxMembers, "list of missing ranks");
        text(part.getRefused(), &to.refused, "refusal");
        auto workers = part.getWorkers();
        if (!ok() || !length(workers.size(), kMaxMembers, "list of workers", "entries")) return to;
        for (auto entry : workers) {
          if (!ok()) return to;
          worker_status(entry, &to.workers.emplace_back());
        }
        return to;
      }
    }
    fail("unknown kind of message " + std::to_string(static_cast<uint16_t>(from.which())) +
         " (a newer protocol?)");
    return Empty{};
  }
};

// The fields that MessageCheck::with_cause reads.
template <typename T, typename Builder>
Builder write_with_cause(const T& from, Builder to) {
  to.setView(from.view);
  if constexpr (requires { from.number; }) {
    to.setNumber(from.number);
  } else {
    to.setRank(from.rank);
  }
  if (!from.cause.ok()) write(from.cause, to.initCause());
  return to;
}

// The fields that MessageCheck::about_object reads.
template <typename T, typename Builder>
Builder write_about_object(const T& from, Builder to) {
  to.setView(from.view);
  to.setRank(from.rank);
  to.setName(text(from.name));
  to.setPut(from.put);
  return to;
}

void write_progress(const Progress& from, schema::Progress::Builder to) {
  to.setNumber(from.number);
  to.setView(from.view);
  to.setPresentView(from.present_view);
  to.setSteps(from.steps);
  to.setActivity(static_cast<uint8_t>(from.activity));
  to.setCall(from.call);
  to.setOpen(from.open.count());
  to.setOperation(text(from.operation));
  to.setWaiting(text(from.waiting));
  to.setWaitsFor(kj::arrayPtr(from.waits_for.data(), from.waits_for.size()));
  to.setHoldsState(from.holds_state);
}

void write_worker_status(const WorkerStatus& from, schema::WorkerStatus::Builder to) {
  write(from.member, to.initMember());
  to.setState(static_cast<uint8_t>(from.state));
  to.setSilence(from.silence.count());
  to.setReported(from.reported);
  to.setAge(from.age.count());
  to.setStepsPerSecond(from.steps_per_second);
  if (from.reported) write_progress(from.progress, to.initProgress());
}

void write_state_part(const StateParts::Part& from, schema::StateParts::Part::Builder to) {
  to.setKind(static_cast<uint8_t>(from.kind));
  to.setParameter(from.parameter);
  to.setBegin(from.begin);
  to.setCount(from.count);
  to.setUpdates(from.updates);
  to.setLearningRate(from.learning_rate);
  to.setRate(from.rate);
  to.setDecay(from.decay);
  to.setDivisor(from.divisor);
  to.setData(capnp::Data::Reader(from.data.data(), from.data.size()));
}

size_t words_of(const std::string& text) { return (text.size() + 1 + 7) / 8; }

size_t words_of(const MemberInfo& member) {
  size_t words = 8 + words_of(member.worker_id) + words_of(member.host) + words_of(member.machine);
  for (const auto& address : member.addresses) words += 1 + words_of(address);
  return words;
}
size_t words_of(const std::vector<MemberInfo>& members) {
  size_t words = 0;
  for (const MemberInfo& member : members) words += words_of(member);
  return words;
}
size_t words_of(const Progress& progress) {
  return 11 + words_of(progress.operation) + words_of(progress.waiting) + (progress.waits_for.size() + 1) / 2;
}
size_t words_of(const WorkerStatus& worker) {
  return 7 + words_of(worker.member) + (worker.reported ? words_of(worker.progress) : 0);
}

}  // namespace

void write(const Status& from, schema::Status::Builder to) {
  if (from.ok()) return;
  to.setCode(static_cast<int32_t>(from.code()));
  to.setRank(from.rank());
  to.setHost(text(from.host()));
  to.setOperation(text(from.operation()));
  to.setParameter(text(from.parameter()));
  to.setMessage(text(cut_text(from.message())));
}

void write(const Hello& from, schema::Hello::Builder to) {
  to.setProtocol(from.protocol);
  to.setRole(static_cast<schema::Role>(from.role));
  to.setJob(text(from.job));
  to.setWorkerId(text(from.worker_id));
  to.setRank(from.rank);
  to.setView(from.view);
  to.setLibraryVersion(text(from.library_version));
  to.setChecksum(from.checksum);
  to.setJobNonce(data_of(from.job_nonce));
  to.setNonce(data_of(from.nonce));
}

void write(const Challenge& from, schema::Challenge::Builder to) {
  to.setNonce(data_of(from.nonce));
  if (!from.refused.ok()) write(from.refused, to.initRefused());
}

void write(const Proof& from, schema::Proof::Builder to) { to.setMac(data_of(from.mac)); }

void write(const HelloReply& from, schema::HelloReply::Builder to) {
  to.setChecksum(from.checksum);
  if (from.status.ok()) {
    to.setProof(data_of(from.proof.mac));
  } else {
    write(from.status, to.initStatus());
  }
}

void write(const MemberInfo& from, schema::MemberInfo::Builder to) {
  to.setRank(from.rank);
  to.setWorkerId(text(from.worker_id));
  to.setHost(text(from.host));
  to.setMachine(text(from.machine));
  auto addresses = to.initAddresses(static_cast<unsigned>(from.addresses.size()));
  for (unsigned i = 0; i < addresses.size(); ++i) addresses.set(i, text(from.addresses[i]));
  to.setPid(from.pid);
  to.setNumber(from.number);
}

void write(const std::vector<MemberInfo>& from, capnp::List<schema::MemberInfo>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) write(from[i], to[i]);
}

void write(const WatchReply& from, schema::WatchReply::Builder to) {
  to.setSequence(from.sequence);
  to.setView(from.view);
  if (!from.news.ok()) write(from.news, to.initNews());
  to.setLeft(from.left);
  to.setDepartureCall(from.departure_call);
  write(from.members, to.initMembers(static_cast<unsigned>(from.members.size())));
  to.setHeadRank(from.head_rank);
  to.setPaused(from.paused);
}

void write(const HeadRecord& from, schema::HeadRecord::Builder to) {
  to.setJob(text(from.job));
  to.setAddress(text(from.address));
  to.setLease(from.lease.count());
  to.setNumWorkers(from.num_workers);
  to.setMinWorkers(from.min_workers);
  to.setMaxWorkers(from.max_workers);
  to.setRejoinTimeout(from.rejoin_timeout.count());
  to.setStragglerTimeout(from.straggler_timeout.count());
  to.setJobNonce(data_of(from.job_nonce));
  to.setTokenDigest(data_of(from.token_digest));
  to.setView(from.view);
  to.setPaused(from.paused);
  to.setLastClosed(from.last_closed);
  to.setEndedWell(from.ended_well);
  to.setJoined(from.joined);
  auto workers = to.initWorkers(static_cast<unsigned>(from.workers.size()));
  for (unsigned i = 0; i < workers.size(); ++i) {
    const HeadRecord::Worker& worker = from.workers[i];
    auto out = workers[i];
    write(worker.info, out.initInfo());
    out.setJoined(worker.joined);
    out.setIncarnation(worker.incarnation);
    out.setLearner(worker.learner);
    out.setLeft(worker.left);
    out.setClosed(worker.closed);
    out.setHoldsState(worker.holds_state);
    out.setLost(worker.lost);
    if (!worker.eviction.ok()) write(worker.eviction, out.initEviction());
  }
  to.setConfirmed(from.confirmed);
  auto news = to.initNews(static_cast<unsigned>(from.news.size()));
  for (unsigned i = 0; i < news.size(); ++i) write(from.news[i], news[i]);
}

void write(const Message& from, schema::Message::Builder to) {
  std::visit(
      [&](const auto& part) {
        using T = std::decay_t<decltype(part)>;
        if constexpr (std::is_same_v<T, Empty>) {
          to.setEmpty();
        } else if constexpr (std::is_same_v<T, JoinRequest>) {
          auto out = to.initJoinRequest();
          write(part.member, out.initMember());
          out.setNumWorkers(part.num_workers);
          out.setHostsHead(part.hosts_head);
          out.setLease(part.lease.count());
          out.setMinWorkers(part.min_workers);
          out.setMaxWorkers(part.max_workers);
          out.setRejoinTimeout(part.rejoin_timeout.count());
          out.setStragglerTimeout(part.straggler_timeout.count());
          out.setIncarnation(part.incarnation);
        } else if constexpr (std::is_same_v<T, JoinReply>) {
          auto out = to.initJoinReply();
          out.setView(part.view);
          out.setRank(part.rank);
          out.setHeadRank(part.head_rank);
          write(part.members, out.initMembers(static_cast<unsigned>(part.members.size())));
          out.setJobNonce(data_of(part.job_nonce));
          out.setLearner(part.learner);
          out.setSequence(part.sequence);
          out.setPaused(part.paused);
          out.setDurable(part.durable);
        } else if constexpr (std::is_same_v<T, Return>) {
          auto out = to.initReturn();
          out.setNumber(part.number);
          out.setView(part.view);
          out.setIncarnation(part.incarnation);
        } else if constexpr (std::is_same_v<T, GatheringRequest>) {
          to.setGatheringRequest();
        } else if constexpr (std::is_same_v<T, GatheringReply>) {
          auto out = to.initGatheringReply();
          out.setProgress(text(cut_text(part.progress)));
          out.setMissing(part.missing);
        } else if constexpr (std::is_same_v<T, Watch>) {
          to.initWatch().setSequence(part.sequence);
        } else if constexpr (std::is_same_v<T, WatchReply>) {
          write(part, to.initWatchReply());
        } else if constexpr (std::is_same_v<T, Renew>) {
          auto out = to.initRenew();
          out.setNumber(part.number);
          out.setView(part.view);
        } else if constexpr (std::is_same_v<T, Enter>) {
          auto out = to.initEnter();
          out.setNumber(part.number);
          out.setView(part.view);
        } else if constexpr (std::is_same_v<T, Leave>) {
          write_with_cause(part, to.initLeave()).setDepartureCall(part.departure_call);
        } else if constexpr (std::is_same_v<T, Report>) {
          write_with_cause(part, to.initReport());
        } else if constexpr (std::is_same_v<T, ReportCut>) {
          write_with_cause(part, to.initReportCut()).setPeerNumber(part.peer_number);
        } else if constexpr (std::is_same_v<T, OperationFailed>) {
          write_with_cause(part, to.initOperationFailed()).setOperation(part.operation);
        } else if constexpr (std::is_same_v<T, SessionFailed>) {
          write_with_cause(part, to.initSessionFailed());
        } else if constexpr (std::is_same_v<T, HasBegun>) {
          auto out = to.initHasBegun();
          out.setView(part.view);
          out.setRank(part.rank);
          out.setOperation(part.operation);
        } else if constexpr (std::is_same_v<T, HasCompleted>) {
          auto out = to.initHasCompleted();
          out.setView(part.view);
          out.setRank(part.rank);
          out.setSteps(part.steps);
        } else if constexpr (std::is_same_v<T, FetchState>) {
          auto out = to.initFetchState();
          out.setView(part.view);
          out.setRank(part.rank);
          out.setBegin(part.begin);
          out.setEnd(part.end);
          out.setNext(part.next);
          out.setSignature(part.signature);
          out.setLast(part.last);
        } else if constexpr (std::is_same_v<T, StateParts>) {
          auto out = to.initStateParts();
          out.setWhole(part.whole);
          out.setDigest(part.digest);
          auto parts = out.initParts(static_cast<unsigned>(part.parts.size()));
          for (unsigned i = 0; i < parts.size(); ++i) write_state_part(part.parts[i], parts[i]);
        } else if constexpr (std::is_same_v<T, PutObject>) {
          auto out = write_about_object(part, to.initPutObject());
          out.setTotal(part.total);
          out.setData(capnp::Data::Reader(part.data.data(), part.data.size()));
          out.setDtype(part.dtype);
          out.setShape(kj::arrayPtr(part.shape.data(), part.shape.size()));
          out.setAgain(part.again);
        } else if constexpr (std::is_same_v<T, DeleteObject>) {
          write_about_object(part, to.initDeleteObject());
        } else if constexpr (std::is_same_v<T, FetchObject>) {
          write_about_object(part, to.initFetchObject()).setOffset(part.offset);
        } else if constexpr (std::is_same_v<T, Progress>) {
          write_progress(part, to.initProgress());
        } else if constexpr (std::is_same_v<T, StatusRequest>) {
          to.setStatusRequest();
        } else if constexpr (std::is_same_v<T, ScaleRequest>) {
          to.initScaleRequest().setWorkers(part.workers);
        } else if constexpr (std::is_same_v<T, StatusReply>) {
          auto out = to.initStatusReply();
          out.setState(static_cast<uint8_t>(part.state));
          out.setView(part.view);
          out.setNumWorkers(part.num_workers);
          out.setMinWorkers(part.min_workers);
          out.setMaxWorkers(part.max_workers);
          out.setWantedWorkers(part.wanted_workers);
          out.setScaleRequests(part.scale_requests);
          out.setHeadRank(part.head_rank);
          if (!part.cause.ok()) write(part.cause, out.initCause());
          out.setMissing(kj::arrayPtr(part.missing.data(), part.missing.size()));
          out.setRefused(text(part.refused));
          auto workers = out.initWorkers(static_cast<unsigned>(part.workers.size()));
          for (unsigned i = 0; i < workers.size(); ++i) write_worker_status(part.workers[i], workers[i]);
        } else {
          static_assert(std::is_same_v<T, Goodbye>);
          auto out = write_with_cause(part, to.initGoodbye());
          out.setSteps(part.steps);
          out.setDepartureCall(part.departure_call);
          out.setDigests(kj::arrayPtr(part.digests.data(), part.digests.size()));
        }
      },
      from);
}

void write(const Result<Message>& from, schema::Reply::Builder to) {
  if (from.ok()) {
    write(from.value(), to.initMessage());
  } else {
    write(from.status(), to.initStatus());
  }
}

void write(const BulkHeader& from, schema::BulkHeader::Builder to) {
  to.setView(from.view);
  to.setOperation(from.operation);
  to.setSource(from.source);
  to.setKind(from.kind);
  to.setDtype(from.dtype);
  to.setReduction(from.reduction);
  to.setAlgorithm(from.algorithm);
  to.setRoot(from.root);
  to.setCount(from.count);
  to.setTag(from.tag);
  to.setPhase(from.phase);
  to.setOffset(from.offset);
}

Status read(schema::Status::Reader from, Status* to) {
  Status value;
  Status result = guarded([&](Check& check) { check.status(from, &value); });
  if (result.ok()) *to = std::move(value);
  return result;
}

Status read(schema::Reply::Reader from, Result<Message>* to) {
  Result<Message> value = Message(Empty{});
  Status result = guarded<MessageCheck>([&](MessageCheck& check) {
    switch (from.which()) {
      case schema::Reply::MESSAGE:
        value = check.message(from.getMessage());
        return;
      case schema::Reply::STATUS: {
        Status status;
        check.status(from.getStatus(), &status);
        // A Result cannot hold OK without a value.
        if (check.ok() && status.ok()) return check.fail("an answer with neither a message nor an error");
        value = std::move(status);
        return;
      }
    }
    check.fail("unknown kind of answer");
  });
  if (result.ok()) *to = std::move(value);
  return result;
}

Result<Hello> read(schema::Hello::Reader from) {
  return guarded_result<Hello>([&](Check& check, Hello& to) {
    to.protocol = from.getProtocol();
    const auto role = static_cast<uint16_t>(from.getRole());
    if (role > static_cast<uint16_t>(Role::kProbe)) return check.fail("unknown role " + std::to_string(role));
    to.role = static_cast<Role>(role);
    check.text(from.getJob(), &to.job, "job");
    check.fixed(from.getNonce(), &to.nonce, "nonce");
    check.text(from.getWorkerId(), &to.worker_id, "worker id");
    to.rank = from.getRank();
    to.view = from.getView();
    check.text(from.getLibraryVersion(), &to.library_version, "library version");
    to.checksum = from.getChecksum();
    check.job_nonce(from.getJobNonce(), &to.job_nonce);
  });
}

Result<Challenge> read(schema::Challenge::Reader from) {
  return guarded_result<Challenge>([&](Check& check, Challenge& to) {
    check.status(from.getRefused(), &to.refused);
    if (to.refused.ok()) check.fixed(from.getNonce(), &to.nonce, "nonce");
  });
}

Result<Proof> read(schema::Proof::Reader from) {
  return guarded_result<Proof>(
      [&](Check& check, Proof& to) { check.fixed(from.getMac(), &to.mac, "proof"); });
}

Result<HelloReply> read(schema::HelloReply::Reader from) {
  return guarded_result<HelloReply>([&](Check& check, HelloReply& to) {
    check.status(from.getStatus(), &to.status);
    to.checksum = from.getChecksum();
    if (to.status.ok()) check.fixed(from.getProof(), &to.proof.mac, "proof");
  });
}

Result<Message> read(schema::Message::Reader from) {
  return guarded_result<Message, MessageCheck>(
      [&](MessageCheck& check, Message& to) { to = check.message(from); });
}

Result<HeadRecord> read(schema::HeadRecord::Reader from) {
  return guarded_result<HeadRecord, MessageCheck>(
      [&](MessageCheck& check, HeadRecord& to) { check.record(from, &to); });
}

Result<BulkHeader> read(schema::BulkHeader::Reader from) {
  return guarded_result<BulkHeader>([&](Check&, BulkHeader& to) {
    to.view = from.getView();
    to.operation = from.getOperation();
    to.source = from.getSource();
    to.kind = from.getKind();
    to.dtype = from.getDtype();
    to.reduction = from.getReduction();
    to.algorithm = from.getAlgorithm();
    to.root = from.getRoot();
    to.count = from.getCount();
    to.tag = from.getTag();
    to.phase = from.getPhase();
    to.offset = from.getOffset();
  });
}

size_t words_for(const Status& status) {
  if (status.ok()) return 0;
  return 6 + words_of(status.host()) + words_of(status.operation()) + words_of(status.parameter()) +
         (std::min(status.message().size(), kMaxTextBytes) + 8) / 8;
}

size_t words_for(const Message& message) {
  return 16 + std::visit(
                  [](const auto& part) -> size_t {
                    using T = std::decay_t<decltype(part)>;
                    if constexpr (std::is_same_v<T, JoinRequest>) {
                      return words_of(part.member);
                    } else if constexpr (std::is_same_v<T, JoinReply>) {
                      return words_of(part.members) + kMaxJobNonceBytes / 8;
                    } else if constexpr (std::is_same_v<T, GatheringReply>) {
                      return words_of(part.progress);
                    } else if constexpr (std::is_same_v<T, WatchReply>) {
                      return words_for(part.news) + words_of(part.members);
                    } else if constexpr (std::is_same_v<T, Leave> || std::is_same_v<T, Report> ||
                                         std::is_same_v<T, ReportCut> || std::is_same_v<T, OperationFailed> ||
                                         std::is_same_v<T, SessionFailed>) {
                      return words_for(part.cause);
                    } else if constexpr (std::is_same_v<T, Goodbye>) {
                      return words_for(part.cause) + part.digests.size();
                    } else if constexpr (std::is_same_v<T, DeleteObject> || std::is_same_v<T, FetchObject>) {
                      return words_of(part.name);
                    } else if constexpr (std::is_same_v<T, Progress>) {
                      return words_of(part);
                    } else if constexpr (std::is_same_v<T, StatusReply>) {
                      size_t words = words_for(part.cause) + part.missing.size() / 2 + words_of(part.refused);
                      for (const WorkerStatus& worker : part.workers) words += words_of(worker);
                      return words;
                    } else if constexpr (std::is_same_v<T, StateParts>) {
                      constexpr size_t kPart = 11;
                      size_t words = 1;
                      for (const StateParts::Part& of : part.parts) words += kPart + (of.data.size() + 7) / 8;
                      return words;
                    } else if constexpr (std::is_same_v<T, PutObject>) {
                      return words_of(part.name) + (part.data.size() + 7) / 8 + part.shape.size();
                    } else {
                      return 0;
                    }
                  },
                  message);
}

}  // namespace dsgd::transport

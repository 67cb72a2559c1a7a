#include "core/membership/news.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/describe.h"

namespace dsgd {

uint64_t News::add(transport::WatchReply news) {
  news.sequence = last() + 1;
  news_.push_back(std::move(news));
  return last();
}

void News::release(uint64_t sequence) {
  released_ = std::min(sequence, last());
  for (const WorkerTable::Worker& worker : workers_) {
    Row& row = this->row(worker.index());
    if (row.watch && !worker.left && row.from < released_) answer(row);
  }
}

Status News::watch(size_t worker, uint64_t sequence, const transport::Responder& respond) {
  if (sequence > released_ || sequence < confirmed_) {
    return Status(Code::kInvalidArgument, describe_member(workers_[worker].info) + " asks for news after " +
                                              std::to_string(sequence) + "; this head has the news from " +
                                              std::to_string(confirmed_) + " to " +
                                              std::to_string(released_));
  }
  end_watch(worker, Status(Code::kState, "replaced by a later watch of the same worker"));
  Row& row = this->row(worker);
  row.confirmed = std::max(row.confirmed, sequence);
  row.from = sequence;
  row.watch = respond;
  if (sequence < released_) answer(row);
  forget_confirmed();
  return {};
}

void News::end_watch(size_t worker, const Status& why) {
  if (transport::Responder respond = std::exchange(row(worker).watch, nullptr)) respond(why);
}

bool News::has_confirmed_all(size_t worker) { return row(worker).confirmed >= last(); }

void News::forget_confirmed() {
  uint64_t all = std::min(released_, last() - (cause().ok() ? 0 : 1));
  for (const WorkerTable::Worker& worker : workers_) {
    const bool counts = !worker.left && worker.eviction.ok() && worker.connects();
    if (counts) all = std::min(all, row(worker.index()).confirmed);
  }
  if (all <= confirmed_) return;
  news_.erase(news_.begin(), news_.begin() + static_cast<std::ptrdiff_t>(all - confirmed_));
  confirmed_ = all;
}

void News::write(transport::HeadRecord* record) {
  forget_confirmed();
  record->confirmed = confirmed_;
  record->news = news_;
}

void News::read(const transport::HeadRecord& record) {
  confirmed_ = record.confirmed;
  news_ = record.news;
  released_ = last();
  rows_.assign(record.joined, Row{.confirmed = confirmed_});
}

Status News::cause() const {
  return !news_.empty() && news_.back().members.empty() ? news_.back().news : Status();
}

News::Row& News::row(size_t worker) {
  if (worker >= rows_.size()) rows_.resize(worker + 1);
  return rows_[worker];
}

void News::answer(Row& row) {
  const transport::Responder respond = std::exchange(row.watch, nullptr);
  respond(transport::Message(news_[row.from - confirmed_]));
}

}  // namespace dsgd

/* Measures what the machine itself can do: copying, adding, and raw bytes over loopback sockets between two
 * threads of this process. An all-reduce cannot be faster; README.md says how the two are compared. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "timing.h"

static const char kHelp[] =
    "bench_limits [--sizes 1K,64K,1M,16M,100M] [--rounds N]\n"
    "\n"
    "Measures memcpy and a += b (float32) with one and two threads, and raw TCP and Unix sockets one way and "
    "both ways at\n"
    "once. Prints CSV: limit,bytes,threads,median_us,p10_us,p90_us,GBps; `bytes` are those of each thread or "
    "direction, and\n"
    "GBps counts those of all threads for memory, those of each direction for sockets.\n"
    "  --sizes   K, M, G are powers of 1024\n"
    "  --rounds  timed rounds per size; by default 5 (100M) to 200 (1M and less)";

typedef struct {
  int socket; /* of this thread; -1 for memory */
  float *send, *receive;
  size_t bytes, send_bytes, receive_bytes;
} Side;

typedef void (*Work)(Side* side);

static void copy(Side* side) { memcpy(side->receive, side->send, side->bytes); }

static void add(Side* side) {
  float* restrict a = side->receive;
  const float* restrict b = side->send;
  const size_t count = side->bytes / sizeof *a;
  for (size_t i = 0; i < count; ++i) a[i] += b[i];
}

/* Sends and receives at once, as a worker does; a peer that stands still for 30 s ends the program. */
static void transfer(Side* side) {
  enum { kMilliseconds = 30000 };
  char *out = (char*)side->send, *in = (char*)side->receive;
  size_t to_send = side->send_bytes, to_receive = side->receive_bytes;
  while (to_send > 0 || to_receive > 0) {
    int moved = 0;
    if (to_send > 0) {
      const ssize_t n = send(side->socket, out, to_send, MSG_NOSIGNAL);
      if (n > 0) {
        out += n, to_send -= (size_t)n, moved = 1;
      } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
        die("send: %s", strerror(errno));
      }
    }
    if (to_receive > 0) {
      const ssize_t n = recv(side->socket, in, to_receive, 0);
      if (n > 0) {
        in += n, to_receive -= (size_t)n, moved = 1;
      } else if (n == 0) {
        die("recv: the other end has closed");
      } else if (errno != EAGAIN && errno != EINTR) {
        die("recv: %s", strerror(errno));
      }
    }
    if (!moved) {
      struct pollfd poll_for = {side->socket, (short)((to_send ? POLLOUT : 0) | (to_receive ? POLLIN : 0)),
                                0};
      if (poll(&poll_for, 1, kMilliseconds) == 0) die("a socket stood still for %d s", kMilliseconds / 1000);
    }
  }
}

enum { kPeriod = 13 };

/* Element i of a thread's input in a round is pattern[i % kPeriod]. */
static void input_pattern(int thread, size_t round, float pattern[kPeriod]) {
  for (size_t i = 0; i < kPeriod; ++i) pattern[i] = (float)((i + round) % kPeriod + (size_t)thread);
}

/* Input of a round: as in an all-reduce, it has just been written. */
static void write_input(Side* side, int thread, size_t round) {
  float pattern[kPeriod];
  input_pattern(thread, round, pattern);
  const size_t count = side->bytes / sizeof(float);
  for (size_t i = 0, phase = 0; i < count; ++i) {
    side->send[i] = pattern[phase];
    if (++phase == kPeriod) phase = 0;
  }
}

typedef struct {
  Side side;
  Work work;
  int thread;
  size_t rounds;
  pthread_barrier_t* barrier;
  double* times;
} Task;

enum { kWarmUp = 2 };

static void* run(void* argument) {
  Task* task = argument;
  for (size_t round = 0; round < kWarmUp + task->rounds; ++round) {
    write_input(&task->side, task->thread, round);
    pthread_barrier_wait(task->barrier);
    const double began = now_us();
    task->work(&task->side);
    const double ended = now_us();
    if (round >= kWarmUp) task->times[round - kWarmUp] = ended - began;
    pthread_barrier_wait(task->barrier);
  }
  return NULL;
}

/* Checks the data that each thread must hold in the end: the other's last input, its own, or for sums those
 * of all rounds. */
static void check_result(const Task* task) {
  const Side* side = &task->side;
  const size_t count = side->receive_bytes / sizeof(float), last = kWarmUp + task->rounds - 1;
  const int from = side->socket < 0 ? task->thread : 1 - task->thread;
  float expected[kPeriod], pattern[kPeriod];
  input_pattern(from, last, expected);
  for (size_t round = 0; task->work == add && round < last; ++round) {
    input_pattern(from, round, pattern);
    for (size_t i = 0; i < kPeriod; ++i) expected[i] += pattern[i];
  }
  for (size_t i = 0; i < count; ++i) {
    if (side->receive[i] != expected[i % kPeriod]) {
      die("wrong result: element %zu is %g instead of %g", i, (double)side->receive[i],
          (double)expected[i % kPeriod]);
    }
  }
}

static float* allocate(size_t bytes) {
  void* memory;
  if (posix_memalign(&memory, 64, bytes) != 0) die("out of memory for %zu bytes", bytes);
  memset(memory, 0, bytes); /* its pages exist before the clock runs */
  return memory;
}

typedef struct {
  const char* name;
  Work work;
  int threads, both_ways;
} Limit;

/* Runs `limit` on one or two threads and prints its line: a round takes as long as the slower thread. */
static void measure(const Limit* limit, const int sockets[2], size_t bytes, size_t rounds) {
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)limit->threads);
  Task task[2];
  pthread_t thread[2];
  for (int t = 0; t < limit->threads; ++t) {
    const size_t sends = limit->both_ways || t == 0 ? bytes : 0,
                 receives = limit->both_ways || t == 1 ? bytes : 0;
    task[t] = (Task){{sockets ? sockets[t] : -1, allocate(bytes), allocate(bytes), bytes, sends, receives},
                     limit->work,
                     t,
                     rounds,
                     &barrier,
                     malloc(rounds * sizeof(double))};
    if (!task[t].times) die("out of memory for %zu rounds", rounds);
    if (!sockets) task[t].side.receive_bytes = bytes;
  }
  for (int t = 0; t < limit->threads; ++t) {
    if (pthread_create(&thread[t], NULL, run, &task[t]) != 0) die("cannot start a thread");
  }
  for (int t = 0; t < limit->threads; ++t) pthread_join(thread[t], NULL);
  pthread_barrier_destroy(&barrier);

  double* times = task[0].times;
  for (size_t r = 0; limit->threads == 2 && r < rounds; ++r) {
    if (task[1].times[r] > times[r]) times[r] = task[1].times[r];
  }
  const double median = percentile(times, rounds, 50),
               counted = (double)bytes * (sockets ? 1 : limit->threads);
  printf("%s,%zu,%d,%.2f,%.2f,%.2f,%.4f\n", limit->name, bytes, limit->threads, median,
         percentile(times, rounds, 10), percentile(times, rounds, 90), counted / median * 1e-3);
  fflush(stdout);
  for (int t = 0; t < limit->threads; ++t) {
    check_result(&task[t]);
    free(task[t].side.send);
    free(task[t].side.receive);
    free(task[t].times);
  }
}

static void do_not_block(int socket) {
  if (fcntl(socket, F_SETFL, O_NONBLOCK) != 0) die("fcntl: %s", strerror(errno));
}

static void tcp_pair(int sockets[2]) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  sockets[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0 || sockets[0] < 0 || bind(listener, (struct sockaddr*)&address, length) != 0 ||
      listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr*)&address, &length) != 0 ||
      connect(sockets[0], (struct sockaddr*)&address, length) != 0 ||
      (sockets[1] = accept(listener, NULL, NULL)) < 0) {
    die("a TCP connection over loopback: %s", strerror(errno));
  }
  close(listener);
  for (int i = 0; i < 2; ++i) {
    setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    do_not_block(sockets[i]);
  }
}

static void unix_pair(int sockets[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) die("socketpair: %s", strerror(errno));
  for (int i = 0; i < 2; ++i) do_not_block(sockets[i]);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--help") == 0) return puts(kHelp) < 0;
  static const char* const kOptions[] = {"--sizes", "--rounds", NULL};
  check_options(argc, argv, kOptions);
  size_t sizes[kMaxSizes];
  const size_t size_count = parse_sizes(option(argc, argv, "--sizes", "1K,64K,1M,16M,100M"), sizes);
  const size_t rounds_asked = (size_t)count_option(argc, argv, "--rounds");

  static const Limit kMemory[] = {
      {"memcpy", copy, 1, 1}, {"memcpy", copy, 2, 1}, {"add", add, 1, 1}, {"add", add, 2, 1}};
  static const Limit kTcp[] = {{"tcp_one_way", transfer, 2, 0}, {"tcp_both_ways", transfer, 2, 1}};
  static const Limit kUnix[] = {{"unix_one_way", transfer, 2, 0}, {"unix_both_ways", transfer, 2, 1}};
  int tcp[2], local[2];
  tcp_pair(tcp);
  unix_pair(local);
  puts("limit,bytes,threads,median_us,p10_us,p90_us,GBps");
  for (size_t s = 0; s < size_count; ++s) {
    const size_t rounds = rounds_asked ? rounds_asked : default_rounds(sizes[s]);
    for (int i = 0; i < 4; ++i) measure(&kMemory[i], NULL, sizes[s], rounds);
    for (int i = 0; i < 2; ++i) measure(&kTcp[i], tcp, sizes[s], rounds);
    for (int i = 0; i < 2; ++i) measure(&kUnix[i], local, sizes[s], rounds);
  }
  for (int i = 0; i < 2; ++i) close(tcp[i]), close(local[i]);
  return 0;
}

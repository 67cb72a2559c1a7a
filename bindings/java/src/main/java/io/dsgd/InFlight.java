package io.dsgd;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongFunction;

/**
 * The objects that the C library may still use for one session: buffers that are bound, operations
 * that run and their buffers. It is reachable from a table of this package until the session is
 * closed, whatever the host has dropped, so that no collector unmaps a buffer in use. One daemon
 * thread, started with the first operation, waits on the session's completion queue and ends the
 * operations.
 */
final class InFlight {
  private static final Set<InFlight> ALL = ConcurrentHashMap.newKeySet();

  /** Starts an operation: calls C with the session and the place for the operation's pointer. */
  interface Start {
    void with(long session, long[] operation);
  }

  private record Slot(long replica, long parameter) {}

  private final Handle session;
  private final Map<Slot, NativeArray[]> bound = new HashMap<>();
  private final Map<Long, Operation<?>> running = new HashMap<>();
  // Operations that ended before begin() could put them into `running`.
  private final Set<Long> endedEarly = new HashSet<>();
  private Thread poller;
  private boolean over; // no operation runs any more; add() ends a new one at once

  InFlight(Handle session) {
    this.session = session;
    ALL.add(this);
  }

  /** Keeps the bound buffers reachable, in place of those bound to the same parameter before. */
  synchronized void keepBound(long replica, long parameter, NativeArray... buffers) {
    bound.put(new Slot(replica, parameter), buffers);
  }

  /** Refuses a bound segment whose arena is closed. */
  synchronized void requireBoundAlive() {
    for (NativeArray[] buffers : bound.values()) {
      for (NativeArray buffer : buffers) {
        if (buffer != null) { // an untrained parameter has no gradient
          buffer.requireAlive("memory that is bound to a parameter");
        }
      }
    }
  }

  /** Begins an operation that the thread that polls the queue ends. */
  <T> Operation<T> begin(
      Session owner, Start start, LongFunction<T> result, NativeArray... buffers) {
    startPoller();
    return add(owner, start, result, buffers);
  }

  /** Begins an operation and waits for it. */
  <T> T run(Session owner, Start start, LongFunction<T> result, NativeArray... buffers)
      throws InterruptedException {
    return addAwaited(owner, start, result, buffers).joinInC();
  }

  /** As begin, for an operation that the caller waits for with joinInC. */
  <T> Operation<T> addAwaited(
      Session owner, Start start, LongFunction<T> result, NativeArray... buffers) {
    checkMayWait(); // before the operation has begun
    return add(owner, start, result, buffers);
  }

  private <T> Operation<T> add(
      Session owner, Start start, LongFunction<T> result, NativeArray... buffers) {
    long[] pointer = new long[1];
    session.use(s -> start.with(s, pointer));
    Operation<T> operation = new Operation<>(owner, this, pointer[0], result, buffers);
    boolean ended;
    synchronized (this) {
      ended = over || endedEarly.remove(pointer[0]);
      if (!ended) {
        running.put(pointer[0], operation);
      }
    }
    if (ended) {
      operation.end();
    }
    return operation;
  }

  /**
   * Called by a thread that waits in C when the operation has ended. If there is a poller, only the
   * poller ends operations, because it may already hold the pointer.
   */
  synchronized void ended(Operation<?> operation) {
    if (poller == null && running.remove(operation.pointer()) != null) {
      operation.end();
    }
  }

  /** Number of operations that have not ended; for tests. */
  synchronized int size() {
    return running.size();
  }

  /**
   * Throws on the poller thread, where the caller would wait for an operation that only this thread can
   * end.
   */
  synchronized void checkMayWait() {
    if (Thread.currentThread() == poller) {
      throw DsgdException.of(
          Status.STATE,
          "waiting for an operation in an action of another operation's future would wait forever;"
              + " chain the futures with thenCompose, or use the Async methods of"
              + " CompletableFuture");
    }
  }

  /** dsgd_close has returned: every operation has ended, and buffers are the host's again. */
  void closed() {
    synchronized (this) {
      bound.clear();
      over = true;
      notifyAll();
    }
    ALL.remove(this);
  }

  synchronized void startPoller() {
    if (poller != null) {
      return;
    }
    long pointer = session.acquire();
    Thread thread = new Thread(() -> poll(pointer), "dsgd-queue");
    thread.setDaemon(true);
    try {
      thread.start();
    } catch (Throwable e) { // the system gives no more threads
      session.release();
      throw e;
    }
    poller = thread;
  }

  private void poll(long pointer) {
    long[] ended = new long[64];
    long[] count = new long[1];
    try {
      while (true) {
        if (Raw.dsgd_queue_poll(pointer, ended, -1, count) == dsgd_status.DSGD_OK) {
          for (int i = 0; i < count[0]; i++) {
            end(ended[i]);
            Raw.dsgd_op_free(ended[i]); // the reference of the poll
          }
        }
      }
    } catch (DsgdException e) {
      if (e.status() == Status.CLOSED) {
        // dsgd_close has begun; until it returns, operations may go on and use their buffers.
        awaitClosed();
      } else { // nobody would learn any more how operations end
        fail(pointer, "its completion queue failed: " + e.getMessage());
      }
    } finally {
      endAll();
      session.release();
    }
  }

  private synchronized void awaitClosed() {
    while (!over) {
      try {
        wait();
      } catch (InterruptedException e) {
        // No code interrupts this thread on purpose, and it has nothing else to do.
      }
    }
  }

  private static void fail(long session, String reason) {
    try {
      Raw.dsgd_fail(session, reason);
    } catch (DsgdException e) {
      // The session is closed or has failed: nothing runs any more.
    }
  }

  private void end(long pointer) {
    Operation<?> operation;
    synchronized (this) {
      operation = running.remove(pointer);
      if (operation == null) {
        endedEarly.add(pointer);
        return;
      }
    }
    operation.end();
  }

  private void endAll() {
    List<Operation<?>> rest;
    synchronized (this) {
      over = true;
      rest = new ArrayList<>(running.values());
      running.clear();
    }
    rest.forEach(Operation::end);
  }
}

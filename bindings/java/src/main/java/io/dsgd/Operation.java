package io.dsgd;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;

/**
 * Work in progress. Its buffers are dsgd's until it has ended, however it ended, and are kept
 * reachable until then even if the host drops them and the operation. It needs no close.
 *
 * @param <T> what it ends with: {@link StepResult} for a step, {@link Void} for a collective
 */
public final class Operation<T> {
  private final Session session; // a session with running operations is not abandoned
  private final InFlight inFlight;
  private final Handle handle;
  private final long pointer; // as the queue knows it
  private final long id;
  private final LongFunction<T> result;
  private final CompletableFuture<T> ended = new CompletableFuture<>();
  private NativeArray[] buffers;

  Operation(
      Session session,
      InFlight inFlight,
      long pointer,
      LongFunction<T> result,
      NativeArray... buffers) {
    this.session = session;
    this.inFlight = inFlight;
    this.pointer = pointer;
    this.handle = new Handle(pointer, "the operation", Raw::dsgd_op_free);
    this.id = Raw.dsgd_op_id(pointer);
    this.result = result;
    this.buffers = buffers;
  }

  long pointer() {
    return pointer;
  }

  /** Number of the operation, unique in its session. */
  public long id() {
    return id;
  }

  @Override
  public String toString() {
    return "Operation[" + id + (isDone() ? ", done]" : ", running]");
  }

  /** The session that it belongs to. */
  public Session session() {
    return session;
  }

  /** Whether it has ended, well or not. Never blocks. */
  public boolean isDone() {
    return ended.isDone();
  }

  /**
   * A future of the result; a failure is a {@link DsgdException}. Completing or cancelling this
   * future does not touch the operation. Its dependent actions run in the thread that waits for the
   * session's operations: long ones and waits belong into the Async methods of CompletableFuture.
   * It does not mark gradients: a step ends when every gradient was marked, or after {@link
   * Session#flushStep}.
   */
  public CompletableFuture<T> future() {
    return ended.copy();
  }

  /**
   * Waits for the end. It marks no gradients; see {@link Session#beginStep}.
   *
   * @return the result
   * @throws DsgdException how it failed
   * @throws InterruptedException at once when the thread is interrupted; the operation goes on, and
   *     its buffers stay dsgd's
   */
  public T join() throws InterruptedException {
    checkMayWait();
    try {
      return ended.get();
    } catch (ExecutionException e) {
      throw Natives.rethrown(e.getCause());
    }
  }

  /**
   * Waits as {@link #join}, but in C, which takes less time than a way through the thread that polls
   * the queue.
   */
  T joinInC() throws InterruptedException {
    awaitInC(null);
    return join();
  }

  /** Waits in C for some time; null: until the end. False: it has not ended yet. */
  boolean awaitInC(Duration timeout) throws InterruptedException {
    checkMayWait();
    Boolean ended;
    try {
      ended =
          Natives.waitInSlices(
              timeout,
              "waiting; the operation goes on",
              millis -> hasEndedInC(millis) ? true : null);
    } catch (InterruptedException e) {
      inFlight.startPoller(); // it ends the operation
      throw e;
    }
    if (ended == null) {
      return false;
    }
    inFlight.ended(this);
    return true;
  }

  /** Ends it with {@link Status#ABORTED}, unless it has ended. */
  void abort(String reason) {
    long p = handle.tryAcquire();
    if (p == 0) {
      return;
    }
    try {
      Raw.dsgd_op_abort(p, reason);
    } finally {
      handle.release();
    }
  }

  /** Waits for a slice. */
  private boolean hasEndedInC(int timeoutMs) throws InterruptedException {
    long p = handle.tryAcquire();
    if (p == 0) { // another thread has already ended this operation
      return true;
    }
    try {
      return Raw.dsgd_op_wait(p, timeoutMs) == dsgd_status.DSGD_OK;
    } catch (DsgdException e) {
      if (hasEnded(p)) {
        return true; // the operation has failed
      }
      // The session is being closed: the poller ends the operation.
      return await(Duration.ofMillis(Natives.SLICE_MS));
    } finally {
      handle.release();
    }
  }

  private static boolean hasEnded(long pointer) {
    try {
      int[] done = new int[1];
      Raw.dsgd_op_test(pointer, done);
      return done[0] != 0;
    } catch (DsgdException e) {
      return true;
    }
  }

  /**
   * Waits for the end for some time. It marks no gradients; see {@link Session#beginStep}.
   *
   * @return false if it has not ended yet; it goes on, and its buffers stay dsgd's
   * @throws DsgdException how it failed
   */
  public boolean await(Duration timeout) throws InterruptedException {
    checkMayWait();
    try {
      ended.get(
          Natives.millis(timeout) < 0 ? Long.MAX_VALUE : Natives.millis(timeout),
          TimeUnit.MILLISECONDS);
      return true;
    } catch (TimeoutException e) {
      return false;
    } catch (ExecutionException e) {
      throw Natives.rethrown(e.getCause());
    }
  }

  /**
   * Takes the outcome from C, once it has ended; frees the C side and lets the buffers go before
   * anyone is told. Called once.
   */
  void end() {
    T value = null;
    DsgdException failure = null;
    long pointer = handle.acquire();
    try {
      Raw.dsgd_op_wait(pointer, -1);
      value = result.apply(pointer);
    } catch (DsgdException e) {
      failure = e;
    } finally {
      handle.release();
      handle.close();
      buffers = null;
    }
    if (failure == null) {
      ended.complete(value);
    } else {
      ended.completeExceptionally(failure);
    }
  }

  private void checkMayWait() {
    if (!isDone()) {
      inFlight.checkMayWait();
    }
  }
}

package io.dsgd;

import java.nio.Buffer;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
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
  private final long id;
  private final LongFunction<T> result;
  private final CompletableFuture<T> ended = new CompletableFuture<>();
  private Buffer[] buffers;

  Operation(
      Session session, InFlight inFlight, long pointer, LongFunction<T> result, Buffer... buffers) {
    this.session = session;
    this.inFlight = inFlight;
    this.handle = new Handle(pointer, "the operation", Raw::dsgd_op_free);
    this.id = Raw.dsgd_op_id(pointer);
    this.result = result;
    this.buffers = buffers;
  }

  /** Number of the operation, unique in its session. */
  public long id() {
    return id;
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
   */
  public T join() {
    checkMayWait();
    try {
      return ended.join();
    } catch (CompletionException e) {
      throw failure(e);
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
      throw failure(e);
    }
  }

  /**
   * Takes the outcome from C, once it has ended; frees the C side and lets the buffers go before
   * anyone is told.
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
    if (inFlight.isPoller(Thread.currentThread()) && !isDone()) {
      throw DsgdException.of(
          Status.STATE,
          "waiting for an operation in an action of another operation's future would wait forever;"
              + " chain the futures with thenCompose, or use the Async methods of"
              + " CompletableFuture");
    }
  }

  private static DsgdException failure(Exception e) {
    if (e.getCause() instanceof DsgdException failure) {
      return failure.rethrown();
    }
    throw new IllegalStateException(e.getCause());
  }
}

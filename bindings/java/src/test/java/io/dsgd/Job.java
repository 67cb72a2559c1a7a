package io.dsgd;

import static org.junit.jupiter.api.Assertions.fail;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Jobs whose workers are sessions of this process, on loopback. */
final class Job {
  interface Body {
    void run(Session session) throws Exception;
  }

  private static final int LIMIT_S = 60;

  private Job() {}

  /** A session of its own: no head, no network. */
  static Session alone(String... keysAndValues) throws InterruptedException {
    try (Config config = config(keysAndValues)) {
      return Dsgd.init(config);
    }
  }

  static Config config(String... keysAndValues) {
    Config config = new Config();
    for (int i = 0; i < keysAndValues.length; i += 2) {
      config.set(keysAndValues[i], keysAndValues[i + 1]);
    }
    return config;
  }

  /** A head on a free port. */
  static Head head(int workers) {
    return Head.start(config("head", "127.0.0.1:0", "num_workers", "" + workers));
  }

  /** Configuration of a worker of that head, for tests: whoever is missing is noticed soon. */
  static Config worker(Head head, int workers, String... keysAndValues) {
    Config config = config(keysAndValues);
    return config
        .set("head", head.address())
        .set("num_workers", workers)
        .set("step_timeout", "30s");
  }

  /**
   * Runs `body` in every worker at once; the first failure that is not a consequence of another's
   * is thrown.
   */
  static void run(int workers, Body body, String... keysAndValues) throws Exception {
    try (Head head = head(workers)) {
      List<FutureTask<Void>> tasks = new ArrayList<>();
      for (int i = 0; i < workers; i++) {
        FutureTask<Void> task =
            new FutureTask<>(
                () -> {
                  try (Config config = worker(head, workers, keysAndValues)) {
                    Dsgd.run(config, body::run);
                  }
                  return null;
                });
        tasks.add(task);
        Thread thread = new Thread(task, "worker-" + i);
        thread.setDaemon(true);
        thread.start();
      }
      Throwable first = null;
      for (FutureTask<Void> task : tasks) {
        Throwable failure = outcome(task);
        if (first == null || Fails.is(first, Status.ABORTED)) {
          first = failure == null ? first : failure;
        }
      }
      if (first instanceof Error error) {
        throw error;
      } else if (first != null) {
        throw (Exception) first;
      }
    }
  }

  /** Runs it in a thread of its own: blocking calls would wait for each other in a small pool. */
  static <T> CompletableFuture<T> async(Callable<T> body) {
    CompletableFuture<T> future = new CompletableFuture<>();
    Thread thread =
        new Thread(
            () -> {
              try {
                future.complete(body.call());
              } catch (Throwable e) {
                future.completeExceptionally(e);
              }
            });
    thread.setDaemon(true);
    thread.start();
    return future;
  }

  static CompletableFuture<Void> async(Runnable body) {
    return start(body::run);
  }

  /** A call without a result. */
  interface Call {
    void run() throws Exception;
  }

  static CompletableFuture<Void> start(Call body) {
    return async(
        () -> {
          body.run();
          return null;
        });
  }

  static Throwable outcome(FutureTask<Void> task) throws InterruptedException {
    try {
      task.get(LIMIT_S, TimeUnit.SECONDS);
      return null;
    } catch (ExecutionException e) {
      return e.getCause();
    } catch (TimeoutException e) {
      StringBuilder stacks = new StringBuilder();
      Thread.getAllStackTraces()
          .forEach(
              (thread, stack) -> {
                stacks.append('\n').append(thread.getName());
                for (StackTraceElement element : stack) {
                  stacks.append("\n    ").append(element);
                }
              });
      return fail("a worker is not done after " + LIMIT_S + " s:" + stacks);
    }
  }

  static FloatBuffer floats(double... values) {
    FloatBuffer buffer = bytes(4 * values.length).asFloatBuffer();
    for (int i = 0; i < values.length; i++) {
      buffer.put(i, (float) values[i]);
    }
    return buffer;
  }

  static DoubleBuffer doubles(double... values) {
    return bytes(8 * values.length).asDoubleBuffer().put(values).flip();
  }

  static IntBuffer ints(int... values) {
    return bytes(4 * values.length).asIntBuffer().put(values).flip();
  }

  static LongBuffer longs(long... values) {
    return bytes(8 * values.length).asLongBuffer().put(values).flip();
  }

  static ByteBuffer bytes(int nbytes) {
    return ByteBuffer.allocateDirect(nbytes).order(ByteOrder.nativeOrder());
  }

  static float[] array(FloatBuffer buffer) {
    float[] values = new float[buffer.remaining()];
    buffer.duplicate().get(values);
    return values;
  }

  static double[] array(DoubleBuffer buffer) {
    double[] values = new double[buffer.remaining()];
    buffer.duplicate().get(values);
    return values;
  }

  static int[] array(IntBuffer buffer) {
    int[] values = new int[buffer.remaining()];
    buffer.duplicate().get(values);
    return values;
  }

  static long[] array(LongBuffer buffer) {
    long[] values = new long[buffer.remaining()];
    buffer.duplicate().get(values);
    return values;
  }
}

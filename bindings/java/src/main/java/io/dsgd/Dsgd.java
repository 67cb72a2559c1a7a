package io.dsgd;

import java.util.ArrayList;
import java.util.List;

/**
 * Data-parallel stochastic gradient descent for hosts on the JVM. The shortest trainer:
 *
 * <pre>{@code
 * Dsgd.run(session -> {                                  // DSGD_* variables say how to join
 *   Parameter weight = session.addParameter("weight", DType.FLOAT32, 64, 10);
 *   Replica replica = session.addReplica("cpu");
 *   Memory memory = replica.alloc(weight);
 *   FloatBuffer value = memory.value().asFloatBuffer();
 *   FloatBuffer gradient = memory.gradient().asFloatBuffer();
 *   session.setOptimizer("sgd", "lr=0.1 momentum=0.9");
 *   session.start();                                     // all workers hold rank 0's values
 *   while (nextBatch(batch)) {
 *     computeGradient(value, gradient, batch);
 *     session.step(batch.size());                        // the mean weighs this worker by its samples
 *   }
 * });                                                    // an exception fails this worker
 * }</pre>
 */
public final class Dsgd {
  private Dsgd() {}

  /** Joins a job with what the environment and the defaults say. */
  public static Session init() throws InterruptedException {
    return init(null);
  }

  /**
   * Joins a job: reaches the head, or becomes it, waits until {@code num_workers} have come, and
   * learns its rank. Blocks up to {@code init_timeout}.
   *
   * @param config null: environment and defaults
   * @throws InterruptedException when the thread is interrupted; this ends joining, and the other
   *     workers are told
   */
  public static Session init(Config config) throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted before init");
    }
    long[] session = new long[1];
    long[] operation = new long[1];
    Config.with(
        config, c -> Raw.dsgd_init_begin(c, Session.DEFAULTS, session, operation));
    Session joining = new Session(session[0]);
    joining.awaitJoined(operation[0]);
    return joining;
  }

  /** The work of one worker, for {@link #run}. */
  @FunctionalInterface
  public interface Body<E extends Exception> {
    void run(Session session) throws E;
  }

  /** {@link #run(Config, Body)} with what the environment and the defaults say. */
  public static <E extends Exception> void run(Body<E> body) throws E, InterruptedException {
    run(null, body);
  }

  /**
   * Joins a job as {@link #init(Config)} does, runs {@code body}, and closes the session as {@link
   * Session#close(java.time.Duration) close(null)} does. If {@code body} throws, this worker fails
   * with that reason, as by {@link Session#fail}.
   *
   * @param config null: environment and defaults
   */
  public static <E extends Exception> void run(Config config, Body<E> body)
      throws E, InterruptedException {
    try (Session session = init(config)) {
      try {
        body.run(session);
      } catch (Throwable failure) {
        fail(session, failure);
        throw failure;
      }
      session.close(null);
    }
  }

  private static void fail(Session session, Throwable failure) {
    String text;
    try {
      text = failure.toString().replace("\0", "");
    } catch (RuntimeException e) {
      text = failure.getClass().getName();
      failure.addSuppressed(e);
    }
    try {
      session.fail(text);
    } catch (DsgdException e) {
      failure.addSuppressed(e);
    }
  }

  /** Version of the native library: major * 10000 + minor * 100 + patch. */
  public static int version() {
    return (int) Raw.dsgd_version();
  }

  /** Version of the native library, such as {@code 1.0.0}. */
  public static String versionString() {
    return Raw.dsgd_version_string();
  }

  /**
   * Whether the native library has an optional part: {@code cuda} for replicas on GPUs. False for
   * names that it does not know.
   */
  public static boolean capability(String name) {
    return Raw.dsgd_capability(name) != 0;
  }

  /** All configuration keys, in alphabetical order. */
  public static List<ConfigKey> configKeys() {
    List<ConfigKey> keys = new ArrayList<>();
    for (long i = 0; i < Raw.dsgd_config_key_count(); i++) {
      String[] row = new String[6];
      Raw.dsgd_config_key_at(i, row);
      keys.add(new ConfigKey(row[0], row[1], row[2], row[3], row[4], row[5]));
    }
    return List.copyOf(keys);
  }
}

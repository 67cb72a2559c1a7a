package io.dsgd;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/**
 * One worker's membership in a job; made by {@link Dsgd#init}. Several sessions in one process are
 * independent.
 *
 * <p>All methods may be called from any thread. Methods that C allows only one at a time (setup,
 * steps) are serialized. Workers must still call collectives, and {@link #start} and steps, in the same
 * order. Blocking calls end by themselves, at {@code step_timeout} at the latest ({@link #close} and
 * {@link #pollLog} have limits of their own), and when another thread closes the session. An
 * interrupt ends them within 20 ms with an InterruptedException;
 * the operation that they began goes on, and its buffers stay dsgd's until it ends or the session is
 * closed. {@link #close()} gives operations in flight a second and does not react to an interrupt. A
 * setup method that waits for another thread's step throws a DsgdException of {@link Status#STATE}
 * instead and keeps the thread's interrupt.
 * Blocking calls pin the carrier of a virtual thread; operations do not.
 */
public final class Session extends Collectives implements AutoCloseable {
  // The limit on the wait of close() for operations in flight.
  private static final Duration CLOSING = Duration.ofSeconds(1);

  private static final LongFunction<StepResult> STEP_RESULT =
      op -> {
        StepResult[] result = new StepResult[1];
        Raw.dsgd_op_step_result(op, result);
        return result[0];
      };

  private static final String NOT_WAITED_FOR = "the wait for it was too long";

  static final long[] DEFAULTS = null; // options of an operation
  private static final int NO_DTYPE = -1;

  private final Handle handle;

  private final InFlight inFlight;
  private final ReentrantLock turn = new ReentrantLock();
  private final Queue<LogRecord> recordsAfterClose = new ConcurrentLinkedQueue<>();
  private SessionInfo lastInfo; // once it is closed

  Session(long pointer) {
    Handle owned = new Handle(pointer, "the session", Raw::dsgd_session_free);
    InFlight mine = new InFlight(owned);
    handle = owned;
    inFlight = mine;
    Natives.CLEANER.register(this, () -> abandon(owned, mine));
  }

  /** Waits for the operation of dsgd_init_begin; on failure the session is closed. */
  void awaitJoined(long operation) throws InterruptedException {
    try {
      inFlight.run(this, (s, pointer) -> pointer[0] = operation, joined -> null);
    } catch (InterruptedException e) {
      abort("interrupted while joining");
      closeNow(0);
      throw new InterruptedException("interrupted while joining; the join was aborted");
    } catch (DsgdException e) {
      closeNow(0);
      throw e;
    }
  }

  // ---- Membership

  /** 0 .. size - 1. */
  public int rank() {
    return handle.get(s -> Natives.checked(Raw.dsgd_rank(s), "rank"));
  }

  /** Number of workers. */
  public int size() {
    return handle.get(s -> Natives.checked(Raw.dsgd_size(s), "size"));
  }

  /** Rank among the workers on this node. */
  public int localRank() {
    return handle.get(s -> Natives.checked(Raw.dsgd_local_rank(s), "local rank"));
  }

  /** Number of workers on this node. */
  public int localSize() {
    return handle.get(s -> Natives.checked(Raw.dsgd_local_size(s), "local size"));
  }

  /** Number of the view; only grows. */
  public long view() {
    long view = handle.get(Raw::dsgd_view);
    return view < 0 ? Natives.checked((int) view, "view") : view;
  }

  /** Rank, size, state and progress at one moment. Works after close, too. */
  public synchronized SessionInfo info() {
    return lastInfo != null ? lastInfo : handle.get(Session::readInfo);
  }

  private static SessionInfo readInfo(long s) {
    SessionInfo[] info = new SessionInfo[1];
    Raw.dsgd_session_info_read(s, info);
    return info[0];
  }

  /**
   * Counters since the session was opened, by OpenMetrics name with labels: {@code
   * metrics().get("dsgd_calls_total{call=\"allreduce\"}")}. Reading them is cheap and never blocks.
   */
  public Map<String, Double> metrics() {
    Map<String, Double> values = new LinkedHashMap<>();
    for (String line : metricsText().split("\n")) {
      int end = line.lastIndexOf(' ');
      if (!line.startsWith("#")) {
        values.put(line.substring(0, end), Double.valueOf(line.substring(end + 1)));
      }
    }
    return values;
  }

  /**
   * The counters as OpenMetrics text, to be served to Prometheus as {@code
   * application/openmetrics-text}.
   */
  public String metricsText() {
    return text(Raw::dsgd_metrics);
  }

  /**
   * The latest spans of the session, as JSON that Perfetto (ui.perfetto.dev) shows as a timeline:
   * steps, their phases, buckets, calls and waits.
   */
  public String trace() {
    return text(Raw::dsgd_trace);
  }

  private String text(BiConsumer<Long, String[]> make) {
    return handle.get(
        s -> {
          String[] text = new String[1];
          make.accept(s, text);
          return text[0];
        });
  }

  /**
   * Ends the membership in good order. Operations in flight have a second to end, so that the end of
   * a try statement does not wait for workers that do not come. {@link #close(Duration)} gives them
   * longer. If the job outlives losses, use {@code close(null)}: it waits until the last step is final
   * on all workers, which takes longer than a second if one of them is lost meanwhile.
   */
  @Override
  public void close() {
    close(CLOSING);
  }

  /**
   * Ends the membership in good order: waits for operations in flight, ends those left with {@link
   * Status#CLOSED}, tells the peers and the head, and frees the network. Every later call throws a
   * {@link DsgdException} of that status. Closing twice is fine: a caller waits no longer than the
   * last caller will. An interrupt ends the wait for operations; the session is then closed, and the
   * thread is still interrupted. Memory from {@link Replica#alloc} stays mapped while its buffers are
   * reachable. If the arena of a bound segment is closed, operations in flight end at once and this
   * throws a {@link DsgdException} of {@link Status#INVALID_ARGUMENT}; the session is closed all the
   * same. So it is if this throws {@link Status#EVICTED}, since the others went on without this
   * worker before it knew that its last step is final, or {@link Status#DIVERGED}, since its values
   * differ from theirs.
   *
   * @param timeout how long to wait for operations, and for the last step to be final (dsgd_close in
   *     dsgd.h); null: up to their own deadlines
   */
  public void close(Duration timeout) {
    int timeoutMs = Natives.millis(timeout);
    if (timeoutMs >= 0 && timeoutMs <= CLOSING.toMillis()) {
      closeNow(timeoutMs);
      return;
    }
    try {
      Natives.interruptibly(
          "close",
          () -> {
            closeNow(timeoutMs);
            return true;
          },
          closed -> {});
    } catch (InterruptedException e) {
      closeNow(0);
      Thread.currentThread().interrupt();
    }
  }

  private void closeNow(int timeoutMs) {
    long s = handle.tryAcquire();
    if (s == 0) {
      return;
    }
    try {
      try {
        inFlight.requireBoundAlive();
      } catch (DsgdException e) {
        Raw.dsgd_close(s, 0); // reads no values
        throw e;
      }
      Raw.dsgd_close(s, timeoutMs);
    } finally {
      keepLastWords(s);
      handle.close();
      handle.release();
      inFlight.closed();
    }
  }

  /**
   * Ends all operations of this session with {@link Status#ABORTED}. Every other worker fails with
   * the same status. Never blocks.
   */
  public void abort(String reason) {
    handle.use(s -> Raw.dsgd_abort(s, reason));
  }

  /**
   * Says that this worker has failed. In a job that goes on after losses, the others go on without it:
   * the session fails with {@link Status#WORKER_LOST}. In any other job this is {@link #abort}. Never
   * blocks.
   *
   * @param reason null: none
   */
  public void fail(String reason) {
    handle.use(s -> Raw.dsgd_fail(s, reason));
  }

  // ---- Setting up

  /**
   * Registers a tensor that is trained, before start. All workers register the same in the same
   * order.
   */
  public Parameter addParameter(String name, DType type, long... shape) {
    return addParameter(name, type, true, shape);
  }

  /**
   * Registers state without gradient, such as batch-norm's running mean: given out at start, not
   * stepped.
   */
  public Parameter addUntrained(String name, DType type, long... shape) {
    return addParameter(name, type, false, shape);
  }

  private Parameter addParameter(String name, DType type, boolean trained, long... shape) {
    if (type == null || shape == null) {
      throw DsgdException.invalid(
          name,
          "parameter '%s' needs a type and a shape; %s is null"
              .formatted(name, type == null ? "type" : "shape"));
    }
    return inTurnGet(
        s -> {
          long[] parameter = new long[1];
          int flags = trained ? 0 : dsgd_parameter_flag.DSGD_UNTRAINED;
          Raw.dsgd_parameter_add(s, name, type.code, shape, flags, parameter);
          return new Parameter(
              this, parameter[0], Raw.dsgd_parameter_name(parameter[0]), type, shape, trained);
        });
  }

  /**
   * Adds a copy of the model on the next device of the configuration's {@code devices}, before
   * start.
   */
  public Replica addReplica() {
    return addReplica(null);
  }

  /**
   * Adds a copy of the model on a device, before start.
   *
   * @param device {@code cpu}, {@code cuda:0} and so on; null: the next entry of the configuration's
   *     {@code devices}
   */
  public Replica addReplica(String device) {
    return inTurnGet(
        s -> {
          long[] replica = new long[1];
          Raw.dsgd_replica_add(s, device, replica);
          return new Replica(this, replica[0]);
        });
  }

  /**
   * The optimizer, before start: {@code sgd}, {@code adam}, {@code adamw}, or {@code none}, which
   * writes the mean gradient to the gradient buffers of every replica.
   *
   * @param options "key=value" words, {@code lr=0.1 momentum=0.9}; null for defaults. dsgd_optimizer_set in
   *     dsgd.h lists them
   */
  public void setOptimizer(String name, String options) {
    inTurn(s -> Raw.dsgd_optimizer_set(s, name, options));
  }

  /** Learning rate from the next step on, equal on all workers. */
  public void setLearningRate(double rate) {
    inTurn(s -> Raw.dsgd_learning_rate_set(s, rate));
  }

  /**
   * Factor to multiply the loss by before the next backward pass; 1 unless {@code
   * loss_scale} is configured. A step whose mean gradient is not finite then changes nothing on any
   * worker: its result is {@link StepResult#skipped}. Any thread.
   */
  public double lossScale() {
    double scale = handle.get(Raw::dsgd_loss_scale);
    return scale < 0 ? Natives.checked((int) scale, "loss scale") : scale;
  }

  /** As {@link #setStrategy(String, String)} without options. */
  public void setStrategy(String name) throws InterruptedException {
    setStrategy(name, null);
  }

  /**
   * How gradients become new values: {@code simple}, {@code ps} or {@code allreduce}. After start
   * it is collective and holds from the next step on.
   */
  public void setStrategy(String name, String options) throws InterruptedException {
    runInTurn((s, op) -> Raw.dsgd_strategy_set(s, name, options, DEFAULTS, op));
  }

  /**
   * Checks that all workers agree, then gives every replica of every worker the values of rank 0's
   * first replica.
   */
  public void start() throws InterruptedException {
    runInTurn(
        (s, op) -> {
          inFlight.requireBoundAlive();
          Raw.dsgd_start(s, DEFAULTS, op);
        });
  }

  // ---- Checkpoints
  // --------------------------------------------------------------------------------------------------

  /**
   * Saves the model, the optimizer's state, the step and the data shards. All workers call it
   * between the same steps. Returns when the checkpoint exists.
   *
   * @param folder on a file system that all workers share; null: the configured checkpoint_dir
   */
  public void saveCheckpoint(String folder) throws InterruptedException {
    inFlight.checkMayWait(); // before the operation has begun
    saveCheckpointAsync(folder).join();
  }

  /**
   * As {@link #saveCheckpoint}, in the background: the model may change as soon as this returns, and
   * files are written beside the next steps.
   */
  public Operation<Void> saveCheckpointAsync(String folder) throws InterruptedException {
    turn.lockInterruptibly();
    try {
      // The call may wait for an earlier save.
      return Natives.interruptibly(
          "saveCheckpoint",
          () ->
              inFlight.begin(
                  this, (s, op) -> Raw.dsgd_checkpoint_save(s, folder, DEFAULTS, op), op -> null),
          begun -> {});
    } finally {
      turn.unlock();
    }
  }

  /**
   * Loads a checkpoint after start. {@link SessionInfo#steps} then counts its steps, and the shards
   * that were made before go on where it was taken. The number of workers and the strategy may be
   * others. {@link Status#NOT_FOUND}: there is none. After {@link Status#VIEW_CHANGED}, call it
   * again, on all workers.
   *
   * @param folder whose newest checkpoint is loaded, or the checkpoint folder/step-NNNNNNNNNN itself;
   *     null: the configured checkpoint_dir
   */
  public void loadCheckpoint(String folder) throws InterruptedException {
    runInTurn((s, op) -> Raw.dsgd_checkpoint_load(s, folder, DEFAULTS, op));
  }

  // ---- Steps

  /**
   * One synchronous step: the mean of all gradients, weighted, updates every replica.
   *
   * @param weight this worker's contribution weight, usually its number of samples; 0 when it has
   *     no data left, until {@link StepResult#allDone}
   */
  public StepResult step(double weight) throws InterruptedException {
    turn.lockInterruptibly();
    try {
      Operation<StepResult> step = inFlight.addAwaited(this, beginning(weight), STEP_RESULT);
      try {
        flushStep();
      } catch (DsgdException e) {
        // The step has ended already; joinInC tells how.
      }
      return step.joinInC();
    } finally {
      turn.unlock();
    }
  }

  private InFlight.Start beginning(double weight) {
    return (s, op) -> {
      inFlight.requireBoundAlive();
      Raw.dsgd_step_begin(s, weight, DEFAULTS, op);
    };
  }

  /**
   * Begins a step that overlaps the backward pass; gradients are then marked with {@link
   * Replica#ready}. It never blocks. The step ends when every gradient is marked, ready
   * or absent; {@link #flushStep} marks the rest. Waiting marks nothing.
   */
  public Operation<StepResult> beginStep(double weight) {
    takeTurn();
    try {
      return inFlight.begin(this, beginning(weight), STEP_RESULT);
    } finally {
      turn.unlock();
    }
  }

  /** All gradients of the step begun that are not marked are ready. Never blocks. */
  public void flushStep() {
    use(Raw::dsgd_step_flush);
  }

  /**
   * Asks all workers to stop: each sees {@link StepResult#stop} in the result of the same step.
   * Never blocks.
   */
  public void requestStop() {
    use(Raw::dsgd_stop_request);
  }

  /**
   * 64-bit digest of all values of the first replica: equal bits, equal digest. Not during a step.
   */
  public long digest() {
    long[] digest = new long[1];
    inTurn(
        s -> {
          inFlight.requireBoundAlive();
          Raw.dsgd_digest(s, digest);
        });
    return digest[0];
  }

  /**
   * Collectives in a sequence of their own, for another thread than the one that makes the steps.
   *
   * @param number 0 to 3; the session itself uses channel 0
   */
  public Channel channel(int number) {
    return new Channel(this, number, -1, 0);
  }

  // ---- Objects, shards, logs

  /**
   * Gives {@code data}, from position to limit, to every worker under {@code name}; returns when
   * all have it.
   */
  public void putObject(String name, ByteBuffer data) throws InterruptedException {
    put(name, Buffers.readable(data, DType.UINT8, "data of object '" + name + "'"), NO_DTYPE);
  }

  /**
   * Gives an array to every worker under {@code name}; returns when all have it. Workers in other
   * languages get it with its type and shape.
   *
   * @param data the elements in row-major order, from position to limit: a direct buffer of {@code
   *     type}, or a ByteBuffer
   * @param shape outermost dimension first; none for a scalar
   */
  public void putObject(String name, Buffer data, DType type, long... shape)
      throws InterruptedException {
    if (type == null || shape == null) {
      throw DsgdException.invalid("type or shape of object '" + name + "' is null; give both");
    }
    put(name, Buffers.readable(data, type, "data of object '" + name + "'"), type.code, shape);
  }

  /** As {@link #putObject(String, Buffer, DType, long...)}, with all elements as one dimension. */
  public void putObject(String name, NativeArray data) throws InterruptedException {
    putObject(name, data, data == null ? 0 : data.length());
  }

  /** As {@link #putObject(String, Buffer, DType, long...)}, with memory of any size. */
  public void putObject(String name, NativeArray data, long... shape) throws InterruptedException {
    if (shape == null) {
      throw DsgdException.invalid(
          "shape of object '" + name + "' is null; give the dimensions, none for a scalar");
    }
    put(name, data, Buffers.typeOf(data, "data of object '" + name + "'").code, shape);
  }

  private void put(String name, NativeArray data, int dtype, long... shape)
      throws InterruptedException {
    long[] dimensions = shape.clone();
    inFlight.run(
        this,
        (s, op) -> Raw.dsgd_object_put(s, name, data, dtype, dimensions, DEFAULTS, op),
        put -> null,
        data);
  }

  /** As {@link #putObject(String, ByteBuffer)}, with a copy of an array. */
  public void putObject(String name, byte[] data) throws InterruptedException {
    if (data == null) {
      throw DsgdException.invalid(
          "data of object '" + name + "' is null; pass an array, which may be empty");
    }
    putObject(name, ByteBuffer.allocateDirect(data.length).put(data).flip());
  }

  /**
   * Deletes the object of that name on all workers; returns when none holds it. The name can then be
   * put again. Objects that {@link #getObject} has returned stay valid.
   */
  public void deleteObject(String name) throws InterruptedException {
    inFlight.run(
        this,
        (s, op) -> Raw.dsgd_object_delete(s, name, DEFAULTS, op),
        deleted -> null);
  }

  /** The object of that name, waiting up to {@code step_timeout} for it. */
  public SharedObject getObject(String name) throws InterruptedException {
    return getObject(name, null);
  }

  /**
   * The object of that name.
   *
   * @param timeout how long to wait for it; null: {@code step_timeout}
   * @throws DsgdException of {@link Status#WAIT_TIMEOUT}: no worker has put it yet; of {@link
   *     Status#TIMEOUT} after {@code step_timeout}
   */
  public SharedObject getObject(String name, Duration timeout) throws InterruptedException {
    Operation<SharedObject> get =
        inFlight.addAwaited(
            this,
            (s, op) -> Raw.dsgd_object_get(s, name, DEFAULTS, null, op),
            op -> {
              long[] object = new long[1];
              Raw.dsgd_op_object(op, object);
              return new SharedObject(name, object[0]);
            });
    boolean tooLate = false;
    try {
      tooLate = !get.awaitInC(timeout);
      if (tooLate) {
        get.abort(NOT_WAITED_FOR);
      }
      return get.joinInC();
    } catch (InterruptedException e) {
      get.abort("interrupted");
      throw e;
    } catch (DsgdException e) {
      // Another worker may have aborted the job at the same time.
      if (!tooLate || e.status() != Status.ABORTED || !e.getMessage().contains(NOT_WAITED_FOR)) {
        throw e;
      }
      throw DsgdException.of(
          Status.WAIT_TIMEOUT,
          "object '%s' has not come within %s ms: no worker has put it, or its data is still on the way"
              .formatted(name, timeout.toMillis()));
    }
  }

  /** As {@link #shard(long, long, boolean)}, shuffled. */
  public Shard shard(long samples, long seed) {
    return shard(samples, seed, true);
  }

  /**
   * This worker's part of a data set.
   *
   * @param samples number of samples in all
   * @param seed of the shuffle, equal on all workers
   * @param shuffle whether each epoch has an order of its own
   */
  public Shard shard(long samples, long seed, boolean shuffle) {
    if (samples < 0) {
      throw DsgdException.invalid(
          "samples is " + samples + "; pass the number of samples of the whole data set");
    }
    long[] shard = new long[1];
    int flags = shuffle ? 0 : dsgd_shard_flag.DSGD_SHARD_SEQUENTIAL;
    use(s -> Raw.dsgd_shard_new(s, samples, seed, flags, shard));
    return new Shard(shard[0]);
  }

  /**
   * The next line of the log. After close it gives the lines that are left, then throws a {@link
   * DsgdException} of {@link Status#CLOSED}.
   *
   * @param timeout null: no limit
   * @return null if {@code timeout} ran out
   */
  public LogRecord pollLog(Duration timeout) throws InterruptedException {
    return Natives.waitInSlices(timeout, "waiting for a line of the log", this::pollLog);
  }

  private LogRecord pollLog(int timeoutMs) {
    if (handle.isClosed()) {
      LogRecord record = recordsAfterClose.poll();
      if (record == null) {
        throw DsgdException.closed("the session");
      }
      return record;
    }
    return handle.get(s -> nextRecord(s, timeoutMs));
  }

  /**
   * Gives all lines that are in the log now to {@code consumer}, oldest first; after close those
   * that are left.
   */
  public void drainLog(Consumer<LogRecord> consumer) {
    try {
      for (LogRecord record = pollLog(0); record != null; record = pollLog(0)) {
        consumer.accept(record);
      }
    } catch (DsgdException e) {
      if (e.status() != Status.CLOSED) {
        throw e;
      }
      // Closed, and no record is left.
    }
  }

  /**
   * A file descriptor that is readable while ended operations are in the queue; for event loops in
   * native code. A thread of this library takes operations begun from Java out of the queue.
   */
  public int queueFd() {
    return handle.get(s -> Natives.checked(Raw.dsgd_queue_fd(s), "queue descriptor"));
  }

  @Override
  public String toString() {
    try {
      SessionInfo info = info();
      return "Session[rank " + info.rank() + " of " + info.size() + ", " + info.state() + "]";
    } catch (DsgdException e) {
      return "Session[" + e.status() + "]";
    }
  }

  // ---- For the package

  @Override
  Session session() {
    return this;
  }

  @Override
  long[] options() {
    return DEFAULTS;
  }

  InFlight inFlight() {
    return inFlight;
  }

  void use(LongConsumer use) {
    handle.use(use);
  }

  private void takeTurn() {
    if (turn.tryLock()) {
      return;
    }
    try {
      turn.lockInterruptibly();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw DsgdException.of(
          Status.STATE,
          "interrupted while a call of another thread, such as a step, was in progress; call again"
              + " when it has ended");
    }
  }

  /** Calls that C wants one at a time per session. */
  void inTurn(LongConsumer use) {
    takeTurn();
    try {
      handle.use(use);
    } finally {
      turn.unlock();
    }
  }

  /** As inTurn, for an operation that is waited for: an interrupt ends the wait, and the operation goes on. */
  private void runInTurn(InFlight.Start start) throws InterruptedException {
    turn.lockInterruptibly();
    try {
      inFlight.run(this, start, op -> null);
    } finally {
      turn.unlock();
    }
  }

  <T> T inTurnGet(LongFunction<T> use) {
    takeTurn();
    try {
      return handle.get(use);
    } finally {
      turn.unlock();
    }
  }

  private synchronized void keepLastWords(long s) {
    try {
      lastInfo = readInfo(s);
      for (LogRecord record = nextRecord(s, 0); record != null; record = nextRecord(s, 0)) {
        recordsAfterClose.add(record);
      }
    } catch (DsgdException e) {
      return; // the queue is empty and closed
    }
  }

  private static LogRecord nextRecord(long s, int timeoutMs) {
    long[] pointer = new long[1];
    if (Raw.dsgd_log_poll(s, timeoutMs, pointer) != dsgd_status.DSGD_OK) {
      return null;
    }
    long record = pointer[0];
    try {
      return new LogRecord(
          LogLevel.of(Raw.dsgd_log_record_level(record)),
          DsgdException.inJava(Raw.dsgd_log_record_message(record)),
          Instant.ofEpochSecond(0, Raw.dsgd_log_record_time_ns(record)),
          Raw.dsgd_log_record_session(record),
          Raw.dsgd_log_record_rank(record));
    } finally {
      Raw.dsgd_log_record_free(record);
    }
  }

  /**
   * The collector found a session that was not closed. Leaving may take a moment, so it has a
   * thread of its own.
   */
  private static void abandon(Handle handle, InFlight inFlight) {
    if (handle.isClosed()) {
      return;
    }
    Thread thread =
        new Thread(
            () -> {
              try {
                handle.use(s -> Raw.dsgd_close(s, 0));
              } catch (DsgdException e) {
                // The caller is gone, so the error cannot be reported.
              }
              handle.close();
              inFlight.closed();
            },
            "dsgd-abandoned-session");
    thread.setDaemon(true);
    thread.start();
  }
}

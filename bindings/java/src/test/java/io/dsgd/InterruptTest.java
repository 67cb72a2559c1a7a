package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * An interrupt ends every wait, and so does close() by another thread. The other worker never calls,
 * and step_timeout is longer than these tests may take.
 */
@Timeout(60)
final class InterruptTest {
  private static final String STEP_TIMEOUT = "10m";

  private Head head;
  private Session mine;
  private Session theirs;

  @BeforeEach
  void join() throws Exception {
    head = Job.head(2);
    Config config = config();
    var other = Job.async(() -> Dsgd.init(config));
    mine = Dsgd.init(config);
    theirs = other.join();
  }

  @AfterEach
  void leave() {
    mine.close(Duration.ZERO);
    theirs.close(Duration.ZERO);
    head.close();
  }

  private Config config() {
    return Job.worker(head, 2).set("step_timeout", STEP_TIMEOUT).set("init_timeout", STEP_TIMEOUT);
  }

  /** A thread that makes the call, once it is about to. */
  private static final class Caller {
    final CountDownLatch begun = new CountDownLatch(1);
    final FutureTask<Void> task;
    final Thread thread;

    Caller(Job.Call call) throws InterruptedException {
      task =
          new FutureTask<>(
              () -> {
                begun.countDown();
                call.run();
                return null;
              });
      thread = new Thread(task, "caller");
      thread.setDaemon(true);
      thread.start();
      begun.await();
    }

    Throwable interrupted() throws InterruptedException {
      thread.interrupt();
      return Job.outcome(task);
    }

    /** Interrupts once the call is seen to have begun. */
    Throwable interruptedWhen(BooleanSupplier hasBegun) throws InterruptedException {
      while (!hasBegun.getAsBoolean() && !task.isDone()) {
        Thread.onSpinWait();
      }
      return interrupted();
    }
  }

  /** Wherever the interrupt meets the call. */
  private static void assertInterrupts(Job.Call call) throws Exception {
    assertInstanceOf(InterruptedException.class, new Caller(call).interrupted());
  }

  private static void assertInterruptsWhen(BooleanSupplier hasBegun, Job.Call call)
      throws Exception {
    assertInstanceOf(
        InterruptedException.class, new Caller(call).interruptedWhen(hasBegun));
  }

  private boolean operationRuns() {
    return mine.inFlight().size() == 1;
  }

  private static boolean isJoining(Thread thread) {
    return Arrays.stream(thread.getStackTrace())
        .anyMatch(frame -> frame.getMethodName().equals("awaitJoined"));
  }

  private static void model(Session session) {
    Replica replica = session.addReplica("cpu");
    replica.alloc(session.addParameter("weight", DType.FLOAT32, 2));
  }

  private void start() throws Exception {
    model(mine);
    model(theirs);
    var other = Job.start(theirs::start);
    mine.start();
    other.join();
  }

  @Test
  void interruptsEndCollectives() throws Exception {
    assertInterrupts(mine::barrier);
    assertInterrupts(() -> mine.allReduce(Job.floats(1, 2), Reduction.SUM));
    assertInterrupts(() -> mine.broadcast(Job.floats(1, 2), 1));
    assertInterrupts(() -> mine.allGather(Job.floats(1), Job.floats(0, 0)));
    assertInterrupts(() -> mine.reduceScatter(Job.floats(1, 2), Job.floats(0), Reduction.SUM));
    assertInterrupts(() -> mine.barrierAsync().join());
    assertInterrupts(() -> mine.barrierAsync().await(Duration.ofMinutes(10)));
  }

  @Test
  void interruptedCollectiveGoesOn() throws Exception {
    FloatBuffer data = Job.floats(1, 2);
    assertInterruptsWhen(
        this::operationRuns, () -> mine.allReduce(data, Reduction.SUM));
    theirs.allReduce(Job.floats(10, 20), Reduction.SUM);
    var other = Job.start(theirs::barrier);
    mine.barrier(); // comes after the interrupted call
    other.join();
    assertEquals(11, data.get(0));
  }

  @Test
  void interruptsEndStarts() throws Exception {
    model(mine);
    assertInterruptsWhen(this::operationRuns, mine::start);
  }

  @Test
  void interruptsEndSteps() throws Exception {
    start();
    assertInterruptsWhen(this::operationRuns, () -> mine.step(1));
    // It goes on, and ends when the other worker comes.
    assertEquals(0, theirs.step(1).step());
  }

  @Test
  void interruptsEndWaitsForAnotherThreadsStep() throws Exception {
    start();
    Caller step = new Caller(() -> mine.step(1));
    while (!operationRuns()) {
      Thread.onSpinWait();
    }
    Caller setup =
        new Caller(
            () -> {
              try {
                mine.setLearningRate(0.5);
              } finally {
                assertTrue(Thread.currentThread().isInterrupted());
              }
            });
    while (setup.thread.getState() != Thread.State.WAITING) {
      Thread.onSpinWait();
    }
    assertTrue(Fails.is(setup.interrupted(), Status.STATE));
    assertEquals(0, theirs.step(1).step()); // the step goes on
    assertEquals(null, Job.outcome(step.task));
  }

  @Test
  void interruptsEndChangesOfTheStrategy() throws Exception {
    start();
    assertInterruptsWhen(this::operationRuns, () -> mine.setStrategy("allreduce"));
  }

  @Test
  void interruptsEndWaitsForObjects() throws Exception {
    assertInterruptsWhen(this::operationRuns, () -> mine.getObject("never"));
    assertInterrupts(() -> mine.getObject("never", Duration.ofMinutes(10)));
  }

  @Test
  void interruptsEndWaitsForTheLog() throws Exception {
    assertInterrupts(
        () -> {
          while (true) {
            mine.pollLog(Duration.ofMinutes(10));
          }
        });
    assertInterrupts(
        () -> {
          while (true) {
            mine.pollLog(null);
          }
        });
  }

  @Test
  void interruptsEndWaitsForTheHead() throws Exception {
    assertInterrupts(() -> head.await(null));
    assertInterrupts(() -> head.await(Duration.ofMinutes(10)));
  }

  @Test
  void interruptsEndJoining() throws Exception {
    try (Head lonely = Job.head(2);
        Config config = config().set("head", lonely.address()).set("num_workers", "2")) {
      assertInterrupts(() -> Dsgd.init(config));  // ends the job at this head
    }
    try (Head lonely = Job.head(2);
        Config config = config().set("head", lonely.address()).set("num_workers", "2")) {
      Caller joining = new Caller(() -> Dsgd.init(config));
      Throwable end = joining.interruptedWhen(() -> isJoining(joining.thread));
      assertInstanceOf(InterruptedException.class, end);
      assertEquals("interrupted while joining; the join was aborted", end.getMessage());
    }
  }

  @Test
  void interruptedThreadsDoNotBegin() throws Exception {
    Thread.currentThread().interrupt();
    Job.Call barrier = mine::barrier;
    assertInstanceOf(InterruptedException.class, thrown(barrier));
    assertFalse(Thread.currentThread().isInterrupted());
  }

  private static Throwable thrown(Job.Call call) {
    try {
      call.run();
      return null;
    } catch (Throwable e) {
      return e;
    }
  }

  @Test
  void closeByAnotherThreadEndsWaits() throws Exception {
    Caller barrier = new Caller(mine::barrier);
    Caller object = new Caller(() -> mine.getObject("never"));
    mine.close();
    assertTrue(Fails.is(Job.outcome(barrier.task), Status.CLOSED));
    assertTrue(Fails.is(Job.outcome(object.task), Status.CLOSED));
  }

  @Test
  void closeDoesNotWaitForOperationsUntilTheirDeadline() throws Exception {
    Operation<Void> barrier;
    try (Session closing = mine) {
      barrier = closing.barrierAsync();
    }
    Fails.with(Status.CLOSED, barrier::join);
  }

  @Test
  void interruptEndsALongClose() throws Exception {
    Operation<Void> barrier = mine.barrierAsync();
    Caller closing =
        new Caller(
            () -> {
              mine.close(null);
              assertTrue(Thread.currentThread().isInterrupted());
            });
    assertEquals(null, closing.interrupted());
    Fails.with(Status.CLOSED, barrier::join);
  }

  @Test
  void shortCloseEndsALongOne() throws Exception {
    Operation<Void> barrier = mine.barrierAsync();
    Caller patient = new Caller(() -> mine.close(null));
    mine.close(Duration.ZERO);
    assertEquals(null, Job.outcome(patient.task));
    Fails.with(Status.CLOSED, barrier::join);
  }
}

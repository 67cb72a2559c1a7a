package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** The collector takes only objects that dsgd does not use; calls on closed objects throw. */
class LifetimeTest {
  @Test
  void memoryOutlivesItsSession() throws Exception {
    FloatBuffer value = valueOfAClosedSession();
    Collector.collectAll();
    assertEquals(3, value.get(1000), "still mapped");
    value.put(0, 5);
    assertEquals(5, value.get(0));
  }

  private static FloatBuffer valueOfAClosedSession() throws Exception {
    try (Session session = Job.alone()) {
      Memory memory =
          session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 100_000));
      memory.value().putFloat(4000, 3);
      return memory.value().asFloatBuffer(); // a view of a view is all that is left
    }
  }

  @Test
  void memoryOutlivesItsParameterReplicaAndForgottenSession() throws Exception {
    List<FloatBuffer> values = new ArrayList<>();
    WeakReference<Session> session = forgottenSession(values);
    Collector.collectUntil(() -> session.get() == null);
    Collector.collectAll();
    assertEquals(2, values.get(0).get(0));
  }

  private static WeakReference<Session> forgottenSession(List<FloatBuffer> values) throws Exception {
    Session session = Job.alone();
    Memory memory = session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 10));
    memory.value().putFloat(0, 2);
    values.add(memory.value().asFloatBuffer());
    return new WeakReference<>(session);
  }

  @Test
  void objectDataOutlivesObjectAndSession() throws Exception {
    ByteBuffer data;
    try (Session session = Job.alone()) {
      session.putObject("words", new byte[] {1, 2, 3});
      data = session.getObject("words").data();
    }
    Collector.collectAll();
    assertEquals(3, data.get(2));
  }

  @Test
  @SuppressWarnings("try") // close() is what is tested
  void boundBuffersStayReachableUntilTheSessionCloses() throws Exception {
    try (Session session = Job.alone()) {
      Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
      Replica replica = session.addReplica();
      WeakReference<FloatBuffer> first = bindDropped(replica, weight);
      Collector.collectAll();
      assertNotNull(first.get(), "bound");
      WeakReference<FloatBuffer> second = bindDropped(replica, weight);
      Collector.collectUntil(() -> first.get() == null); // others were bound
      session.setOptimizer("sgd", "lr=1");
      session.start();
      session.step(1); // reads and writes what only the binding holds
      assertEquals(-3, second.get().get(0));
      session.close();
      Collector.collectUntil(() -> second.get() == null);
      Reference.reachabilityFence(replica);
    }
  }

  private static WeakReference<FloatBuffer> bindDropped(Replica replica, Parameter weight) throws Exception {
    FloatBuffer value = Job.floats(0, 0);
    replica.bind(weight, value, Job.floats(3, 3));
    return new WeakReference<>(value);
  }

  @Test
  void buffersInFlightStayReachableUntilTheOperationEnds() throws Exception {
    try (Head head = Job.head(2)) {
      Config config = Job.worker(head, 2);
      CompletableFuture<Session> other = Job.async(() -> Dsgd.init(config));
      try (Session mine = Dsgd.init(config);
          Session theirs = other.join()) {
        WeakReference<IntBuffer> buffer = reduceDropped(mine);
        Collector.collectAll();
        assertNotNull(buffer.get(), "dsgd will write to it");
        IntBuffer data = Job.ints(4);
        theirs.allReduce(data, Reduction.SUM);
        assertEquals(11, data.get(0));
        Collector.collectUntil(() -> buffer.get() == null);
      }
    }
  }

  private static WeakReference<IntBuffer> reduceDropped(Session session) throws Exception {
    IntBuffer data = Job.ints(7);
    session.allReduceAsync(data, Reduction.SUM); // the operation is dropped too
    return new WeakReference<>(data);
  }

  @Test
  void forgottenSessionLeavesTheJob() throws Exception {
    try (Head head = Job.head(2)) {
      Config config = Job.worker(head, 2);
      CompletableFuture<WeakReference<Session>> other =
          Job.async(() -> new WeakReference<>(Dsgd.init(config)));
      try (Session mine = Dsgd.init(config)) {
        WeakReference<Session> forgotten = other.join();
        Operation<Void> barrier = mine.barrierAsync();
        Collector.collectUntil(() -> forgotten.get() == null && barrier.isDone());
        Fails.with(Status.WORKER_LOST, barrier::join);
      }
    }
  }

  @Test
  void everythingMayBeForgottenAtOnce() throws Exception {
    for (int i = 0; i < 20; i++) {
      forgetEverything();
    }
    Collector.collectAll();
  }

  private static void forgetEverything() throws Exception {
    Session session = Job.alone();
    session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 10));
    session.putObject("words", new byte[3]);
    session.getObject("words");
    session.shard(10, 1).next(3);
    session.barrierAsync();
    new Config();
    Job.head(1);
  }

  @Test
  void everythingMayBeClosedInAnyOrderAndTwice() throws Exception {
    Session session = Job.alone();
    Shard shard = session.shard(10, 1);
    Operation<Void> barrier = session.barrierAsync();
    session.close();
    session.close(Duration.ZERO);
    shard.close();
    shard.close();
    barrier.join(); // a barrier of one had ended before close
    Fails.with(Status.CLOSED, () -> shard.next(1));
  }

  @Test
  void everyCallOnAClosedSessionIsRefused() throws Exception {
    Session session = Job.alone();
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    Replica replica = session.addReplica();
    Memory memory = replica.alloc(weight);
    session.close();
    Executable[] calls = {
      session::rank,
      session::size,
      session::localRank,
      session::localSize,
      session::view,
      () -> session.abort("late"),
      () -> session.addParameter("another", DType.FLOAT32, 1),
      session::addReplica,
      () -> session.setOptimizer("sgd", null),
      () -> session.setLearningRate(1),
      () -> session.setStrategy("ps"),
      session::start,
      () -> session.step(1),
      () -> session.beginStep(1),
      session::flushStep,
      session::requestStop,
      session::digest,
      () -> session.allReduce(Job.floats(1), Reduction.SUM),
      () -> session.broadcastAsync(Job.floats(1), 0),
      () -> session.allGather(Job.floats(1), Job.floats(1)),
      () -> session.reduceScatter(Job.floats(1), Job.floats(1), Reduction.SUM, 1),
      session::barrier,
      () -> session.putObject("words", new byte[1]),
      () -> session.getObject("words"),
      () -> session.shard(10, 1),
      session::queueFd,
      () -> weight.set("frozen=1"),
      () -> replica.alloc(weight),
      () -> replica.bind(weight, Job.floats(1), Job.floats(1)),
      () -> replica.exportValue(weight),
      () -> replica.setWeight(1),
      () -> replica.ready(weight),
      () -> replica.absent(weight),
    };
    for (int i = 0; i < calls.length; i++) {
      DsgdException e = Fails.with(Status.CLOSED, calls[i], "call " + i);
      assertEquals(Status.CLOSED, e.status());
    }
    assertEquals("weight", weight.name());
    assertEquals(0, memory.value().getFloat(0));
  }

  @Test
  void closeEndsACallOfAnotherThread() throws Exception {
    try (Head head = Job.head(2)) {
      Config config = Job.worker(head, 2);
      CompletableFuture<Session> other = Job.async(() -> Dsgd.init(config));
      try (Session mine = Dsgd.init(config);
          Session theirs = other.join()) {
        CompletableFuture<Void> blocked = Job.start(mine::barrier);
        CompletableFuture<Void> closing = Job.async(() -> mine.close(Duration.ZERO));
        closing.join();
        Throwable e =
            assertThrows(java.util.concurrent.CompletionException.class, blocked::join).getCause();
        assertTrue(Fails.is(e, Status.CLOSED), "" + e);
        Fails.with(
            Status.WORKER_LOST,
            () -> {
              theirs.barrier(); // ends well if the other one's call was on its way before it closed
              theirs.barrier();
            });
      }
    }
  }

  @Test
  void sessionsMayBeOpenedAgain() throws Exception {
    for (int i = 0; i < 10; i++) {
      try (Session first = Job.alone();
          Session second = Job.alone()) {
        assertEquals(first.size(), second.size());
      }
    }
  }

  @Test
  void handleIsFreedOnceAfterTheLastCall() throws Exception {
    AtomicInteger frees = new AtomicInteger();
    Handle handle = new Handle(7, "the thing", pointer -> frees.addAndGet((int) pointer));
    assertEquals(7, handle.acquire());
    assertTrue(handle.close());
    assertEquals(0, frees.get(), "a call is using it");
    Fails.with(Status.CLOSED, handle::acquire);
    handle.release();
    assertEquals(7, frees.get());
    handle.close();
    assertEquals(7, frees.get());
  }

}

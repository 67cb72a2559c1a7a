package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Several workers, each a session of this process. */
class JobTest {
  @Test
  void everyWorkerHasItsRank() throws Exception {
    Set<Integer> ranks = ConcurrentHashMap.newKeySet();
    Job.run(
        3,
        session -> {
          assertEquals(3, session.size());
          assertEquals(3, session.localSize());
          ranks.add(session.rank());
          session.barrier();
        });
    assertEquals(Set.of(0, 1, 2), ranks);
  }

  /** Runs a worker whose body throws this exception, which then leaves run. */
  private static void throwInRun(Config worker, IOException failure) {
    assertSame(
        failure,
        assertThrows(
            IOException.class,
            () ->
                Dsgd.run(
                    worker,
                    session -> {
                      throw failure;
                    })));
  }

  @Test
  void anExceptionThatLeavesRunAbortsTheJob() throws Exception {
    try (Head head = Job.head(2);
        Config one = Job.worker(head, 2, "rank", "0");
        Config other = Job.worker(head, 2, "rank", "1")) {
      FutureTask<DsgdException> waiting =
          new FutureTask<>(
              () ->
                  assertThrows(DsgdException.class, () -> Dsgd.run(one, session -> session.barrier())));
      new Thread(waiting).start();
      throwInRun(other, new IOException("no\0 data"));
      DsgdException heard = waiting.get(60, TimeUnit.SECONDS);
      assertEquals(Status.ABORTED, heard.status());
      assertEquals(1, heard.rank());
      assertTrue(heard.getMessage().contains("failed: java.io.IOException: no data"), heard.getMessage());
    }
  }

  @Test
  void anExceptionThatLeavesRunOfAnElasticJobLosesThisWorkerOnly() throws Exception {
    try (Config of = Job.config("head", "127.0.0.1:0", "num_workers", "2", "min_workers", "1");
        Head head = Head.start(of);
        Config one = Job.worker(head, 2, "rank", "0", "min_workers", "1");
        Config other = Job.worker(head, 2, "rank", "1", "min_workers", "1")) {
      FutureTask<Integer> staying =
          new FutureTask<>(
              () -> {
                int[] size = new int[1];
                Dsgd.run(
                    one,
                    session -> {
                      DsgdException heard = assertThrows(DsgdException.class, session::barrier);
                      assertEquals(Status.VIEW_CHANGED, heard.status());
                      assertTrue(
                          heard.getMessage().contains("failed: java.io.IOException: no data"),
                          heard.getMessage());
                      size[0] = session.size();
                    });
                return size[0];
              });
      new Thread(staying).start();
      throwInRun(other, new IOException("no data"));
      assertEquals(1, staying.get(60, TimeUnit.SECONDS));
    }
  }

  @Test
  void runThrowsTheExceptionOfItsBodyWhateverBecomesOfTheSession() throws Exception {
    RuntimeException unprintable =
        new RuntimeException() {
          @Override
          public String toString() {
            throw new IllegalStateException();
          }
        };
    assertSame(
        unprintable,
        assertThrows(
            RuntimeException.class,
            () ->
                Dsgd.run(
                    session -> {
                      throw unprintable;
                    })));
    assertThrows(
        IOException.class,
        () ->
            Dsgd.run(
                session -> {
                  session.close();
                  throw new IOException();
                }));
  }

  @Test
  void runWaitsForOperationsInFlightLongerThanTheEndOfATry() throws Exception {
    List<Operation<Void>> begun = Collections.synchronizedList(new ArrayList<>());
    Job.run(
        2,
        session -> {
          if (session.rank() == 1) {
            Thread.sleep(1500);
          }
          begun.add(session.allReduceAsync(ints(1), Reduction.SUM));
        });
    for (Operation<Void> operation : begun) {
      operation.join();
    }
  }

  @Test
  void channelsNeedNoCommonOrder() throws Exception {
    Job.run(
        2,
        session -> {
          Channel[] channels = {session.channel(1), session.channel(2).withTimeout(Duration.ofMinutes(1))};
          IntBuffer[] data = {ints(1), ints(2)};
          int first = session.rank(); // no common order
          int second = 1 - first;
          Operation<Void> one = channels[first].allReduceAsync(data[first], Reduction.SUM);
          Operation<Void> two = channels[second].allReduceAsync(data[second], Reduction.SUM);
          session.barrier();
          one.join();
          two.join();
          assertEquals(2, data[0].get(0));
          assertEquals(4, data[1].get(0));
          Fails.with(Status.INVALID_ARGUMENT, () -> session.channel(4).barrier());
          Channel streamed = session.channel(1).withStream(1).withTimeout(Duration.ofMinutes(1));
          DsgdException refused =
              Fails.with(Status.INVALID_ARGUMENT, () -> streamed.allReduce(data[0], Reduction.SUM));
          assertTrue(refused.getMessage().contains("a stream is given"), refused.getMessage());
        });
  }

  private static IntBuffer ints(int value) {
    return ByteBuffer.allocateDirect(4).order(ByteOrder.nativeOrder()).asIntBuffer().put(0, value);
  }

  @ParameterizedTest
  @ValueSource(strings = {"simple", "ps", "allreduce"})
  void everyStrategyTakesTheWeightedMean(String strategy) throws Exception {
    Map<Integer, Long> digests = new ConcurrentHashMap<>();
    Job.run(
        2,
        session -> {
          Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
          Memory memory = session.addReplica().alloc(weight);
          FloatBuffer value = memory.value().asFloatBuffer();
          FloatBuffer gradient = memory.gradient().asFloatBuffer();
          value.put(0, session.rank() == 0 ? 10 : -99);
          session.setOptimizer("sgd", "lr=1");
          session.setStrategy(strategy);
          session.start();
          assertEquals(10, value.get(0), "rank 0's initial value");
          gradient.put(0, session.rank() == 0 ? 8 : 4).put(1, 1);
          StepResult result = session.step(session.rank() == 0 ? 1 : 3);
          assertEquals(
              new StepResult(0, session.view(), 2, true, false, false, 4, result.gradientNorm(), 0, -1, false)
                  .toString(),
              result.toString());
          assertArrayEquals(new float[] {5, -1}, Job.array(value), "10 - (1 * 8 + 3 * 4) / 4");
          session.setStrategy("allreduce", "algorithm=ring");
          session.step(1);
          assertArrayEquals(new float[] {-1, -2}, Job.array(value), "5 - (8 + 4) / 2");
          digests.put(session.rank(), session.digest());
        });
    assertEquals(digests.get(0), digests.get(1));
  }

  @Test
  void unevenWorkEndsTogether() throws Exception {
    Job.run(
        2,
        session -> {
          Memory memory =
              session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 1));
          session.setOptimizer("sgd", "lr=1");
          session.start();
          memory.gradient().putFloat(0, 1);
          int batches = session.rank() == 0 ? 1 : 3;
          int steps = 0;
          while (true) {
            StepResult result = session.step(steps < batches ? 1 : 0);
            if (result.allDone()) {
              break;
            }
            steps++;
          }
          assertEquals(3, steps);
          assertEquals(-3, memory.value().getFloat(0));
        });
  }

  @Test
  void optimizerNoneGivesTheMeanGradient() throws Exception {
    Job.run(
        2,
        session -> {
          Parameter weight = session.addParameter("weight", DType.FLOAT64, 1);
          DoubleBuffer value = Job.doubles(7);
          DoubleBuffer gradient = Job.doubles(session.rank() == 0 ? 1 : 4);
          session.addReplica().bind(weight, value, gradient);
          session.setOptimizer("none", null);
          session.start();
          session.step(session.rank() + 1);
          assertEquals(3, gradient.get(0), "(1 * 1 + 2 * 4) / 3");
          assertEquals(7, value.get(0));
        });
  }

  @Test
  void stopIsSeenByAllInTheSameStep() throws Exception {
    Job.run(
        2,
        session -> {
          session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 1));
          session.start();
          assertFalse(session.step(1).stop());
          session.barrier();
          if (session.rank() == 1) {
            session.requestStop();
          }
          assertTrue(session.step(1).stop());
        });
  }

  @Test
  void allReduceTakesEveryType() throws Exception {
    Job.run(
        2,
        session -> {
          int r = session.rank();
          FloatBuffer floats = Job.floats(1 + r, 2);
          session.allReduce(floats, Reduction.SUM);
          assertArrayEquals(new float[] {3, 4}, Job.array(floats));
          DoubleBuffer doubles = Job.doubles(r == 0 ? 1 : 2, 3);
          session.allReduce(doubles, Reduction.MEAN);
          assertArrayEquals(new double[] {1.5, 3}, Job.array(doubles));
          IntBuffer ints = Job.ints(r == 0 ? 5 : -5, Integer.MAX_VALUE);
          session.allReduce(ints, Reduction.MIN);
          assertArrayEquals(new int[] {-5, Integer.MAX_VALUE}, Job.array(ints));
          LongBuffer longs = Job.longs(3 + r, Long.MIN_VALUE);
          session.allReduce(longs, Reduction.MAX);
          assertArrayEquals(new long[] {4, Long.MIN_VALUE}, Job.array(longs));
          ByteBuffer bytes = Job.bytes(2).put(new byte[] {(byte) (15 + r), 2}).flip();
          ShortBuffer halves = Job.bytes(2).order(ByteOrder.nativeOrder()).asShortBuffer();
          halves.put(0, (short) 0x3c00); // 1
          session.allReduce(halves, Reduction.SUM);
          assertEquals((short) 0x4000, halves.get(0));
          session.allReduce(bytes, Reduction.PROD);
          assertEquals((byte) 240, bytes.get(0));
          assertEquals(4, bytes.get(1));
        });
  }

  @Test
  void collectivesMoveTheRightParts() throws Exception {
    Job.run(
        3,
        session -> {
          int r = session.rank();
          IntBuffer root = Job.ints(r, r);
          session.broadcast(root, 2);
          assertArrayEquals(new int[] {2, 2}, Job.array(root));

          IntBuffer gathered = Job.ints(0, 0, 0);
          session.allGather(Job.ints(10 + r), gathered);
          assertArrayEquals(new int[] {10, 11, 12}, Job.array(gathered));

          IntBuffer uneven = Job.ints(0, 0, 0);
          int[] mine = r == 0 ? new int[] {1, 2} : r == 1 ? new int[] {} : new int[] {3};
          session.allGather(Job.ints(mine), uneven, 2, 0, 1);
          assertArrayEquals(new int[] {1, 2, 3}, Job.array(uneven));

          LongBuffer part = Job.longs(0);
          session.reduceScatter(Job.longs(1, 2, 3), part, Reduction.SUM);
          assertEquals(3 * (r + 1), part.get(0));

          DoubleBuffer unevenPart =
              Job.doubles(
                  r == 1 ? new double[] {0, 0} : r == 0 ? new double[] {0} : new double[] {});
          session.reduceScatter(Job.doubles(1, 2, 3), unevenPart, Reduction.SUM, 1, 2, 0);
          assertArrayEquals(
              r == 0 ? new double[] {3} : r == 1 ? new double[] {6, 9} : new double[] {},
              Job.array(unevenPart));
          Fails.with(
              Status.INVALID_ARGUMENT,
              () -> session.allGather(Job.ints(1), Job.ints(0, 0, 0), 1, 1));
          session.barrier();
        });
  }

  private interface CountedCall {
    void run(Session session, long... elementCounts) throws Exception;
  }

  private static void amongThree(CountedCall call, Session session) throws Exception {
    while (true) {
      try {
        call.run(session, 1, 1, 1);
        return;
      } catch (DsgdException e) { // until the workers have agreed, and once more
        assertEquals(Status.VIEW_CHANGED, e.status(), e.toString());
      }
    }
  }

  private static void start(Session session) throws InterruptedException {
    session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 1));
    session.start();
  }

  /** Two workers make a call for two after a third has joined. */
  private static void callForAnEarlierView(CountedCall call) throws Exception {
    String[] views = {"num_workers", "2", "max_workers", "3"};
    CountDownLatch started = new CountDownLatch(2);
    try (Head head = Head.start(Job.config(views).set("head", "127.0.0.1:0"))) {
      List<CompletableFuture<Void>> workers = new ArrayList<>();
      for (int i = 0; i < 2; i++) {
        workers.add(
            Job.start(
                () ->
                    Dsgd.run(
                        Job.worker(head, 2, views),
                        session -> {
                          start(session);
                          started.countDown();
                          while (session.size() == 2) {
                            Thread.sleep(1);
                          }
                          Fails.with(Status.VIEW_CHANGED, () -> call.run(session, 1, 1));
                          amongThree(call, session);
                          DsgdException refused =
                              Fails.with(Status.INVALID_ARGUMENT, () -> call.run(session, 1, 1));
                          assertEquals(
                              "elementCounts has 2 numbers but there are 3 workers; pass one for each",
                              refused.getMessage());
                          session.barrier();
                        })));
      }
      assertTrue(started.await(30, TimeUnit.SECONDS));
      Dsgd.run(
          Job.worker(head, 2, views),
          session -> {
            start(session);
            amongThree(call, session);
            session.barrier();
          });
      for (CompletableFuture<Void> worker : workers) {
        worker.get(60, TimeUnit.SECONDS);
      }
    }
  }

  @Test
  void countsForAnEarlierViewFailWithTheChange() throws Exception {
    callForAnEarlierView(
        (session, counts) ->
            session.allGather(Job.ints(1), Job.ints(new int[counts.length]), counts));
    callForAnEarlierView(
        (session, counts) ->
            session.allGatherAsync(Job.ints(1), Job.ints(new int[counts.length]), counts).join());
    callForAnEarlierView(
        (session, counts) ->
            session.reduceScatter(
                Job.ints(new int[counts.length]), Job.ints(0), Reduction.SUM, counts));
  }

  @Test
  void objectsReachAllAndShardsCoverAll() throws Exception {
    Set<Long> seen = ConcurrentHashMap.newKeySet();
    Job.run(
        2,
        session -> {
          if (session.rank() == 1) {
            session.putObject("settings", "größe=3".getBytes("UTF-8"));
          }
          assertEquals("größe=3", new String(session.getObject("settings").toByteArray(), "UTF-8"));
          try (Shard shard = session.shard(11, 5)) {
            assertEquals(session.rank() == 0 ? 6 : 5, shard.size());
            for (long index : shard.next(11)) {
              assertTrue(seen.add(index), "index " + index + " came twice");
            }
          }
          session.barrier();
        });
    assertEquals(11, seen.size());
  }

  @Test
  void mismatchNamesBothSidesAndTheSessionGoesOn() throws Exception {
    Job.run(
        2,
        session -> {
          DsgdException e =
              Fails.with(
                  Status.MISMATCH,
                  () ->
                      session.allReduce(
                          session.rank() == 0 ? Job.floats(1) : Job.ints(1, 2), Reduction.SUM));
          assertTrue(
              e.getMessage().contains("float32") && e.getMessage().contains("int32"),
              e.getMessage());
          assertFalse(e.operation().isEmpty());
          session.barrier();
        });
  }

  @Test
  void startRefusesUnequalModels() throws Exception {
    Job.run(
        2,
        session -> {
          Parameter weight = session.addParameter("weight", DType.FLOAT32, 2 + session.rank());
          session.addReplica().alloc(weight);
          DsgdException e = Fails.with(Status.MISMATCH, session::start);
          assertEquals("weight", e.parameter());
        });
  }

  @Test
  void abortReachesEveryOperation() throws Exception {
    Job.run(
        2,
        session -> {
          if (session.rank() == 0) {
            session.abort("the loss is NaN");
            Fails.with(Status.ABORTED, session::barrier);
          } else {
            DsgdException e = Fails.with(Status.ABORTED, session::barrier);
            assertEquals(0, e.rank());
            assertTrue(e.getMessage().contains("the loss is NaN"), e.getMessage());
          }
        });
  }

  @Test
  void abortOfAnotherWorkerIsNotTakenForATimeout() throws Exception {
    Job.run(
        2,
        session -> {
          if (session.rank() == 0) {
            session.abort("the loss is NaN");
          } else {
            DsgdException e =
                Fails.with(
                    Status.ABORTED, () -> session.getObject("never", Duration.ofMinutes(10)));
            assertEquals(0, e.rank());
            assertTrue(e.getMessage().contains("the loss is NaN"), e.getMessage());
          }
        });
  }

  @Test
  void wrongTokenAndTakenAddressAreSaid() throws Exception {
    try (Head head =
        Head.start(Job.config("head", "127.0.0.1:0", "num_workers", "1", "token", "right"))) {
      Fails.with(
          Status.UNAUTHORIZED,
          () -> Dsgd.init(Job.worker(head, 1, "token", "wrong", "embed_head", "never")));
      Fails.with(
          Status.ADDRESS_IN_USE, () -> Head.start(Job.config("head", head.address())));
      Fails.with(
          Status.MISMATCH,
          () -> Dsgd.init(Job.worker(head, 2, "token", "right", "init_timeout", "10s")));
    }
  }

  @Test
  void missingWorkersAreCounted() throws Exception {
    try (Head head = Job.head(2)) {
      DsgdException e =
          Fails.with(
              Status.TIMEOUT,
              () -> Dsgd.init(Job.worker(head, 2, "init_timeout", "200ms")));
      assertTrue(e.getMessage().contains("1 of 2"), e.getMessage());
    }
  }

  @Test
  void unreachableHeadIsNamed() throws Exception {
    DsgdException e =
        Fails.with(
            Status.UNREACHABLE,
            () ->
                Dsgd.init(
                    Job.config(
                        "head",
                        "127.0.0.1:1",
                        "num_workers",
                        "2",
                        "embed_head",
                        "never",
                        "init_timeout",
                        "300ms")));
    assertTrue(e.getMessage().contains("127.0.0.1:1"), e.getMessage());
  }

  @Test
  void headTellsWhenTheJobHasEnded() throws Exception {
    try (Head head = Job.head(1)) {
      assertFalse(head.await(Duration.ofMillis(1)));
      Session session = Dsgd.init(Job.worker(head, 1));
      assertFalse(head.await(Duration.ZERO));
      session.close();
      assertTrue(head.await(Duration.ofSeconds(30)));
    }
  }

  @Test
  void closingTheHeadEndsAWait() throws Exception {
    Head head = Job.head(1);
    FutureTask<Void> wait =
        new FutureTask<>(
            () -> {
              head.await(null);
              return null;
            });
    Thread thread = new Thread(wait);
    thread.start();
    head.close();
    head.close();
    assertTrue(Fails.is(Job.outcome(wait), Status.CLOSED));
    Fails.with(Status.CLOSED, head::address);
  }

  @Test
  void interruptEndsAWaitForTheHead() throws Exception {
    try (Head head = Job.head(1)) {
      FutureTask<Void> wait =
          new FutureTask<>(
              () -> {
                head.await(null);
                return null;
              });
      Thread thread = new Thread(wait);
      thread.start();
      thread.interrupt();
      assertTrue(Job.outcome(wait) instanceof InterruptedException);
    }
  }
}

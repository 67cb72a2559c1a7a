package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.IntBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;

class OperationTest {
  /** Two workers of one job, driven by one thread: only operations can do that. */
  private interface Pair {
    void with(Session zero, Session one) throws Exception;
  }

  private static void pair(Pair body) throws Exception {
    try (Head head = Job.head(2)) {
      Config config = Job.worker(head, 2);
      CompletableFuture<Session> other = Job.async(() -> Dsgd.init(config));
      try (Session mine = Dsgd.init(config);
          Session theirs = other.join()) {
        body.with(mine.rank() == 0 ? mine : theirs, mine.rank() == 0 ? theirs : mine);
      }
    }
  }

  @Test
  void futuresCompleteOnEveryWorker() throws Exception {
    pair(
        (zero, one) -> {
          IntBuffer a = Job.ints(1, 2);
          IntBuffer b = Job.ints(10, 20);
          Operation<Void> first = zero.allReduceAsync(a, Reduction.SUM);
          Operation<Void> second = one.allReduceAsync(b, Reduction.SUM);
          CompletableFuture.allOf(first.future(), second.future()).join();
          assertEquals(22, a.get(1));
          assertEquals(11, b.get(0));
          assertTrue(first.isDone() && second.isDone());
          first.join(); // again
          assertTrue(first.await(Duration.ZERO));
        });
  }

  @Test
  void manyInFlightEndEachWithItsOwnResult() throws Exception {
    pair(
        (zero, one) -> {
          List<IntBuffer> buffers = new ArrayList<>();
          List<Operation<Void>> operations = new ArrayList<>();
          for (int i = 0; i < 200; i++) {
            buffers.add(Job.ints(i));
            operations.add(zero.allReduceAsync(buffers.get(i), Reduction.SUM));
          }
          List<Operation<Void>> others = new ArrayList<>();
          for (int i = 0; i < 200; i++) {
            others.add(one.allReduceAsync(Job.ints(1000), Reduction.SUM));
          }
          for (int i = 0; i < 200; i++) {
            operations.get(i).join();
            assertEquals(1000 + i, buffers.get(i).get(0));
          }
          for (Operation<Void> operation : others) {
            operation.join();
          }
          assertEquals(200, operations.stream().map(Operation::id).distinct().count());
        });
  }

  @Test
  void everyCollectiveHasAnOperation() throws Exception {
    pair(
        (zero, one) -> {
          IntBuffer a = Job.ints(1, 2);
          IntBuffer b = Job.ints(3, 4);
          both(zero.broadcastAsync(a, 1), one.broadcastAsync(b, 1));
          assertEquals(4, a.get(1));
          IntBuffer gathered = Job.ints(0, 0, 0, 0);
          both(
              zero.allGatherAsync(Job.ints(5, 6), gathered),
              one.allGatherAsync(Job.ints(7, 8), Job.ints(0, 0, 0, 0)));
          assertEquals(8, gathered.get(3));
          IntBuffer part = Job.ints(0);
          both(
              zero.reduceScatterAsync(Job.ints(1, 2), part, Reduction.SUM),
              one.reduceScatterAsync(Job.ints(1, 2), Job.ints(0), Reduction.SUM));
          assertEquals(2, part.get(0));
          both(zero.barrierAsync(), one.barrierAsync());
        });
  }

  private static void joined(Operation<Void> operation) {
    try {
      operation.join();
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  private static void both(Operation<Void> first, Operation<Void> second) throws Exception {
    first.join();
    second.join();
  }

  @Test
  void waitThatRunsOutLeavesTheOperationRunning() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> barrier = zero.barrierAsync();
          assertFalse(barrier.await(Duration.ZERO));
          assertFalse(barrier.await(Duration.ofNanos(1)));
          assertFalse(barrier.isDone());
          one.barrierAsync().join();
          assertTrue(barrier.await(Duration.ofSeconds(30)));
        });
  }

  @Test
  void failureComesThroughEveryWayOfWaiting() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> barrier = zero.barrierAsync();
          one.abort("enough");
          CompletionException future =
              assertThrows(CompletionException.class, barrier.future()::join);
          assertTrue(Fails.is(future.getCause(), Status.ABORTED));
          DsgdException e = Fails.with(Status.ABORTED, barrier::join);
          assertEquals(1, e.rank());
          assertTrue(e.getMessage().contains("enough"), e.getMessage());
          DsgdException again =
              Fails.with(Status.ABORTED, () -> barrier.await(Duration.ofSeconds(1)));
          assertNotSame(e, again, "each with the stack of its own thread");
          assertSame(e.getCause(), again.getCause());
        });
  }

  @Test
  void hostCannotEndTheOperationThroughItsFuture() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> barrier = zero.barrierAsync();
          barrier.future().cancel(true);
          barrier.future().complete(null);
          assertFalse(barrier.isDone());
          one.barrierAsync().join();
          barrier.join();
        });
  }

  @Test
  void blockingInsideAnActionIsRefusedBeforeItBegins() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> first = zero.barrierAsync();
          CompletableFuture<Void> action =
              first
                  .future()
                  .thenRun(
                      () -> {
                        try {
                          zero.barrier();
                        } catch (InterruptedException e) {
                          throw new AssertionError(e);
                        }
                      });
          one.barrierAsync().join();
          CompletionException e = assertThrows(CompletionException.class, action::join);
          assertTrue(Fails.is(e.getCause(), Status.STATE));
          // With a barrier begun before, this would disagree.
          IntBuffer data = Job.ints(1);
          both(
              zero.allReduceAsync(data, Reduction.SUM),
              one.allReduceAsync(Job.ints(2), Reduction.SUM));
          assertEquals(3, data.get(0));
        });
  }

  @Test
  void waitingInsideAnActionIsRefused() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> first = zero.barrierAsync();
          CompletableFuture<Void> action = first.future().thenRun(() -> joined(zero.barrierAsync()));
          one.barrierAsync().join();
          CompletionException e = assertThrows(CompletionException.class, action::join);
          assertTrue(Fails.is(e.getCause(), Status.STATE));
          assertTrue(e.getCause().getMessage().contains("thenCompose"), e.getCause().getMessage());
          one.barrier(); // the second barrier of `zero` is on its way
          Operation<Void> third = zero.barrierAsync();
          CompletableFuture<Void> chained =
              third.future().thenCompose(nothing -> zero.barrierAsync().future());
          one.barrier();
          one.barrier();
          chained.join();
        });
  }

  @Test
  void operationsEndWhenTheSessionCloses() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> barrier = zero.barrierAsync();
          zero.close(Duration.ZERO);
          Fails.with(Status.CLOSED, barrier::join);
          Fails.with(Status.CLOSED, zero::barrierAsync);
        });
  }

  @Test
  void interruptEndsAWaitAndNotTheOperation() throws Exception {
    pair(
        (zero, one) -> {
          Operation<Void> barrier = zero.barrierAsync();
          Thread.currentThread().interrupt();
          assertThrows(InterruptedException.class, () -> barrier.await(Duration.ofSeconds(30)));
          one.barrierAsync().join();
          barrier.join();
        });
  }

  @Test
  void gradientsAreMarkedFromManyThreads() throws Exception {
    pair(
        (zero, one) -> {
          List<Operation<StepResult>> steps = new ArrayList<>();
          List<Memory> memories = new ArrayList<>();
          List<CompletableFuture<Void>> starts = new ArrayList<>();
          List<Runnable> marks = new ArrayList<>();
          for (Session session : List.of(zero, one)) {
            Replica replica = session.addReplica();
            for (int i = 0; i < 20; i++) {
              Parameter parameter = session.addParameter("layer" + i, DType.FLOAT32, 5);
              memories.add(replica.alloc(parameter));
              marks.add(() -> replica.ready(parameter));
            }
            session.setOptimizer("sgd", "lr=1");
            starts.add(Job.start(session::start));
          }
          starts.forEach(CompletableFuture::join);
          for (Session session : List.of(zero, one)) {
            steps.add(session.beginStep(1));
          }
          memories.forEach(memory -> memory.gradient().putFloat(16, 2));
          marks.parallelStream().forEach(Runnable::run);
          for (Operation<StepResult> step : steps) {
            assertEquals(2, step.future().join().weight());
          }
          memories.forEach(memory -> assertEquals(-2, memory.value().getFloat(16)));
        });
  }

  @Test
  @EnabledForJreRange(min = JRE.JAVA_21)
  void virtualThreadsGetTheirOwnErrors() throws Exception {
    ExecutorService virtual =
        (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    try (Session session = Job.alone()) {
      List<Future<String>> messages = new ArrayList<>();
      for (int i = 0; i < 500; i++) {
        String name = "key" + i;
        messages.add(
            virtual.submit(
                () -> {
                  Thread.yield();
                  DsgdException e =
                      Fails.with(
                          Status.NOT_FOUND,
                          () -> new Config().load(java.nio.file.Path.of(name)));
                  session.allReduceAsync(Job.ints(1), Reduction.SUM).join();
                  return e.getMessage();
                }));
      }
      for (int i = 0; i < 500; i++) {
        assertTrue(messages.get(i).get().contains("key" + i), messages.get(i).get());
      }
    } finally {
      virtual.shutdownNow();
    }
  }

  @Test
  void platformThreadsGetTheirOwnErrors() throws Exception {
    var seen = new ConcurrentHashMap<String, String>();
    try (Session session = Job.alone()) {
      List<Thread> threads = new ArrayList<>();
      for (int t = 0; t < 8; t++) {
        int thread = t;
        threads.add(
            new Thread(
                () -> {
                  for (int i = 0; i < 200; i++) {
                    String name = "strategy-" + thread + "-" + i;
                    DsgdException e =
                        Fails.with(
                            Status.INVALID_ARGUMENT, () -> session.setStrategy(name));
                    seen.put(name, e.getMessage());
                  }
                }));
        threads.get(t).start();
      }
      for (Thread thread : threads) {
        thread.join();
      }
    }
    assertEquals(1600, seen.size());
    seen.forEach((name, message) -> assertTrue(message.contains("'" + name + "'"), message));
    assertNotEquals(seen.get("strategy-0-0"), seen.get("strategy-1-0"));
  }
}

package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** One worker alone: everything but the network. */
class SessionTest {
  private final Session session = Job.alone("log_level", "debug", "gradient_norm", "1");

  SessionTest() throws Exception {}

  @AfterEach
  void close() throws Exception {
    session.close();
  }

  @Test
  void messagesUseTheNamesOfJava() throws Exception {
    Session closed = Dsgd.init();
    DsgdException early = Fails.with(Status.STATE, () -> closed.step(1));
    assertTrue(early.getMessage().contains("a step needs Session.start first"), early.toString());
    closed.close();
    String text = "dsgd_bind: parameter 'dsgd_step' of dsgd_alloc, '/tmp/dsgd_init', DSGD_HEAD, dsgd_new";
    assertEquals(
        "Replica.bind: parameter 'dsgd_step' of Replica.alloc, '/tmp/dsgd_init', DSGD_HEAD, dsgd_new",
        DsgdException.inJava(text));
  }

  @Test
  void statusesAreThoseOfTheLibrary() throws Exception {
    int known = 0;
    for (int code = -1; code > -100; code--) {
      String name = Raw.dsgd_status_name(code);
      Status status = Status.of(code);
      assertEquals("DSGD_ERR_" + status, name);
      known += status == Status.UNKNOWN ? 0 : 1;
      DsgdException e = DsgdException.of(code, 2, "node7", "step 17", "weight", "rank 2 is gone");
      assertEquals(status, e.status());
      assertEquals(code, e.code());
      assertEquals(status == Status.WORKER_LOST, e instanceof DsgdException.WorkerLost);
      assertEquals(status == Status.TIMEOUT, e instanceof DsgdException.Timeout);
      assertEquals(status == Status.MISMATCH, e instanceof DsgdException.Mismatch);
    }
    assertEquals(Status.values().length - 1, known);
    for (DType type : DType.values()) {
      assertEquals(Raw.dsgd_dtype_size(type.code), type.size(), type.toString());
    }
  }

  @Test
  void aloneIsRankZeroOfOne() throws Exception {
    assertEquals(0, session.rank());
    assertEquals(1, session.size());
    assertEquals(0, session.localRank());
    assertEquals(1, session.localSize());
    assertTrue(session.view() >= 0);
    assertTrue(session.queueFd() >= 0);
  }

  @Test
  void unknownCapabilitiesAreNotThere() throws Exception {
    assertFalse(Dsgd.capability("warp drive"));
  }

  @Test
  void toStringDescribesTheObject() throws Exception {
    assertEquals("Session[rank 0 of 1, JOINED]", session.toString());
    Replica replica = session.addReplica();
    assertEquals("Replica[cpu]", replica.toString());
    Operation<Void> barrier = session.barrierAsync();
    barrier.join();
    assertEquals("Operation[" + barrier.id() + ", done]", barrier.toString());
    session.close();
    assertEquals("Session[rank 0 of 1, CLOSED]", session.toString());
    assertEquals("Replica[CLOSED]", replica.toString());
  }

  @Test
  void infoFollowsTheSession() throws Exception {
    SessionInfo joined = session.info();
    assertEquals(SessionState.JOINED, joined.state());
    assertEquals(0, joined.rank());
    assertEquals(1, joined.size());
    assertEquals(0, joined.localRank());
    assertEquals(1, joined.localSize());
    assertEquals(1, joined.replicas());
    assertEquals(session.view(), joined.view());
    assertTrue(joined.id() > 0);
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    session.addReplica().alloc(weight);
    session.start();
    session.step(1);
    assertEquals(SessionState.STARTED, session.info().state());
    assertEquals(1, session.info().steps());
    assertEquals(1.0, session.metrics().get("dsgd_steps_total"));
    assertEquals(1.0, session.metrics().get("dsgd_calls_total{call=\"start\"}"));
    assertTrue(session.metricsText().endsWith("# EOF\n"));
    assertTrue(session.trace().contains("\"name\":\"step\""));
    session.close();
    assertEquals(SessionState.CLOSED, session.info().state());
    assertEquals(
        joined.toString().replace("steps=0", "steps=1").replace("JOINED", "CLOSED"),
        session.info().toString());
  }

  @Test
  void gradientsAreMarkedAllOrNone() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    Parameter other = session.addParameter("other", DType.FLOAT32, 1);
    Replica replica = session.addReplica();
    Memory a = replica.alloc(weight);
    replica.alloc(other);
    session.setOptimizer("sgd", "lr=1");
    session.start();
    Operation<StepResult> step = session.beginStep(1);
    a.gradient().putFloat(0, 3);
    Fails.with(Status.STATE, () -> replica.ready(List.of(weight, other, weight)));
    replica.ready(List.of(weight, other));
    assertEquals(0, step.join().step());
    assertEquals(-3, a.value().getFloat(0));
  }

  @Test
  void stateMayBeSignedBytesOrUnsignedLongs() throws Exception {
    Parameter small = session.addUntrained("small", DType.INT8, 2);
    Parameter large = session.addUntrained("large", DType.UINT64, 2);
    Replica replica = session.addReplica();
    ByteBuffer bytes = ByteBuffer.allocateDirect(2);
    LongBuffer longs =
        ByteBuffer.allocateDirect(16).order(java.nio.ByteOrder.nativeOrder()).asLongBuffer();
    replica.bind(small, bytes, null);
    replica.bind(large, longs, null);
    bytes.put(0, (byte) -1);
    longs.put(0, -1);
    session.start();
    assertEquals(-1, bytes.get(0));
    assertEquals(-1, longs.get(0));
    assertEquals(1, DType.INT8.size());
    assertEquals(8, DType.UINT64.size());
  }

  @Test
  void arraysKeepTypeAndShape() throws Exception {
    ByteBuffer bytes = ByteBuffer.allocateDirect(24).order(ByteOrder.nativeOrder());
    FloatBuffer elements = bytes.asFloatBuffer().put(new float[] {1, 2, 3, 4, 5, 6}).flip();
    session.putObject("array", elements, DType.FLOAT32, 2, 3);
    SharedObject array = session.getObject("array");
    assertEquals(DType.FLOAT32, array.dtype());
    assertArrayEquals(new long[] {2, 3}, array.shape());
    assertEquals(elements, array.data().asFloatBuffer());
    session.putObject(
        "scalar",
        ByteBuffer.allocateDirect(8).order(ByteOrder.nativeOrder()),
        DType.INT64);
    assertEquals(DType.INT64, session.getObject("scalar").dtype());
    assertEquals(0, session.getObject("scalar").shape().length);
    session.putObject("bytes", new byte[] {1, 2});
    assertNull(session.getObject("bytes").dtype());
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.putObject("wrong", elements, DType.FLOAT32, 2, 2));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.putObject("wrong", elements, DType.FLOAT64, 3));
  }

  @Test
  void deletedNameCanBePutAgain() throws Exception {
    session.putObject("x", ByteBuffer.allocateDirect(1));
    session.deleteObject("x");
    Fails.with(Status.NOT_FOUND, () -> session.deleteObject("x"));
    session.putObject("x", ByteBuffer.allocateDirect(2));
    assertEquals(2, session.getObject("x").data().remaining());
  }

  @Test
  void checkpointIsSavedAndLoaded(@org.junit.jupiter.api.io.TempDir java.nio.file.Path folder) throws Exception {
    Replica replica = session.addReplica("cpu");
    Memory memory = replica.alloc(session.addParameter("w", DType.FLOAT32, 1));
    session.start();
    try (Shard shard = session.shard(100, 1)) {
      shard.epoch(3);
      shard.next(10);
      memory.gradient().asFloatBuffer().put(0, 1f);
      session.step(1);
      float saved = memory.value().asFloatBuffer().get(0);
      Operation<Void> save = session.saveCheckpointAsync(folder.toString());
      session.step(1);
      save.join();
      assertNotEquals(saved, memory.value().asFloatBuffer().get(0));
      shard.next(10);
      session.loadCheckpoint(folder.toString());
      assertEquals(saved, memory.value().asFloatBuffer().get(0));
      assertEquals(1, session.info().steps());
      assertEquals(3, shard.epoch());
      assertEquals(10, shard.position());
      session.step(1);
      session.saveCheckpoint(folder.toString());
    }
    Fails.with(Status.NOT_FOUND, () -> session.loadCheckpoint(folder + "/nothing"));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.loadCheckpoint(null));
  }

  @Test
  void shardGoesOnInMidEpoch() throws Exception {
    try (Shard shard = session.shard(10, 3)) {
      shard.next(4);
      assertEquals(4, shard.position());
      long[] rest = shard.next(6);
      assertEquals(10, shard.position());
      shard.seek(0, 4);
      assertArrayEquals(rest, shard.next(10));
      Fails.with(Status.INVALID_ARGUMENT, () -> shard.seek(0, 11));
      Fails.with(Status.INVALID_ARGUMENT, () -> shard.seek(0, -1));
    }
  }

  @Test
  void parameterTellsWhatItIs() throws Exception {
    Parameter weight = session.addParameter("größe-\uD83D\uDE00", DType.FLOAT64, 3, 4);
    assertEquals("größe-\uD83D\uDE00", weight.name());
    assertEquals(DType.FLOAT64, weight.type());
    assertArrayEquals(new long[] {3, 4}, weight.shape());
    assertEquals(12, weight.elements());
    assertTrue(weight.isTrained());
    assertEquals(1, session.addParameter("scalar", DType.FLOAT32).elements());
    assertEquals(0, session.addParameter("empty", DType.FLOAT32, 5, 0).elements());
    assertFalse(session.addUntrained("mean", DType.INT64, 2).isTrained());
  }

  @Test
  void typesHaveTheirSizes() throws Exception {
    assertArrayEquals(
        new int[] {4, 8, 4, 8, 1, 2, 2, 1, 8},
        java.util.Arrays.stream(DType.values()).mapToInt(DType::size).toArray());
  }

  @Test
  void badParametersAreRefused() throws Exception {
    session.addParameter("weight", DType.FLOAT32, 2);
    Fails.with(
        Status.EXISTS, () -> session.addParameter("weight", DType.FLOAT32, 2));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.addParameter(null, DType.FLOAT32, 2));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.addParameter("a", null, 2));
    Fails.with(
        Status.INVALID_ARGUMENT,
        () -> session.addParameter("a", DType.FLOAT32, (long[]) null));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.addParameter("a", DType.FLOAT32, -2));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.addParameter("a", DType.INT32, 2));
    Fails.with(Status.UNSUPPORTED, () -> session.addReplica("toaster:0"));
  }

  @Test
  void badSettingsAreRefused() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
    Replica replica = session.addReplica();
    Fails.with(Status.INVALID_ARGUMENT, () -> session.setOptimizer("sdg", null));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.setOptimizer("sgd", "lr=fast"));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.setOptimizer(null, null));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.setStrategy("pss"));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.setLearningRate(Double.NaN));
    Fails.with(Status.INVALID_ARGUMENT, () -> weight.set("speed=1"));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> replica.setWeight(Double.POSITIVE_INFINITY));
    Fails.with(Status.STATE, () -> session.step(1));
    Fails.with(Status.STATE, () -> session.beginStep(1));
    Fails.with(Status.STATE, session::start, "a parameter is not bound");
    Fails.with(Status.INVALID_ARGUMENT, () -> replica.alloc(null));
    Fails.with(
        Status.STATE, () -> replica.exportValue(weight), "nothing was allocated");
  }

  @Test
  void handlesOfAnotherSessionAreRefused() throws Exception {
    try (Session other = Job.alone()) {
      Parameter theirs = other.addParameter("theirs", DType.FLOAT32, 2);
      Replica replica = session.addReplica();
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> replica.alloc(theirs));
      assertEquals("theirs", e.parameter());
      Fails.with(Status.INVALID_ARGUMENT, () -> replica.ready(theirs));
      Fails.with(Status.INVALID_ARGUMENT, () -> replica.absent(theirs));
      Fails.with(
          Status.INVALID_ARGUMENT,
          () -> replica.bind(theirs, Job.floats(1, 2), Job.floats(1, 2)));
    }
  }

  @Test
  void stepUpdatesAllocatedMemoryInPlace() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 3);
    Parameter mean = session.addUntrained("mean", DType.INT32, 2);
    Replica replica = session.addReplica("cpu");
    Memory memory = replica.alloc(weight);
    assertNull(replica.alloc(mean).gradient());
    FloatBuffer value = memory.value().asFloatBuffer();
    FloatBuffer gradient = memory.gradient().asFloatBuffer();
    assertArrayEquals(new float[3], Job.array(value), "zeroed");
    value.put(0, new float[] {1, 2, 3});
    session.setOptimizer("sgd", "lr=0.5");
    session.start();
    gradient.put(0, new float[] {2, 4, 8});
    StepResult result = session.step(7);
    assertArrayEquals(new float[] {0, 0, -1}, Job.array(value));
    assertEquals(
        new StepResult(0, session.view(), 1, true, false, false, 7, Math.sqrt(84), 0, -1, false).toString(),
        result.toString());
    session.setLearningRate(1);
    session.step(1);
    assertArrayEquals(new float[] {-2, -4, -9}, Job.array(value));
    assertArrayEquals(
        new float[] {-2, -4, -9},
        Job.array(replica.alloc(weight).value().asFloatBuffer()),
        "the same memory");
  }

  @Test
  void boundBuffersAreUsedWithoutCopies() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT64, 2);
    Replica replica = session.addReplica();
    var value = Job.doubles(1, 1);
    var gradient = Job.doubles(0, 0);
    replica.bind(weight, value, gradient);
    session.setOptimizer("sgd", "lr=1");
    session.start();
    gradient.put(0, 1).put(1, 2); // after bind: dsgd reads this very memory, at the step
    session.step(1);
    assertArrayEquals(new double[] {0, -1}, Job.array(value));
    var fresh = Job.doubles(5, 5); // other buffers between steps, as frameworks replace gradients
    replica.bind(weight, value, fresh);
    session.step(1);
    assertArrayEquals(new double[] {-5, -6}, Job.array(value));
  }

  @Test
  void frozenParameterStandsStill() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    Memory memory = session.addReplica().alloc(weight);
    session.setOptimizer("sgd", "lr=1");
    weight.set("frozen=1");
    session.start();
    memory.gradient().putFloat(0, 1);
    session.step(1);
    assertEquals(0, memory.value().getFloat(0));
    weight.set("frozen=0 rate=2");
    session.step(1);
    assertEquals(-2, memory.value().getFloat(0));
  }

  @Test
  void replicasAreReducedByTheirWeights() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    Replica first = session.addReplica("cpu");
    Replica second = session.addReplica("cpu");
    DsgdException e = Fails.with(Status.INVALID_ARGUMENT, session::addReplica);
    assertTrue(e.getMessage().contains("devices"), e.getMessage());
    Memory one = first.alloc(weight);
    Memory two = second.alloc(weight);
    session.setOptimizer("sgd", "lr=1");
    first.setWeight(1);
    second.setWeight(3);
    session.start();
    one.gradient().putFloat(0, 8);
    two.gradient().putFloat(0, 4);
    assertEquals(4, session.step(4).weight());
    assertEquals(-5, one.value().getFloat(0), "-(8 + 3 * 4) / 4");
    assertEquals(-5, two.value().getFloat(0));
  }

  @Test
  void absentGradientAndNoWeightAreNotRead() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    Parameter other = session.addParameter("other", DType.FLOAT32, 1);
    Replica replica = session.addReplica();
    Memory a = replica.alloc(weight);
    Memory b = replica.alloc(other);
    session.setOptimizer("sgd", "lr=1");
    session.start();
    a.gradient().putFloat(0, Float.NaN);
    b.gradient().putFloat(0, 1);
    replica.absent(weight);
    session.step(1);
    assertEquals(0, a.value().getFloat(0));
    assertEquals(-1, b.value().getFloat(0));
    StepResult nothing = session.step(0);
    assertFalse(nothing.applied());
    assertTrue(nothing.allDone());
    assertEquals(0, a.value().getFloat(0));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.step(-1));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.step(Double.NaN));
  }

  @Test
  void closingAppliesNoGradientThatWasNotMarked() throws Exception {
    Memory memory;
    Operation<StepResult> step;
    try (Session closed = Job.alone()) {
      memory = closed.addReplica().alloc(closed.addParameter("weight", DType.FLOAT32, 1));
      closed.setOptimizer("sgd", "lr=1");
      closed.start();
      step = closed.beginStep(1);
      memory.gradient().putFloat(0, 1);
    }
    DsgdException why = Fails.with(Status.CLOSED, step::join);
    assertTrue(
        why.getMessage().contains("during step 0; gradient 'weight' was not marked"),
        why.getMessage());
    assertEquals(0, memory.value().getFloat(0));
  }

  @Test
  void overlappedStepMarksGradientsOneByOne() throws InterruptedException {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    Parameter other = session.addParameter("other", DType.FLOAT32, 1);
    Replica replica = session.addReplica();
    Memory a = replica.alloc(weight);
    Memory b = replica.alloc(other);
    session.setOptimizer("sgd", "lr=1");
    session.start();
    Fails.with(Status.STATE, () -> replica.ready(weight), "no step begun");
    Operation<StepResult> step = session.beginStep(2);
    assertSame(session, step.session());
    assertNotEquals(0, step.id());
    a.gradient().putFloat(0, 1);
    replica.ready(weight);
    DsgdException twice = Fails.with(Status.STATE, () -> replica.ready(weight));
    assertTrue(twice.getMessage().contains("weight"), twice.getMessage());
    assertFalse(step.isDone(), "one gradient is missing");
    b.gradient().putFloat(0, 3);
    replica.ready(other);
    assertEquals(2, step.future().join().weight());
    assertTrue(step.isDone());
    assertEquals(-1, a.value().getFloat(0));
    assertEquals(-3, b.value().getFloat(0));
    // Waiting marks nothing; a flush does.
    Operation<StepResult> flushed = session.beginStep(1);
    assertFalse(flushed.await(Duration.ofMillis(20)));
    session.flushStep();
    assertEquals(1, flushed.join().step());
    session.flushStep(); // after the last mark it does nothing
  }

  @Test
  void digestTellsValuesApart() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
    Memory memory = session.addReplica().alloc(weight);
    session.start();
    long zeros = session.digest();
    memory.value().putFloat(0, 1);
    assertNotEquals(zeros, session.digest());
    memory.value().putFloat(0, 0);
    assertEquals(zeros, session.digest());
  }

  @Test
  void stopIsSeenInTheNextResult() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
    session.addReplica().alloc(weight);
    session.start();
    assertFalse(session.step(1).stop());
    session.requestStop();
    assertTrue(session.step(1).stop());
  }

  @Test
  void shardGivesEveryIndexOncePerEpoch() throws Exception {
    try (Shard shard = session.shard(10, 42)) {
      assertEquals(10, shard.size());
      List<Long> first = indices(shard);
      assertEquals(Set.of(0L, 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L), new HashSet<>(first));
      assertEquals(10, first.size());
      assertEquals(0, shard.next(3).length, "the epoch is over");
      shard.epoch(1);
      assertNotEquals(first, indices(shard), "another order");
      shard.epoch(0);
      assertEquals(first, indices(shard));
      long[] three = new long[3];
      shard.epoch(0);
      assertEquals(3, shard.next(three));
      assertEquals(first.get(2), three[2]);
      Fails.with(Status.INVALID_ARGUMENT, () -> shard.epoch(-1));
      Fails.with(Status.INVALID_ARGUMENT, () -> shard.next(-1));
      Fails.with(Status.INVALID_ARGUMENT, () -> shard.next((long[]) null));
    }
    assertArrayEquals(new long[] {0, 1, 2, 3}, session.shard(4, 1, false).next(9), "in order");
    assertEquals(0, session.shard(0, 1).size());
    Fails.with(Status.INVALID_ARGUMENT, () -> session.shard(-1, 1));
  }

  private static List<Long> indices(Shard shard) throws Exception {
    List<Long> all = new ArrayList<>();
    for (long[] some = shard.next(3); some.length > 0; some = shard.next(3)) {
      for (long index : some) {
        all.add(index);
      }
    }
    return all;
  }

  @Test
  void objectsAreShared() throws Exception {
    session.putObject("words", new byte[] {1, 2, 3});
    session.putObject("nothing", new byte[0]);
    SharedObject words = session.getObject("words");
    assertEquals("words", words.name());
    assertArrayEquals(new byte[] {1, 2, 3}, words.toByteArray());
    ByteBuffer data = words.data();
    assertTrue(data.isDirect() && data.isReadOnly());
    assertEquals(3, data.get(2));
    assertEquals(0, session.getObject("nothing", Duration.ZERO).data().capacity());
    ByteBuffer part = Job.bytes(4).put(new byte[] {9, 8, 7, 6}).position(1).limit(3);
    session.putObject("part", part);
    assertArrayEquals(new byte[] {8, 7}, session.getObject("part").toByteArray());
    Fails.with(Status.EXISTS, () -> session.putObject("words", new byte[1]));
    DsgdException e =
        Fails.with(
            Status.WAIT_TIMEOUT,
            () -> session.getObject("missing", Duration.ofMillis(1)));
    assertTrue(e.getMessage().contains("missing"), e.getMessage());
    Fails.with(Status.INVALID_ARGUMENT, () -> session.putObject("n", (byte[]) null));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.putObject("n", ByteBuffer.allocate(3)));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.putObject(null, new byte[1]));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.getObject(null));
  }

  @Test
  void logIsDrained() throws Exception {
    session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 1));
    session.start();
    List<LogRecord> records = new ArrayList<>();
    session.drainLog(records::add);
    assertFalse(records.isEmpty());
    assertTrue(
        records.stream().noneMatch(record -> record.message().isEmpty()), records.toString());
    assertTrue(
        records.stream()
            .allMatch(r -> r.session() > 0 && r.rank() <= 0 && r.time().getEpochSecond() > 0),
        records.toString());
    assertEquals(0, records.get(records.size() - 1).rank());
    assertNull(session.pollLog(Duration.ofMillis(1)), "the queue is empty");
    session.close();
    session.drainLog(records::add); // what was said while closing; never throws
    Fails.with(Status.CLOSED, () -> session.pollLog(Duration.ZERO));
  }

  @Test
  void collectivesOfOneAreTheIdentity() throws Exception {
    FloatBuffer data = Job.floats(1, 2);
    session.allReduce(data, Reduction.MEAN);
    session.broadcast(data, 0);
    session.barrier();
    FloatBuffer part = Job.floats(0, 0);
    session.reduceScatter(data, part, Reduction.MAX, 2);
    assertArrayEquals(new float[] {1, 2}, Job.array(part));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.broadcast(data, 1));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.allReduce(data, null));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.allReduce(Job.ints(1), Reduction.MEAN));
    for (long[] counts : new long[][] {{1, 1}, {2, 0}}) {
      assertEquals(
          "elementCounts has 2 numbers but there are 1 workers; pass one for each",
          Fails.with(Status.INVALID_ARGUMENT, () -> session.allGather(data, part, counts)).getMessage());
    }
    Fails.with(Status.INVALID_ARGUMENT, () -> session.allGather(data, part, -2));
    Fails.with(Status.INVALID_ARGUMENT, () -> session.allGather(data, Job.floats(1)));
  }

  @Test
  void dlpackTensorsGoOutAndIn() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
    Replica replica = session.addReplica();
    Memory memory = replica.alloc(weight);
    memory.value().putFloat(0, 3);
    try (Session other = Job.alone()) {
      Parameter theirs = other.addParameter("weight", DType.FLOAT32, 2);
      Parameter larger = other.addParameter("larger", DType.FLOAT32, 3);
      Replica borrower = other.addReplica();
      DlpackTensor value = replica.exportValue(weight);
      DlpackTensor gradient = replica.exportGradient(weight);
      assertNotEquals(0, value.data());
      assertNotEquals(value.data(), gradient.data());
      Fails.with(
          Status.INVALID_ARGUMENT,
          () -> borrower.bindDlpack(larger, value, gradient),
          "the shape");
      assertNotEquals(0, value.address(), "still ours");
      Fails.with(
          Status.INVALID_ARGUMENT, () -> borrower.bindDlpack(theirs, value, value));
      borrower.bindDlpack(theirs, value, gradient);
      assertEquals(0, value.address(), "handed over");
      Fails.with(Status.CLOSED, () -> borrower.bindDlpack(theirs, value, gradient));
      borrower.alloc(larger);
      other.setOptimizer("sgd", "lr=1");
      other.start();
      memory.gradient().putFloat(0, 1);
      other.step(1);
      assertEquals(2, memory.value().getFloat(0), "the other session trains this one's memory");
    }
    Parameter state = session.addUntrained("state", DType.UINT8, 2);
    replica.alloc(state);
    assertNull(replica.exportGradient(state));
    DlpackTensor tensor = replica.exportValue(state);
    tensor.close();
    tensor.close();
    assertEquals(0, tensor.data());
    Fails.with(Status.INVALID_ARGUMENT, () -> new DlpackTensor(0));
  }

  @Test
  void aStepWhoseGradientOverflowsChangesNothingAndHalvesTheLossScale() throws Exception {
    assertEquals(1, session.lossScale());
    Session scaled = Job.alone("loss_scale", "dynamic");
    try (scaled) {
      Parameter weight = scaled.addParameter("weight", DType.FLOAT32, 2);
      Replica replica = scaled.addReplica();
      FloatBuffer value = replica.alloc(weight).value().asFloatBuffer();
      FloatBuffer gradient = replica.alloc(weight).gradient().asFloatBuffer();
      scaled.start();
      assertEquals(65536, scaled.lossScale());
      gradient.put(1, Float.POSITIVE_INFINITY);
      StepResult result = scaled.step(1);
      assertFalse(result.applied() || result.allDone());
      assertEquals(32768, scaled.lossScale());
      assertEquals(0, value.get(1));
      gradient.put(1, 32768);
      assertTrue(scaled.step(1).applied());
      assertEquals(-0.01f, value.get(1));
    }
    Fails.with(Status.CLOSED, scaled::lossScale);
  }

  @Test
  void float16OnTheWireNeedsALossScale() throws Exception {
    DsgdException e = Fails.with(Status.INVALID_ARGUMENT, () -> Job.alone("wire", "fp16"));
    assertEquals("wire", e.parameter());
    assertTrue(e.getMessage().contains("needs loss_scale"), e.getMessage());
    Job.alone("wire", "bf16").close();
  }

  @Test
  void gradientsThatAreNotFiniteSkipTheStepOrFailIt() throws Exception {
    for (String nonfinite : List.of("skip", "fail")) {
      try (Session checking = Job.alone("nonfinite", nonfinite)) {
        Parameter weight = checking.addParameter("weight", DType.FLOAT32, 2);
        Memory memory = checking.addReplica().alloc(weight);
        FloatBuffer value = memory.value().asFloatBuffer();
        FloatBuffer gradient = memory.gradient().asFloatBuffer();
        checking.start();
        gradient.put(1, Float.NaN);
        if (nonfinite.equals("skip")) {
          StepResult result = checking.step(1);
          assertTrue(result.skipped() && !result.applied());
          assertEquals(1, result.nonFinite());
          assertEquals(0, result.nonFiniteRank());
        } else {
          DsgdException e = Fails.with(Status.NON_FINITE, () -> checking.step(1));
          assertEquals("weight", e.parameter());
          assertEquals(0, e.rank());
        }
        assertEquals(0, value.get(1));
        gradient.put(1, 1);
        StepResult result = checking.step(1);
        assertTrue(result.applied() && !result.skipped());
        assertEquals(-1, result.nonFiniteRank());
      }
    }
  }
}

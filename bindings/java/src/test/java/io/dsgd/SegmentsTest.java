package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.reflect.InvocationTargetException;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** MemorySegments, by reflection, since the tests are built for Java 17 as dsgd.jar is. */
class SegmentsTest {
  private static boolean areThere() {
    return Runtime.version().feature() >= 22;
  }

  private static Object call(String type, String name, Object target, Object... arguments)
      throws Exception {
    Class<?>[] types = new Class<?>[arguments.length];
    for (int i = 0; i < types.length; i++) {
      types[i] = arguments[i] instanceof Long ? long.class : arguments[i].getClass();
    }
    try {
      return Class.forName("java.lang.foreign." + type).getMethod(name, types).invoke(target, arguments);
    } catch (InvocationTargetException e) {
      throw (Exception) e.getCause();
    }
  }

  private static Object allocated(long nbytes) throws Exception {
    return call("Arena", "allocate", call("Arena", "ofAuto", null), nbytes, 8L);
  }

  @Test
  void segmentsNeedJava22() throws Exception {
    assumeFalse(areThere());
    DsgdException e = Fails.with(Status.UNSUPPORTED, () -> NativeArray.ofSegment("", DType.INT8));
    assertTrue(e.getMessage().contains("run Java 22 or later"), e.getMessage());
    Fails.with(Status.UNSUPPORTED, () -> NativeArray.at(8, 8, DType.INT64, null).segment());
  }

  @Test
  void segmentsAreReadAndWrittenInPlace() throws Exception {
    assumeTrue(areThere());
    try (Session session = Job.alone()) {
      Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
      Object values = allocated(8);
      NativeArray value = NativeArray.ofSegment(values, DType.FLOAT32);
      assertEquals(call("MemorySegment", "address", values), value.address());
      NativeArray gradient = NativeArray.ofSegment(allocated(8), DType.FLOAT32);
      value.buffer().putFloat(4, 2);
      gradient.buffer().putFloat(4, 1);
      session.addReplica().bind(weight, value, gradient);
      session.setOptimizer("sgd", "lr=1");
      session.start();
      session.step(1);
      assertEquals(1f, value.buffer().getFloat(4));
    }
  }

  @Test
  void arraysAreSegments() throws Exception {
    assumeTrue(areThere());
    try (Session session = Job.alone()) {
      Parameter table = session.addUntrained("table", DType.UINT8, (1L << 31) + 8);
      Object segment = session.addReplica().alloc(table).valueArray().segment();
      assertEquals((1L << 31) + 8, call("MemorySegment", "byteSize", segment));
      session.putObject("object", NativeArray.ofSegment(allocated(8), DType.INT64));
      Object readOnly = session.getObject("object").array().segment();
      assertTrue((boolean) call("MemorySegment", "isReadOnly", readOnly));
      NativeArray array = NativeArray.ofSegment(readOnly, DType.INT64);
      Fails.with(Status.INVALID_ARGUMENT, () -> session.broadcast(array, 0));
    }
  }

  @Test
  void aSegmentKeepsItsArrayReachable() throws Exception {
    assumeTrue(areThere());
    AtomicInteger frees = new AtomicInteger();
    NativeArray memory = NativeArray.ofSegment(allocated(8), DType.INT64);
    Object segment =
        NativeArray.ofC(memory.address(), 8, DType.INT64, true, frees::incrementAndGet).segment();
    Collector.collectAll();
    assertEquals(0, frees.get());
    assertEquals(8L, call("MemorySegment", "byteSize", segment));
    segment = null;
    Collector.collectUntil(() -> frees.get() == 1);
  }

  @Test
  void segmentsOfClosedArenasAreRefused() throws Exception {
    assumeTrue(areThere());
    Object arena = call("Arena", "ofShared", null);
    Object segment = call("Arena", "allocate", arena, 8L, 8L);
    try (Session session = Job.alone()) {
      Parameter count = session.addUntrained("count", DType.INT64, 1);
      Replica replica = session.addReplica();
      NativeArray array = NativeArray.ofSegment(segment, DType.INT64);
      NativeArray slice = array.slice(0, 1);
      session.broadcast(slice, 0);
      call("Arena", "close", arena);
      for (DsgdException e :
          new DsgdException[] {
            Fails.with(
                Status.INVALID_ARGUMENT, () -> NativeArray.ofSegment(segment, DType.INT64)),
            Fails.with(Status.INVALID_ARGUMENT, () -> session.allReduce(array, Reduction.SUM)),
            Fails.with(Status.INVALID_ARGUMENT, () -> session.broadcast(slice, 0)),
            Fails.with(Status.INVALID_ARGUMENT, () -> replica.bind(count, slice)),
            Fails.with(Status.INVALID_ARGUMENT, () -> session.putObject("x", array)),
          }) {
        assertTrue(e.getMessage().contains("arena is closed; keep"), e.getMessage());
      }
    }
  }

  @Test
  void onlySegmentsAreAccepted() throws Exception {
    assumeTrue(areThere());
    Object heap = call("MemorySegment", "ofArray", null, new byte[8]);
    assertFalse((boolean) call("MemorySegment", "isNative", heap));
    for (Object bad : new Object[] {null, "text", heap}) {
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.ofSegment(bad, DType.INT8));
      assertTrue(e.getMessage().contains(";"), "no remedy: " + e.getMessage());
    }
  }
}

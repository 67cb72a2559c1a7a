package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteOrder;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.jar.JarFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** MemorySegments. Signatures and lambdas here use Object: JUnit reads this class on Java 17, too. */
class SegmentsTest {
  private static boolean areThere() {
    return Runtime.version().feature() >= 22;
  }

  private static Object allocated(long nbytes) {
    return Arena.ofAuto().allocate(nbytes, 8);
  }

  @Test
  void theJarHoldsAClassForJava22() throws Exception {
    File jar = new File(NativeArray.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    try (JarFile asJava22 = new JarFile(jar, true, JarFile.OPEN_READ, Runtime.Version.parse("22"))) {
      assertTrue(asJava22.isMultiRelease(), jar + " is not multi-release");
      assertEquals(
          "META-INF/versions/22/io/dsgd/Segments.class",
          asJava22.getJarEntry("io/dsgd/Segments.class").getRealName());
      assertTrue(asJava22.stream().noneMatch(entry -> entry.getName().contains("java/lang/")));
    }
  }

  @Test
  void segmentsNeedJava22() throws Exception {
    assumeFalse(areThere());
    NativeArray array = NativeArray.at(8, 8, DType.INT64, null);
    for (Executable call :
        new Executable[] {() -> NativeArray.ofSegment("", DType.INT8), array::segment}) {
      String message = assertThrows(UnsupportedOperationException.class, call).getMessage();
      assertTrue(message.contains("run Java 22 or later"), message);
    }
  }

  @Test
  void segmentsAreReadAndWrittenInPlace() throws Exception {
    assumeTrue(areThere());
    try (Session session = Job.alone()) {
      Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
      Object values = allocated(8);
      NativeArray value = NativeArray.ofSegment(values, DType.FLOAT32);
      assertEquals(((MemorySegment) values).address(), value.address());
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
      assertEquals((1L << 31) + 8, ((MemorySegment) segment).byteSize());
      session.putObject("object", NativeArray.ofSegment(allocated(8), DType.INT64));
      Object readOnly = session.getObject("object").array().segment();
      assertTrue(((MemorySegment) readOnly).isReadOnly());
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
    assertEquals(8L, ((MemorySegment) segment).byteSize());
    segment = null;
    Collector.collectUntil(() -> frees.get() == 1);
  }

  @Test
  void segmentsOfClosedArenasAreRefused() throws Exception {
    assumeTrue(areThere());
    Arena arena = Arena.ofShared();
    Object segment = arena.allocate(8, 8);
    try (Session session = Job.alone()) {
      Parameter count = session.addUntrained("count", DType.INT64, 1);
      Replica replica = session.addReplica();
      NativeArray array = NativeArray.ofSegment(segment, DType.INT64);
      NativeArray slice = array.slice(0, 1);
      session.broadcast(slice, 0);
      arena.close();
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
  void boundSegmentsOfClosedArenasAreRefused() throws Exception {
    assumeTrue(areThere());
    for (boolean asBuffers : new boolean[] {false, true}) {
      Session session = Job.alone();
      Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
      Replica replica = session.addReplica();
      Arena arena = Arena.ofShared();
      MemorySegment values = arena.allocate(8, 8);
      MemorySegment gradients = arena.allocate(8, 8);
      if (asBuffers) {
        ByteOrder order = ByteOrder.nativeOrder();
        replica.bind(
            weight, values.asByteBuffer().order(order), gradients.asByteBuffer().order(order));
      } else {
        replica.bind(
            weight,
            NativeArray.ofSegment(values, DType.FLOAT32),
            NativeArray.ofSegment(gradients, DType.FLOAT32));
      }
      session.setOptimizer("sgd", "lr=0.1");
      session.start();
      arena.close();
      for (DsgdException e :
          new DsgdException[] {
            Fails.with(Status.INVALID_ARGUMENT, () -> session.step(1)),
            Fails.with(Status.INVALID_ARGUMENT, () -> session.beginStep(1)),
            Fails.with(Status.INVALID_ARGUMENT, session::digest),
            Fails.with(Status.INVALID_ARGUMENT, session::close),
          }) {
        assertTrue(e.getMessage().contains("arena is closed; keep"), e.getMessage());
      }
      Fails.with(Status.CLOSED, () -> session.rank());
    }
  }

  @Test
  void onlySegmentsAreAccepted() throws Exception {
    assumeTrue(areThere());
    Object heap = MemorySegment.ofArray(new byte[8]);
    for (Object bad : new Object[] {null, "text", heap}) {
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.ofSegment(bad, DType.INT8));
      assertTrue(e.getMessage().contains(";"), "no remedy: " + e.getMessage());
    }
  }
}

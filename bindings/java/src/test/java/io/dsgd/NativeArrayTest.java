package io.dsgd;

import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class NativeArrayTest {
  private final Session session = Job.alone();

  NativeArrayTest() throws Exception {}

  @AfterEach
  void close() throws Exception {
    session.close();
  }

  private static NativeArray longs(DType type, long... values) {
    LongBuffer buffer =
        ByteBuffer.allocateDirect(8 * values.length).order(ByteOrder.nativeOrder()).asLongBuffer();
    return NativeArray.of(buffer.put(values).flip(), type);
  }

  @Test
  void givenTypeOverridesTheBuffersClass() throws Exception {
    Job.run(
        2,
        worker -> {
          int rank = worker.rank();
          NativeArray unsigned = longs(DType.UINT64, rank == 0 ? -1 : 1); // -1 is the largest
          worker.allReduce(unsigned, Reduction.MAX);
          assertEquals(-1, unsigned.buffer().getLong(0));
          NativeArray signed = longs(DType.INT64, rank == 0 ? -1 : 1);
          worker.allReduce(signed, Reduction.MAX);
          assertEquals(1, signed.buffer().getLong(0));
          ByteBuffer bytes = ByteBuffer.allocateDirect(1).put(0, (byte) (rank == 0 ? -1 : 1));
          worker.allReduce(NativeArray.of(bytes, DType.INT8), Reduction.MAX);
          assertEquals(1, bytes.get(0));
          worker.barrier();
        });
  }

  @Test
  void everyCollectiveTakesArrays() throws Exception {
    NativeArray data = longs(DType.INT64, 1, 2, 3);
    NativeArray receive = longs(DType.INT64, 0, 0, 0);
    session.allGather(data, receive);
    session.reduceScatter(receive, data, Reduction.SUM);
    session.broadcast(data, 0);
    session.allReduceAsync(data, Reduction.SUM).join();
    session.broadcastAsync(data, 0).join();
    session.allGatherAsync(data, receive).join();
    session.reduceScatterAsync(receive, data, Reduction.SUM).join();
    Channel channel = session.channel(1);
    channel.allReduce(data, Reduction.SUM);
    channel.broadcast(data, 0);
    channel.allGather(data, receive);
    channel.reduceScatter(receive, data, Reduction.SUM);
    channel.allReduceAsync(data, Reduction.SUM).join();
    channel.broadcastAsync(data, 0).join();
    channel.allGatherAsync(data, receive).join();
    channel.reduceScatterAsync(receive, data, Reduction.SUM).join();
    long[] values = new long[3];
    receive.buffer().asLongBuffer().get(values);
    assertArrayEquals(new long[] {1, 2, 3}, values);
  }

  @Test
  void boundArraysAreTrained() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
    Replica replica = session.addReplica();
    NativeArray value = NativeArray.of(Job.floats(1, 2), DType.FLOAT32);
    NativeArray gradient = NativeArray.of(Job.floats(1, 1), DType.FLOAT32);
    replica.bind(weight, value, gradient);
    session.setOptimizer("sgd", "lr=1");
    session.start();
    session.step(1);
    assertEquals(0f, value.buffer().getFloat(0));
    assertEquals(1f, value.buffer().getFloat(4));
  }

  @Test
  void allocatedMemoryIsTheSameThroughArrayAndBuffer() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 4);
    Parameter count = session.addUntrained("count", DType.INT64, 1);
    Replica replica = session.addReplica();
    Memory memory = replica.alloc(weight);
    memory.value().putFloat(4, 7);
    assertEquals(7f, memory.valueArray().buffer().getFloat(4));
    assertEquals(7f, memory.valueArray().slice(1, 2).buffer().getFloat(0));
    assertEquals(memory.valueArray().address() + 4, memory.valueArray().slice(1, 2).address());
    assertEquals(4, memory.gradientArray().length());
    assertEquals(null, replica.alloc(count).gradientArray());
  }

  @Test
  void arraysArePutAndGot() throws Exception {
    session.putObject("table", longs(DType.UINT64, 5, 6), 2, 1);
    SharedObject table = session.getObject("table");
    assertEquals(DType.UINT64, table.dtype());
    assertArrayEquals(new long[] {2, 1}, table.shape());
    assertEquals(6, table.array().buffer().getLong(8));
    assertTrue(table.array().buffer().isReadOnly());
    Fails.with(Status.INVALID_ARGUMENT, () -> session.broadcast(table.array(), 0));
  }

  @Test
  void anArrayIsPutAsOneDimensionUnlessAShapeSaysOtherwise() throws Exception {
    session.putObject("row", longs(DType.INT64, 5, 6));
    assertArrayEquals(new long[] {2}, session.getObject("row").shape());
    session.putObject("scalar", longs(DType.INT64, 5), new long[0]);
    assertArrayEquals(new long[0], session.getObject("scalar").shape());
  }

  @Test
  void anEmptyMappingIsFine(@TempDir Path folder) throws Exception {
    try (FileChannel file =
        FileChannel.open(
            folder.resolve("empty"), Set.of(CREATE, READ, WRITE))) {
      session.allReduce(
          file.map(FileChannel.MapMode.READ_WRITE, 0, 0).order(ByteOrder.nativeOrder()),
          Reduction.SUM);
    }
  }

  @Test
  void anUntrainedParameterIsBoundToAnArray() throws Exception {
    Parameter count = session.addUntrained("count", DType.INT64, 2);
    session.addReplica().bind(count, longs(DType.INT64, 1, 2));
    session.start();
  }

  @Test
  void badArraysAreRefusedWithTheRemedy() throws Exception {
    NativeArray three = longs(DType.INT64, 1, 2, 3);
    String[] said = {
      Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.at(0, 8, DType.INT64, null)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.at(8, 7, DType.INT64, null)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.at(8, -8, DType.INT64, null)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.at(8, 8, null, null)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.of(Job.floats(1), null)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> NativeArray.of(Job.floats(1), DType.INT64)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> three.slice(2, 2)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> three.slice(-1, 1)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> three.slice(Long.MAX_VALUE, 2)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> session.allReduce((NativeArray) null, Reduction.SUM)).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> session.allGather(three, longs(DType.UINT64, 1, 2, 3))).getMessage(),
      Fails.with(Status.INVALID_ARGUMENT, () -> session.putObject("x", (NativeArray) null)).getMessage(),
    };
    for (String message : said) {
      assertTrue(message.contains(";"), "no remedy: " + message);
    }
    assertEquals(0, three.slice(3, 0).nbytes());
  }

  @Test
  void memoryOfCIsFreedWhenNoViewIsLeft() throws Exception {
    AtomicInteger frees = new AtomicInteger();
    NativeArray whole = longs(DType.INT64, 1, 2);
    ByteBuffer view =
        NativeArray.ofC(whole.address(), whole.nbytes(), DType.INT64, true, frees::incrementAndGet)
            .slice(1, 1)
            .buffer();
    Collector.collectAll();
    assertEquals(0, frees.get());
    assertEquals(2, view.getLong(0));
    view = null;
    Collector.collectUntil(() -> frees.get() == 1);
  }

  @Test
  void aParameterBeyondTwoGibibytesHasArraysOnly() throws Exception {
    long count = (1L << 31) + 4096;
    Parameter table = session.addUntrained("table", DType.UINT8, count);
    Memory memory = session.addReplica().alloc(table);
    assertEquals(count, memory.valueArray().nbytes());
    DsgdException e = Fails.with(Status.UNSUPPORTED, memory::value);
    assertTrue(e.getMessage().contains("2147487744 bytes"), e.getMessage());
    memory.valueArray().slice(count - 1, 1).buffer().put(0, (byte) 9);
    assertEquals(9, memory.valueArray().slice(count - 8, 8).buffer().get(7));
    session.broadcast(memory.valueArray(), 0);
  }
}

package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.FloatBuffer;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class BufferTest {
  private final Session session = Job.alone();

  BufferTest() throws Exception {}

  @AfterEach
  void close() throws Exception {
    session.close();
  }

  static Stream<Arguments> badBuffers() {
    ByteOrder wrong =
        ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN
            ? ByteOrder.LITTLE_ENDIAN
            : ByteOrder.BIG_ENDIAN;
    return Stream.of(
        Arguments.of("heap", FloatBuffer.allocate(4), "heap buffer"),
        Arguments.of("null", null, "null"),
        Arguments.of("read-only", Job.floats(1, 2).asReadOnlyBuffer(), "read-only"),
        Arguments.of(
            "wrong order",
            ByteBuffer.allocateDirect(16).order(wrong).asFloatBuffer(),
            "byte order"),
        Arguments.of("a class without dtype", Job.bytes(8).asCharBuffer(), "CharBuffer"),
        Arguments.of("heap of a class without dtype", CharBuffer.allocate(8), "CharBuffer"));
  }

  @ParameterizedTest(name = "{0}")
  @MethodSource("badBuffers")
  void badBufferIsRefusedWithTheRemedy(String name, Buffer buffer, String said) throws Exception {
    for (DsgdException e :
        new DsgdException[] {
          Fails.with(
              Status.INVALID_ARGUMENT, () -> session.allReduce(buffer, Reduction.SUM)),
          Fails.with(
              Status.INVALID_ARGUMENT, () -> session.broadcastAsync(buffer, 0)),
        }) {
      assertTrue(e.getMessage().contains("data") && e.getMessage().contains(said), e.getMessage());
      assertTrue(e.getMessage().contains(";"), "no remedy: " + e.getMessage());
    }
  }

  @Test
  void nativeGuardRefusesHeapBuffersToo() { // were the Java check ever forgotten
    Fails.with(
        Status.INVALID_ARGUMENT,
        () ->
            session.use(
                s -> {
                  Raw.buffer_address(FloatBuffer.allocate(4));
                }));
  }

  @Test
  void positionAndLimitChooseTheRange() throws Exception {
    FloatBuffer send = Job.floats(1, 2, 3, 4, 5);
    FloatBuffer receive = Job.floats(0, 0, 0, 0, 0);
    send.position(1).limit(4);
    receive.position(2);
    session.allGather(send, receive);
    assertArrayEquals(new float[] {0, 0, 2, 3, 4}, Job.array(receive.duplicate().clear()));
    assertEquals(1, send.position());
    assertEquals(2, receive.position());
  }

  @Test
  void rangeOfAByteBufferIsInBytes() throws Exception {
    ByteBuffer receive = Job.bytes(12);
    receive.position(4);
    session.allGather(Job.ints(7, 8), receive);
    assertArrayEquals(new int[] {0, 7, 8}, Job.array(receive.clear().asIntBuffer()));
  }

  @Test
  void readOnlyBufferMayBeSent() throws Exception {
    FloatBuffer receive = Job.floats(0, 0);
    session.allGather(Job.floats(1, 2).asReadOnlyBuffer(), receive);
    assertArrayEquals(new float[] {1, 2}, Job.array(receive));
  }

  @Test
  void bigEndianBytesAreFineAsUint8() throws Exception {
    ByteBuffer data =
        ByteBuffer.allocateDirect(3).order(ByteOrder.BIG_ENDIAN).put(new byte[] {1, 2, 3}).flip();
    session.allReduce(data, Reduction.SUM);
    assertEquals(2, data.get(1));
  }

  @Test
  void emptyBufferIsFine() throws Exception {
    session.allReduce(Job.floats(), Reduction.SUM);
    session.broadcast(Job.bytes(0), 0);
  }

  @Test
  void trainedParameterNeedsAGradient() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
    Replica replica = session.addReplica();
    DsgdException e =
        Fails.with(
            Status.INVALID_ARGUMENT, () -> replica.bind(weight, Job.floats(1, 2)));
    assertEquals("weight", e.parameter());
    assertTrue(
        e.getMessage().contains("'weight' is trained") && e.getMessage().contains("addUntrained"),
        e.getMessage());
  }

  @Test
  void anotherTypeThanTheParametersIsRefused() throws Exception {
    Parameter weight = session.addParameter("weight", DType.FLOAT32, 2);
    Replica replica = session.addReplica();
    DsgdException e =
        Fails.with(
            Status.INVALID_ARGUMENT,
            () -> replica.bind(weight, Job.doubles(1), Job.doubles(1)));
    assertTrue(
        e.getMessage().contains("weight") && e.getMessage().contains("FLOAT64"), e.getMessage());
    Fails.with(
        Status.INVALID_ARGUMENT,
        () -> replica.bind(weight, Job.floats(1, 2), Job.floats(1)));
    Fails.with(Status.INVALID_ARGUMENT, () -> replica.bind(weight, Job.floats(1, 2)));
    Fails.with(
        Status.INVALID_ARGUMENT, () -> replica.bind(weight, null, Job.floats(1, 2)));
    replica.bind(weight, Job.bytes(8), Job.floats(1, 2)); // the same bytes, as another class
  }

  @Test
  void receiveOfAnotherTypeIsRefused() throws Exception {
    Fails.with(
        Status.INVALID_ARGUMENT, () -> session.allGather(Job.floats(1), Job.ints(0)));
    Fails.with(
        Status.INVALID_ARGUMENT,
        () -> session.reduceScatter(Job.floats(1), Job.doubles(0), Reduction.SUM));
  }
}

package io.dsgd.conformance;

import io.dsgd.DType;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** The contract's numbers: what buffers are filled with, and the digest of what is in them. */
final class Pattern {
  private static final long DIGEST_START = 0xcbf29ce484222325L;
  private static final long DIGEST_PRIME = 0x100000001b3L;

  private Pattern() {}

  /** A direct buffer with `count` elements of the pattern. */
  static ByteBuffer of(DType type, int count, long seed, long salt) {
    ByteBuffer buffer = buffer(type, count);
    fill(buffer, type, seed, salt);
    return buffer;
  }

  static ByteBuffer buffer(DType type, int count) {
    return ByteBuffer.allocateDirect(Math.multiplyExact(count, type.size()))
        .order(ByteOrder.nativeOrder());
  }

  static void fill(ByteBuffer buffer, DType type, long seed, long salt) {
    int count = buffer.capacity() / type.size();
    for (int i = 0; i < count; i++) {
      int step = (int) ((mixed(seed, salt, i) >>> 33) % 17); // 0 .. 16
      switch (type) {
        case FLOAT32 -> buffer.putFloat(4 * i, step - 8);
        case FLOAT64 -> buffer.putDouble(8 * i, step - 8);
        case INT32 -> buffer.putInt(4 * i, step - 8);
        case INT64 -> buffer.putLong(8 * i, step - 8);
        case UINT8 -> buffer.put(i, (byte) step);
        case INT8 -> buffer.put(i, (byte) (step - 8));
        case UINT64 -> buffer.putLong(8 * i, step);
        default -> throw new IllegalArgumentException("scripts have no numbers of " + type);
      }
    }
  }

  private static long mixed(long seed, long salt, long i) {
    long x = seed * 1000003 + salt + i * 0x9E3779B97F4A7C15L;
    x = (x ^ (x >>> 30)) * 0xBF58476D1CE4E5B9L;
    x = (x ^ (x >>> 27)) * 0x94D049BB133111EBL;
    return x ^ (x >>> 31);
  }

  /** The buffer as the class that says its element type. */
  static Buffer typed(ByteBuffer buffer, DType type) {
    return switch (type) {
      case FLOAT32 -> buffer.asFloatBuffer();
      case FLOAT64 -> buffer.asDoubleBuffer();
      case INT32 -> buffer.asIntBuffer();
      case INT64, UINT64 -> buffer.asLongBuffer();
      case FLOAT16 -> buffer.asShortBuffer();
      case INT8, UINT8, BFLOAT16 -> buffer;
    };
  }

  static String digest(Iterable<ByteBuffer> buffers) {
    long hash = DIGEST_START;
    for (ByteBuffer buffer : buffers) {
      for (int i = 0; i < buffer.capacity(); i++) {
        hash = (hash ^ (buffer.get(i) & 0xff)) * DIGEST_PRIME;
      }
    }
    return hex(hash);
  }

  static String hex(long bits) {
    return String.format("%016x", bits);
  }
}

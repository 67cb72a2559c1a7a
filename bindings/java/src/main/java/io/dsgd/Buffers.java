package io.dsgd;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/**
 * Checks buffers before they go to C. Direct ones in native byte order pass, uncopied; what C sees
 * is the range from position to limit. Everything else is refused with the way to make it right.
 */
final class Buffers {
  private Buffers() {}

  /** The memory of a buffer that dsgd reads. */
  static NativeArray readable(Buffer buffer, DType type, String name) {
    if (buffer == null) {
      throw DsgdException.invalid(name + " is null; pass a direct buffer");
    }
    if (!buffer.isDirect()) {
      throw DsgdException.invalid(
          name
              + " is a heap buffer; dsgd reads and writes buffers in place: make it with"
              + " ByteBuffer.allocateDirect(n).order(ByteOrder.nativeOrder()) or Replica.alloc");
    }
    DType elements = typeOf(buffer, name);
    if (holder(elements) != holder(type) && elements != DType.UINT8) {
      throw DsgdException.invalid(
          "%s holds %s, but %s is needed; pass a buffer of %3$s or a ByteBuffer"
              .formatted(name, elements, type));
    }
    ByteOrder order = order(buffer);
    if (order != ByteOrder.nativeOrder() && type.size() > 1) {
      throw DsgdException.invalid(
          ("%s has byte order %s; call order(ByteOrder.nativeOrder()) on the ByteBuffer, before its"
                  + " asFloatBuffer() or the like")
              .formatted(name, order));
    }
    boolean whole = buffer.position() == 0 && buffer.limit() == buffer.capacity();
    Buffer range = whole ? buffer : buffer.slice();
    return NativeArray.over(range, (long) range.capacity() * elements.size(), type);
  }

  /** The memory of a buffer that dsgd writes. */
  static NativeArray writable(Buffer buffer, DType type, String name) {
    return writable(readable(buffer, type, name), type, name);
  }

  /** An array that dsgd reads, and that must be of this type. */
  static NativeArray readable(NativeArray array, DType type, String name) {
    if (typeOf(array, name) != type) {
      throw DsgdException.invalid(
          "%s holds %s, but %s is needed; pass an array of %3$s".formatted(name, array.type, type));
    }
    return array;
  }

  /** As {@link #readable(NativeArray, DType, String)}, for one that dsgd writes. */
  static NativeArray writable(NativeArray array, DType type, String name) {
    if (!readable(array, type, name).writable) {
      throw DsgdException.invalid(
          name + " is read-only but dsgd writes to it; pass a writable buffer or array");
    }
    return array;
  }

  static DType typeOf(NativeArray array, String name) {
    if (array == null) {
      throw DsgdException.invalid(name + " is null; pass an array");
    }
    array.requireAlive(name);
    return array.type;
  }

  /**
   * The type that a buffer's elements have by its class; an unsigned byte for a ByteBuffer, a signed
   * number for a LongBuffer.
   */
  static DType typeOf(Buffer buffer, String name) {
    for (DType type : DType.values()) {
      Class<? extends Buffer> holder = holder(type);
      if (holder != null && holder.isInstance(buffer)) {
        return type;
      }
    }
    throw DsgdException.invalid(
        name
            + (buffer == null
                ? " is null; pass a direct buffer"
                : " is a "
                    + buffer.getClass().getSimpleName()
                    + "; dsgd takes a direct FloatBuffer, DoubleBuffer, IntBuffer, LongBuffer,"
                    + " ShortBuffer or ByteBuffer"));
  }

  /**
   * The class of buffers of these elements: a ShortBuffer has the bits of float16. Null where only a
   * ByteBuffer, passed for any type, has their bits.
   */
  private static Class<? extends Buffer> holder(DType type) {
    return switch (type) {
      case FLOAT16 -> ShortBuffer.class;
      case FLOAT32 -> FloatBuffer.class;
      case FLOAT64 -> DoubleBuffer.class;
      case INT32 -> IntBuffer.class;
      case INT64, UINT64 -> LongBuffer.class;
      case INT8, UINT8 -> ByteBuffer.class;
      case BFLOAT16 -> null;
    };
  }

  private static ByteOrder order(Buffer buffer) {
    if (buffer instanceof FloatBuffer floats) {
      return floats.order();
    } else if (buffer instanceof DoubleBuffer doubles) {
      return doubles.order();
    } else if (buffer instanceof IntBuffer ints) {
      return ints.order();
    } else if (buffer instanceof LongBuffer longs) {
      return longs.order();
    } else if (buffer instanceof ShortBuffer shorts) {
      return shorts.order();
    }
    return ((ByteBuffer) buffer).order();
  }
}

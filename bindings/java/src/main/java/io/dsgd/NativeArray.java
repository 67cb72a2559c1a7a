package io.dsgd;

import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Elements of one type in native memory, of any size. A direct Java buffer holds 2 GiB at most, and
 * its class does not name every type. A NativeArray has neither limit: make it of a buffer, of a
 * {@code MemorySegment} of Java 22, or of any address, and pass it where a buffer is taken.
 *
 * <p>dsgd reads and writes the memory in place. The array keeps what it was made from reachable.
 */
public final class NativeArray {
  final long address; // read by name in jni_support.c, as nbytes is
  final long nbytes;
  final DType type;
  final boolean writable;
  private final Object owner;

  NativeArray(long address, long nbytes, DType type, boolean writable, Object owner) {
    if (type == null) {
      throw DsgdException.invalid("the type of the array is null; pass one of DType");
    }
    if (nbytes < 0) {
      throw DsgdException.invalid("an array cannot have " + nbytes + " bytes; pass 0 or more");
    }
    if (nbytes % type.size() != 0) {
      throw DsgdException.invalid(
          "an array of %s cannot have %s bytes; pass a multiple of %s"
              .formatted(type, nbytes, type.size()));
    }
    if (address == 0 && nbytes > 0) {
      throw DsgdException.invalid(
          "the address of the array is 0; pass that of its first element");
    }
    this.address = address;
    this.nbytes = nbytes;
    this.type = type;
    this.writable = writable;
    this.owner = owner;
  }

  /**
   * The elements of a direct buffer, from position to limit. The type need not be that of the
   * buffer's class: a LongBuffer holds {@link DType#UINT64}, too, a ByteBuffer any type.
   */
  public static NativeArray of(Buffer buffer, DType type) {
    if (type == null) {
      throw DsgdException.invalid("the type of the buffer is null; pass one of DType");
    }
    return Buffers.readable(buffer, type, "the buffer");
  }

  /**
   * The elements of a native {@code java.lang.foreign.MemorySegment}, which Java has since version
   * 22. Its arena must stay open as long as dsgd uses the memory: until the operation has ended; for
   * {@link Replica#bind}, until the session is closed or others are bound. So open the arena before the
   * session. Calls refuse a segment whose arena is closed; closing it during a call crashes the JVM.
   *
   * @param segment a MemorySegment; the type is Object because this class runs on Java 17, too
   * @throws UnsupportedOperationException before Java 22
   */
  public static NativeArray ofSegment(Object segment, DType type) {
    return Segments.array(segment, type);
  }

  /**
   * Memory at an address, for example of JNA or of Netty. A wrong address crashes the JVM.
   *
   * @param owner kept reachable as long as dsgd uses the memory; null if it is never freed
   */
  public static NativeArray at(long address, long nbytes, DType type, Object owner) {
    return new NativeArray(address, nbytes, type, true, owner);
  }

  /** Over a direct buffer that Buffers has checked. */
  static NativeArray over(Buffer whole, long nbytes, DType type) {
    return new NativeArray(
        nbytes == 0 ? 0 : Raw.buffer_address(whole), nbytes, type, !whole.isReadOnly(), whole);
  }

  /**
   * Over memory of the C library. Calls {@code free} when the array and all its views are unreachable.
   */
  static NativeArray ofC(long address, long nbytes, DType type, boolean writable, Runnable free) {
    NativeArray array = new NativeArray(address, nbytes, type, writable, null);
    Natives.CLEANER.register(array, free);
    return array;
  }

  /** Refuses memory that is known to be freed: of a segment whose arena is closed. */
  void requireAlive(String name) {
    if (owner instanceof NativeArray whole) {
      whole.requireAlive(name);
    } else {
      Segments.requireAlive(owner, name);
    }
  }

  /** The address of the first element. It is valid as long as this array is reachable. */
  public long address() {
    return address;
  }

  /** The size in bytes. */
  public long nbytes() {
    return nbytes;
  }

  /** The number of elements. */
  public long length() {
    return nbytes / type.size();
  }

  /** The type of the elements. */
  public DType type() {
    return type;
  }

  /** The elements from {@code begin} on, {@code length} of them; not copied. */
  public NativeArray slice(long begin, long length) {
    if (begin < 0 || length < 0 || begin > length() - length) {
      throw DsgdException.invalid(
          "slice(%s, %s) exceeds the array's %s elements; pass a range within it"
              .formatted(begin, length, length()));
    }
    return new NativeArray(
        address + begin * type.size(), length * type.size(), type, writable, this);
  }

  /**
   * A direct buffer over the array, in native byte order; a new view at each call. An array of more
   * than 2147483647 bytes has none: take slices of it, or its {@link #segment}.
   */
  public ByteBuffer buffer() {
    if (nbytes > Integer.MAX_VALUE) {
      throw DsgdException.of(
          Status.UNSUPPORTED,
          nbytes
              + " bytes are too many for a Java buffer, which holds at most 2147483647; take slices"
              + " of the array or its segment()");
    }
    ByteBuffer buffer = (ByteBuffer) Raw.buffer_over(address, nbytes);
    Natives.CLEANER.register(buffer, () -> Reference.reachabilityFence(this)); // keeps the memory
    return (writable ? buffer : buffer.asReadOnlyBuffer()).order(ByteOrder.nativeOrder());
  }

  /**
   * A {@code java.lang.foreign.MemorySegment} over the array, to be cast; it keeps the array
   * reachable. Needs Java 22, and {@code --enable-native-access} for the module or the class path
   * that dsgd is on.
   *
   * @throws UnsupportedOperationException before Java 22
   */
  public Object segment() {
    return Segments.over(this, address, nbytes, !writable);
  }
}

package io.dsgd.conformance;

import io.dsgd.DType;
import io.dsgd.Memory;
import io.dsgd.Parameter;
import io.dsgd.Replica;
import io.dsgd.Session;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** The parameters and replicas of the worker, and their buffers. */
final class Model {
  private static final long VALUES = 1000000;

  private record Copy(Replica replica, List<ByteBuffer> values, List<ByteBuffer> gradients) {}

  private final List<Parameter> parameters = new ArrayList<>();
  private final List<Copy> copies = new ArrayList<>();

  void add(Parameter parameter) {
    parameters.add(parameter);
  }

  void add(Replica replica) {
    copies.add(new Copy(replica, new ArrayList<>(), new ArrayList<>()));
  }

  Parameter parameter(String name) {
    return parameters.stream().filter(p -> p.name().equals(name)).findFirst().orElseThrow();
  }

  Replica replica(int index) {
    return copies.get(index).replica;
  }

  void alloc() {
    for (Copy copy : copies) {
      for (Parameter parameter : parameters) {
        Memory memory = copy.replica.alloc(parameter);
        copy.values.add(memory.value());
        copy.gradients.add(memory.gradient()); // null if untrained
      }
    }
  }

  void bind() {
    for (Copy copy : copies) {
      for (Parameter parameter : parameters) {
        int count = Math.toIntExact(parameter.elements());
        ByteBuffer value = Pattern.buffer(parameter.type(), count);
        ByteBuffer gradient =
            parameter.isTrained() ? Pattern.buffer(parameter.type(), count) : null;
        copy.replica.bind(parameter, value, gradient);
        copy.values.add(value);
        copy.gradients.add(gradient);
      }
    }
  }

  void fillValues(Session session, long seed) {
    for (int r = 0; r < copies.size(); r++) {
      for (int p = 0; p < parameters.size(); p++) {
        Pattern.fill(copies.get(r).values.get(p), type(p), seed, VALUES + salt(session, r, p));
      }
    }
  }

  void fillGradients(Session session, long seed) {
    for (int r = 0; r < copies.size(); r++) {
      for (int p = 0; p < parameters.size(); p++) {
        fillGradient(session, seed, r, p);
      }
    }
  }

  /** Fills and marks the gradients one by one, the last first. */
  void readyGradients(Session session, long seed) {
    for (int r = copies.size() - 1; r >= 0; r--) {
      for (int p = parameters.size() - 1; p >= 0; p--) {
        if (fillGradient(session, seed, r, p)) {
          copies.get(r).replica.ready(parameters.get(p));
        }
      }
    }
  }

  void absent(String name) {
    for (Copy copy : copies) {
      copy.replica.absent(parameter(name));
    }
  }

  List<ByteBuffer> values() {
    List<ByteBuffer> all = new ArrayList<>();
    copies.forEach(copy -> all.addAll(copy.values));
    return all;
  }

  List<ByteBuffer> gradients() {
    List<ByteBuffer> all = new ArrayList<>();
    copies.forEach(copy -> copy.gradients.stream().filter(g -> g != null).forEach(all::add));
    return all;
  }

  private boolean fillGradient(Session session, long seed, int replica, int parameter) {
    ByteBuffer gradient = copies.get(replica).gradients.get(parameter);
    if (gradient == null) {
      return false;
    }
    Pattern.fill(gradient, type(parameter), seed, salt(session, replica, parameter));
    return true;
  }

  private DType type(int parameter) {
    return parameters.get(parameter).type();
  }

  private static long salt(Session session, int replica, int parameter) {
    return session.rank() * 10000L + replica * 100L + parameter;
  }
}

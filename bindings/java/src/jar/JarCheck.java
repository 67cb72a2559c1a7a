import io.dsgd.DType;
import io.dsgd.Dsgd;
import io.dsgd.Memory;
import io.dsgd.Parameter;
import io.dsgd.Session;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Uses nothing but a bundled jar: takes a step, and looks at which libraries that loaded. */
public final class JarCheck {
  public static void main(String[] arguments) throws Exception {
    try (Session session = Dsgd.init()) {
      Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
      Memory memory = session.addReplica("cpu").alloc(weight);
      session.setOptimizer("sgd", "lr=1");
      session.start();
      memory.gradient().putFloat(0, 3);
      session.step(1);
      check(memory.value().getFloat(0) == -3, "the step gave " + memory.value().getFloat(0));
    }
    List<String> maps = Files.readAllLines(Path.of("/proc/self/maps"));
    for (String name : List.of("libdsgd.so.1", "libdsgd_jni.so")) {
      check(maps.stream().anyMatch(line -> line.contains(name)), name + " is not loaded");
    }
    for (String name : List.of("libcapnp", "libkj", "libuv", "libsodium")) {
      check(
          maps.stream().noneMatch(line -> line.contains(name)),
          name + " is loaded but should be inside");
    }
    System.out.println("dsgd " + Dsgd.versionString() + " works from the jar alone");
  }

  private static void check(boolean right, String message) {
    if (!right) {
      throw new AssertionError(message);
    }
  }
}

package io.dsgd;

import java.io.IOException;
import java.io.InputStream;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.CodeSource;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.jar.JarFile;

/**
 * Loads libdsgd_jni.so and, through it, libdsgd.so: from the folder in the property {@code
 * dsgd.library.path}, else from the jar, else from the folder of the jar or the one that it was
 * installed with, else from {@code java.library.path}.
 */
final class NativeLibrary {
  /** In the manifest: where the libraries are installed, relative to the folder of the jar. */
  private static final String INSTALLED = "Dsgd-Library-Folder";

  private static final String JNI = "libdsgd_jni.so";
  private static final String CORE = "libdsgd.so.1";

  private NativeLibrary() {}

  static void load() {
    String folder = System.getProperty("dsgd.library.path");
    if (folder != null) {
      loadFromFolder(Path.of(folder).toAbsolutePath());
    } else if (NativeLibrary.class.getResource(resource(JNI)) != null) {
      loadFromJar();
    } else {
      besideJar()
          .ifPresentOrElse(
              file -> load(file, "reinstall dsgd"), NativeLibrary::loadFromSystem);
    }
  }

  private static void loadFromFolder(Path folder) {
    load(
        folder.resolve(JNI),
        "set -Ddsgd.library.path to the folder that holds " + JNI + ", not " + folder);
  }

  private static void load(Path file, String remedy) {
    try {
      System.load(file.toString());
    } catch (UnsatisfiedLinkError e) {
      throw explained(e.getMessage(), e, remedy);
    }
  }

  /** With {@code remedy}, unless the error itself tells a better one. */
  private static UnsatisfiedLinkError explained(
      String problem, UnsatisfiedLinkError e, String remedy) {
    if (e.getMessage().contains("already loaded in another classloader")) {
      remedy = "load dsgd in one class loader that all its users share, or use a jar made by build-jar";
    } else if (e.getMessage().contains("failed to map segment")) {
      remedy = "its file system is mounted noexec: move it to another one, or set -Djava.io.tmpdir if it was in a jar";
    }
    return linkError(problem + "; " + remedy, e);
  }

  private static UnsatisfiedLinkError linkError(String message, Throwable cause) {
    UnsatisfiedLinkError error = new UnsatisfiedLinkError(message);
    error.initCause(cause);
    return error;
  }

  private static Optional<Path> besideJar() {
    CodeSource source = NativeLibrary.class.getProtectionDomain().getCodeSource();
    List<Path> folders = new ArrayList<>();
    try {
      Path jar = Path.of(source.getLocation().toURI()).toRealPath();
      folders.add(jar.getParent());
      try (JarFile file = new JarFile(jar.toFile())) {
        String installed = file.getManifest().getMainAttributes().getValue(INSTALLED);
        if (installed != null) {
          folders.add(jar.resolveSibling(installed).normalize());
        }
      }
    } catch (IOException | URISyntaxException | RuntimeException e) {
      // The classes come from elsewhere than a jar in a file.
    }
    return folders.stream().map(folder -> folder.resolve(JNI)).filter(Files::exists).findFirst();
  }

  private static void loadFromSystem() {
    try {
      System.loadLibrary("dsgd_jni");
    } catch (UnsatisfiedLinkError e) {
      throw explained(
          "cannot load %s: %s".formatted(JNI, e.getMessage()),
          e,
          ("this jar has no natives for %s and there are none beside it: set -Ddsgd.library.path"
                  + " to the folder that holds them, or use a jar made by build-jar")
              .formatted(platform()));
    }
  }

  /**
   * Both files into one new folder, since the first finds the second beside it; removed as soon as
   * they are mapped.
   */
  private static void loadFromJar() {
    List<Path> written = new ArrayList<>();
    try {
      Path folder = Files.createTempDirectory("dsgd-");
      written.add(folder);
      for (String name : List.of(CORE, JNI)) {
        try (InputStream in = NativeLibrary.class.getResourceAsStream(resource(name))) {
          if (in != null) {
            Path file = folder.resolve(name);
            written.add(0, file);
            Files.copy(in, file);
          }
        }
      }
      load(folder.resolve(JNI), "use a jar that build-jar has made on this system");
    } catch (IOException e) {
      throw linkError(
          "cannot unpack the natives of the dsgd jar to %s: %s; set -Djava.io.tmpdir to a folder that can be written"
              .formatted(System.getProperty("java.io.tmpdir"), e),
          e);
    } finally {
      for (Path file : written) {
        file.toFile().delete();
      }
    }
  }

  private static String resource(String name) {
    return "/io/dsgd/native/" + platform() + "/" + name;
  }

  private static String platform() {
    return System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-" + System.getProperty("os.arch");
  }
}

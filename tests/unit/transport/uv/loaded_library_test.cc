#include "transport/uv/loaded_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsgd::transport::uv {
namespace {

using testing::HasSubstr;

TEST(LoadedLibrary, HasItsFunctions) {
  LoadedLibrary library("libm.so.6");
  double (*root)(double) = nullptr;
  library.find(root, "sqrt");
  EXPECT_TRUE(library.status("geometry needs libm", "install it").ok());
  ASSERT_TRUE(root);
  EXPECT_EQ(root(9), 3);
}

TEST(LoadedLibrary, NamesTheFirstFunctionThatIsMissing) {
  LoadedLibrary library("libm.so.6");
  double (*root)(double) = nullptr, (*cube)(double) = nullptr, (*other)(double) = nullptr;
  library.find(cube, "no_such_cube");
  library.find(root, "sqrt");
  library.find(other, "no_such_other");
  const Status status = library.status("geometry needs libm", "install it");
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(),
            "geometry needs libm, and libm.so.6 has no function 'no_such_cube'; install it");
}

TEST(LoadedLibrary, ThatIsNotThereIsAnErrorWithTheLoadersReason) {
  LoadedLibrary library("libnowhere.so.1");
  double (*root)(double) = nullptr;
  library.find(root, "sqrt");
  EXPECT_FALSE(root);
  const Status status = library.status("geometry needs libnowhere", "install it");
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(
      status.message(),
      HasSubstr("geometry needs libnowhere, and libnowhere.so.1 cannot be loaded: libnowhere.so.1: "));
  EXPECT_THAT(status.message(), HasSubstr("; install it"));
}

}  // namespace
}  // namespace dsgd::transport::uv
